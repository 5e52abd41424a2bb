"""The state of compressed layers, apart from the model's own: tensors by name.

State is what makes a run go on as if it had not been interrupted: seeds, counters, the plans in
force, what was measured last, and ways that were pinned. Everything else is a setting of
compress(), and is what the program says now: a state that was saved under another one warns.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import nn

from .._library import ops
from .._support import inner_model
from ..nn.gated import GATE
from ..nn.layers import SPARSE
from ..saved.modules import SAVED
from ..saved.packer import Packer
from .gate import GradientGate, StateHolder
from .names import MODEL, fold

VERSION = 1
_VERSION_KEY = "version"
_SETTING = "setting:"  # in front of what all layers were told together, which no plan holds


class StateWarning(UserWarning):
    """A run goes on with other settings than its state was saved under, or without a state."""


Holders = dict[str, StateHolder | Packer]  # by the name of the layer or product
State = dict[str, torch.Tensor]


def holders_in(module: nn.Module) -> Holders:
    """What holds state inside a module. The names are those of the layers: neither our submodules
    nor wrappers of torch are in them."""
    holders: Holders = {}
    for name, child in inner_model(module).named_modules():
        if isinstance(child, StateHolder) and child.tensors_by_name():
            holders[name_of_layer(name)] = child
        packer = vars(child).get(SAVED)
        if isinstance(packer, Packer) and packer not in holders.values():
            holders[SAVED if SAVED not in holders else f"{name_of_layer(name)}.{SAVED}"] = packer
    return holders


def name_of_layer(name: str) -> str:
    """Without the parts that are ours, or torch.compile's."""
    return ".".join(part for part in name.split(".") if part not in (GATE, SPARSE, "_orig_mod"))


def state_of(holders: Holders, settings: Mapping[str, float] | None = None) -> State:
    state = {
        f"{name}.{key}" if name else key: tensor.clone()
        for name, holder in holders.items()
        for key, tensor in holder.tensors_by_name().items()
    }
    told = {
        _SETTING + name: torch.tensor([value], dtype=torch.float64, device="cpu")
        for name, value in (settings or {}).items()
    }
    return state | told | {_VERSION_KEY: torch.tensor([VERSION], device="cpu")}


def state_dict(module: nn.Module) -> State:
    """The state of all compressed layers in a module, for those who have no controller: layers of
    slimgrad.nn used as they are. Tensors alone, on the CPU: it goes into safetensors, torch.save
    and torch.distributed.checkpoint."""
    return state_of(holders_in(module))


def load_state_dict(module: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Restores what state_dict() gave; see Controller.load_state_dict()."""
    load_into(holders_in(module), state)


def load_into(
    holders: Holders,
    state: Mapping[str, torch.Tensor],
    settings: Mapping[str, float] | None = None,
) -> None:
    """Restores a state, or raises ValueError and changes nothing. Settings that differ, layers
    that are not in both: a StateWarning that names them, and the settings win."""
    _check_version(state)
    saved = _by_holder(state, holders)
    loaded: list[tuple[torch.Tensor, torch.Tensor]] = []
    packers: list[tuple[Packer, dict[str, torch.Tensor]]] = []
    differences: dict[str, list[str]] = {}
    for name, holder in holders.items():
        if name not in saved:
            continue
        if isinstance(holder, Packer):
            holder.check(saved[name])
            packers.append((holder, saved[name]))
            continue
        ours = holder.tensors_by_name()
        theirs = {key: _tensor(saved[name], name, key) for key in ours}
        new = {key: tensor.clone() for key, tensor in ours.items()}
        load = ops.load_gate_ if isinstance(holder, GradientGate) else ops.load_sparse_choice_
        try:
            found = load(*new.values(), *theirs.values())
        except ValueError as error:
            _, _, what = str(error).partition("] ")  # without the name of the op
            raise ValueError(f"[load_state_dict] {name or MODEL}: {what}") from None
        for difference in found:
            differences.setdefault(difference, []).append(name)
        loaded += [(ours[key], new[key]) for key in ours]
    for to, value in loaded:
        to.copy_(value)
    for packer, draws in packers:
        packer.load(draws)
    notes = [f"{_listed(names)}: {difference}" for difference, names in differences.items()]
    if settings is not None:
        notes += _told_otherwise(settings, state)
    missing, unknown = holders.keys() - saved.keys(), saved.keys() - holders.keys()
    notes += [f"missing in the state: {_listed(missing)}"] if missing else []
    notes += [f"missing in the model: {_listed(unknown)}"] if unknown else []
    if notes:
        warnings.warn(
            "[load_state_dict] the settings are not those that the state was saved under, and "
            f"hold: {'; '.join(notes)}",
            StateWarning,
            stacklevel=3,
        )


def _told_otherwise(
    settings: Mapping[str, float], state: Mapping[str, torch.Tensor]
) -> Iterator[str]:
    """What all layers were told together, where it is not what they are told now."""
    saved = {
        name.removeprefix(_SETTING): value.item()
        for name, value in state.items()
        if name.startswith(_SETTING) and value.numel() == 1
    }
    for name in sorted(settings.keys() | saved.keys()):
        ours, theirs = settings.get(name), saved.get(name)
        if ours != theirs:
            yield f"{name} {_number(ours)}, the state has {_number(theirs)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(fold(sorted(names)))


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


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


def _by_holder(
    state: Mapping[str, torch.Tensor], holders: Holders
) -> dict[str, dict[str, torch.Tensor]]:
    """A layer with a gate is not the one with a sparse backward pass that has its name."""
    by_holder: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in state.items():
        if name != _VERSION_KEY and not name.startswith(_SETTING):
            holder, _, key = name.rpartition(".")
            known = holders[holder].tensors_by_name() if holder in holders else {key}
            holder += "" if key in known else " (of another kind)"
            by_holder.setdefault(holder, {})[key] = tensor
    return by_holder


def _tensor(saved: Mapping[str, torch.Tensor], name: str, key: str) -> torch.Tensor:
    if key not in saved:
        raise ValueError(f"[load_state_dict] expected {name}.{key} in the state, got none")
    return saved[key].detach().cpu().contiguous()
