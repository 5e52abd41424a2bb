"""The state of compressed layers, apart from the model's own: tensors by name.

State is what makes a run go on as if it had not been interrupted: seeds, counters, the plans in
force, what was measured last, and ways that were pinned. Everything else is a setting of
compress(), and is what the program says now: a state that was saved under another one warns.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from .._support import inner_model
from ..nn.gated import GATE
from ..nn.layers import SPARSE, SparseState
from ..saved.modules import SAVED
from ..saved.packer import Packer
from .gate import GradientGate
from .gates import Gates
from .names import fold

VERSION = 1
_VERSION_KEY = "version"
_SETTING = "setting:"  # in front of what all layers were told together, which no plan holds


class StateWarning(UserWarning):
    """A run goes on with other settings than its state was saved under, or without a state."""


Holders = dict[str, GradientGate | SparseState | Packer]  # by the name of the layer
State = dict[str, torch.Tensor]


def holders_in(module: nn.Module) -> Holders:
    """What holds state inside a module. The names are those of the layers: neither our submodules
    nor wrappers of torch are in them."""
    holders: Holders = {}
    within: set[nn.Module] = set()  # gates of sparse layers
    for name, child in inner_model(module).named_modules():
        if isinstance(child, SparseState):
            within |= {child.weight, child.input}
        if isinstance(child, GradientGate | SparseState) and child not in within:
            holders[name_of_layer(name)] = child
        packer = vars(child).get(SAVED)
        if isinstance(packer, Packer) and packer not in holders.values():
            holders[SAVED if SAVED not in holders else f"{name_of_layer(name)}.{SAVED}"] = packer
    return holders


def name_of_layer(name: str) -> str:
    """Without the parts that are ours, or torch.compile's."""
    return ".".join(part for part in name.split(".") if part not in (GATE, SPARSE, "_orig_mod"))


def _apart(holders: Holders) -> tuple[dict[str, Any], dict[str, Packer]]:
    packers = {name: one for name, one in holders.items() if isinstance(one, Packer)}
    return {name: holders[name] for name in holders if name not in packers}, packers


def state_of(holders: Holders, told: Mapping[str, Any] | None = None) -> State:
    """told: what all layers are told together, as Gates takes it."""
    parts, packers = _apart(holders)
    state = Gates(parts, **(told or {})).group.state()
    for name, packer in packers.items():
        state |= {f"{name}.{k}": tensor.clone() for k, tensor in packer.tensors_by_name().items()}
    return state | {_VERSION_KEY: torch.tensor([VERSION], device="cpu")}


def state_dict(module: nn.Module) -> State:
    """The state of all compressed layers in a module, for those who have no controller: layers of
    slimgrad.nn used as they are. Tensors alone, on the CPU: it goes into safetensors, torch.save
    and torch.distributed.checkpoint."""
    return state_of(holders_in(module))


def load_state_dict(module: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Restores what state_dict() gave; see Controller.load_state_dict()."""
    load_into(holders_in(module), state)


def load_into(
    holders: Holders, state: Mapping[str, torch.Tensor], told: Mapping[str, Any] | None = None
) -> None:
    """Restores a state, or raises ValueError and changes nothing. Settings that differ, layers
    that are not in both: a StateWarning that names them, and the settings win."""
    _check_version(state)
    parts, packers = _apart(holders)
    draws: dict[str, dict[str, torch.Tensor]] = {name: {} for name in packers}
    rest: dict[str, torch.Tensor] = {}
    for key, tensor in state.items():
        name, _, last = key.rpartition(".")
        if name in packers and last in packers[name].tensors_by_name():
            draws[name][last] = tensor
        elif key != _VERSION_KEY and (told is not None or not key.startswith(_SETTING)):
            rest[key] = tensor.detach()
    saved = [name for name in packers if draws[name]]
    for name in saved:
        packers[name].check(draws[name])
    found = Gates(parts, **(told or {})).group.load_state(rest)
    for name in saved:
        packers[name].load(draws[name])
    notes = [f"{_listed(names)}: {words}" for words, names in found["differences"].items()]
    notes += found["settings"]
    missing = [*found["missing"], *(name for name in packers if not draws[name])]
    notes += [f"missing in the state: {_listed(missing)}"] if missing else []
    unknown = found["unknown"]
    notes += [f"missing in the model: {_listed(unknown)}"] if unknown else []
    if notes:
        warnings.warn(
            "[load_state_dict] the settings differ from those of the saved state; the program's "
            f"hold: {'; '.join(notes)}",
            StateWarning,
            stacklevel=3,
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(fold(sorted(names)))


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
