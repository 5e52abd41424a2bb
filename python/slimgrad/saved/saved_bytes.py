"""saved_bytes: what autograd saves between forward and backward, by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .._library import classes
from .._support import plain_models
from ..compression.names import MODEL
from ..nn.activations import Stepwise
from .modules import SAVED
from .packer import Packer


@dataclass
class SavedBytes:
    """Bytes of the storages that autograd saved, each counted for the layer that saved it first.

    Parameters and buffers are not counted: they live anyway. A storage that several layers keep,
    such as the output of an activation that is the input of a linear layer, counts once.

    plain, plain_by_layer: what they are for the plain model, before compress() and with torch's own
        classes in the place of slimgrad.nn's. Functions of slimgrad.functional, and parts that
        torch.compile compiled, count as they are.
    left: by reason, the bytes of what was not packed where the rest was.
    """

    total: int = 0
    by_layer: dict[str, int] = field(default_factory=dict)
    plain: int = 0
    plain_by_layer: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.plain_by_layer == self.by_layer:
            lines = [f"{count:>14,}  {name or MODEL}" for name, count in self.by_layer.items()]
            return "\n".join([*lines, f"{self.total:>14,}  total"])
        lines = [f"{'plain':>14} {'saved':>14}"]
        for name in dict.fromkeys([*self.plain_by_layer, *self.by_layer]):
            counts = (self.plain_by_layer.get(name, 0), self.by_layer.get(name, 0))
            lines.append(f"{counts[0]:>14,} {counts[1]:>14,}  {name or MODEL}")
        lines.append(f"{self.plain:>14,} {self.total:>14,}  total")
        lines += [f"{'':>14} {count:>14,}  left: {why}" for why, count in self.left.items()]
        return "\n".join(lines)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Puts back what a forward pass changes: buffers (running means), the random generator, and the
    draws of what packs saved tensors."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    packers = {vars(module).get(SAVED) for module in model.modules()}
    states = {k: k.tensors_by_name() for k in packers if isinstance(k, Packer)}
    try:
        with torch.random.fork_rng():
            yield
    finally:
        for packer, state in states.items():
            packer.load(state)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])


def call_with(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, Sequence) and not isinstance(inputs, torch.Tensor):
        return model(*inputs)
    return model(inputs)


@contextmanager
def _naming_layers(model: nn.Module, count: Any) -> Iterator[None]:
    """The layer whose forward is running is the part that saves."""

    def leave(*_) -> None:
        count.end_part()

    handles = []
    # What is inside of a Stepwise runs for the plain model alone; what torch.compile has compiled
    # is one part, and would trace hooks.
    wrapping = None
    for name, module in model.named_modules():
        if wrapping is not None and name.startswith(wrapping):
            continue
        wrapping = name and f"{name}."
        if module._compiled_call_impl is not None:
            continue
        handles.append(
            module.register_forward_pre_hook(lambda *_, name=name: count.begin_part(name))
        )
        handles.append(module.register_forward_hook(leave, always_call=True))
        if not isinstance(module, Stepwise) and type(module).__name__ != "OptimizedModule":
            wrapping = None
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _count(model: nn.Module, inputs: Any, plain: bool) -> tuple[dict[str, int], ...]:
    """Bytes of one forward pass: by layer, plain and saved, and by reason, left. plain: as if
    nothing of the model were converted."""
    count = classes.SavedBytesCount([*model.parameters(), *model.buffers()])

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            count.saved(tensor)
        return tensor

    with (
        undisturbed(model),
        _naming_layers(model, count),
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        plain_models() if plain else nullcontext(),
    ):
        try:
            call_with(model, inputs)
        finally:
            count.stop()
    return count.bytes()


def saved_bytes(model: nn.Module, inputs: Any) -> SavedBytes:
    """Measures what autograd keeps for backward, by layer, and what it would keep for the plain
    model: runs ``model`` forward twice, as it is and without what compress() changed.

    ``inputs`` is a tensor, a sequence of arguments or a dict of keyword arguments. The model's
    state that a forward pass changes (running means, the random generator) is put back.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"[saved_bytes] expected model to be a module, got {type(model).__name__}")
    plain, _, _ = _count(model, inputs, plain=True)
    _, saved, left = _count(model, inputs, plain=False)
    return SavedBytes(sum(saved.values()), saved, sum(plain.values()), plain, left)
