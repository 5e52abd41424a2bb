"""The state of compressed layers, apart from the model's own: tensors by name.

State is what makes a run go on as if it had not been interrupted: seeds, counters, the plans in
force, what was measured last, and ways that were pinned. Everything else is a setting of
compress(), and is what the program says now: a state that was saved under another one warns.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

import torch
from torch import nn

from ._library import ops
from .gate import GradientGate, StateHolder
from .nn.gated import GATE
from .nn.layers import SPARSE

VERSION = 1
_VERSION_KEY = "version"


class StateWarning(UserWarning):
    """A run goes on with other settings than its state was saved under, or without a state."""


Holders = dict[str, StateHolder]  # by the name of the layer or product


def holders_in(module: nn.Module) -> Holders:
    """What holds state inside a module. The names are those of the layers: neither our submodules
    nor torch.compile's wrapper are in them."""
    unnamed = (GATE, SPARSE, "_orig_mod")
    return {
        ".".join(part for part in name.split(".") if part not in unnamed): child
        for name, child in module.named_modules()
        if isinstance(child, StateHolder) and child.tensors_by_name()
    }


def state_of(holders: Holders) -> dict[str, torch.Tensor]:
    state = {
        f"{name}.{key}" if name else key: tensor.clone()
        for name, holder in holders.items()
        for key, tensor in holder.tensors_by_name().items()
    }
    return state | {_VERSION_KEY: torch.tensor([VERSION])}


def state_dict(module: nn.Module) -> dict[str, torch.Tensor]:
    """The state of all compressed layers in a module, for those who have no controller: layers of
    slimgrad.nn used as they are. Tensors alone, on the CPU: it goes into safetensors, torch.save
    and torch.distributed.checkpoint."""
    return state_of(holders_in(module))


def load_state_dict(module: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Restores what state_dict() gave; see Controller.load_state_dict()."""
    load_into(holders_in(module), state)


def load_into(holders: Holders, state: Mapping[str, torch.Tensor]) -> None:
    """Restores a state, or raises ValueError and changes nothing. Settings that differ, layers
    that are not in both: a StateWarning that names them, and the settings win."""
    _check_version(state)
    saved = _by_holder(state)
    loaded: list[tuple[torch.Tensor, torch.Tensor]] = []
    notes: list[str] = []
    for name, holder in holders.items():
        if name not in saved:
            continue
        ours = holder.tensors_by_name()
        theirs = {key: _tensor(saved[name], name, key) for key in ours}
        new = {key: tensor.clone() for key, tensor in ours.items()}
        try:
            load = ops.load_gate_ if isinstance(holder, GradientGate) else ops.load_sparse_choice_
            notes += [
                f"{name or 'the layer'}: {note}" for note in load(*new.values(), *theirs.values())
            ]
        except ValueError as error:
            raise ValueError(f"[load_state_dict] {name or 'the layer'}: {error}") from None
        loaded += [(ours[key], new[key]) for key in ours]
    notes += _named("the state has none for", holders.keys() - saved.keys())
    notes += _named("the model has no such layers as", saved.keys() - holders.keys())
    for to, value in loaded:
        to.copy_(value)
    if notes:
        warnings.warn(_sentence(notes), StateWarning, stacklevel=3)


def _check_version(state: Mapping[str, torch.Tensor]) -> None:
    if not isinstance(state, Mapping) or not all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in state.items()
    ):
        raise TypeError("[load_state_dict] expected a mapping from names to tensors")
    version = state.get(_VERSION_KEY)
    if version is None or version.numel() != 1:
        raise ValueError(
            f"[load_state_dict] expected what state_dict() gave, with an entry {_VERSION_KEY!r}"
        )
    if version.item() != VERSION:
        raise ValueError(f"[load_state_dict] expected version {VERSION}, got {version.item()}")


def _by_holder(state: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    by_holder: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in state.items():
        if name != _VERSION_KEY:
            holder, _, key = name.rpartition(".")
            by_holder.setdefault(holder, {})[key] = tensor
    return by_holder


def _tensor(saved: Mapping[str, torch.Tensor], name: str, key: str) -> torch.Tensor:
    if key not in saved:
        raise ValueError(f"[load_state_dict] expected {name}.{key} in the state, got none")
    return saved[key].detach().cpu().contiguous()


def _named(what: str, names: Iterable[str], most: int = 5) -> list[str]:
    names = sorted(names)
    if not names:
        return []
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return [f"{what} {', '.join(names[:most])}{more}"]


def _sentence(notes: list[str], most: int = 10) -> str:
    more = f"; and {len(notes) - most} more" if len(notes) > most else ""
    return (
        "[load_state_dict] the settings are not those that the state was saved under, and hold: "
        + "; ".join(notes[:most])
        + more
    )
