"""saved_bytes: what autograd saves between forward and backward, by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from .._support import plain_models
from ..compression.names import MODEL
from ..nn.activations import Stepwise
from .handles import Copied
from .modules import SAVED
from .packer import Packer, observing


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


class _Count:
    """Of the bytes that one forward pass saves by layer, each storage once."""

    def __init__(self, model: nn.Module):
        self.by_layer: dict[str, int] = {}
        self.left: dict[str, int] = {}
        self.layers = [""]  # those whose forward is running
        state = [*model.parameters(), *model.buffers()]
        self._lives_anyway = {tensor.untyped_storage().data_ptr() for tensor in state}
        # What was counted is held, so that nothing else can have its address.
        self._held: dict[int, torch.Tensor] = {}

    @property
    def total(self) -> int:
        return sum(self.by_layer.values())

    def saved(self, tensor: torch.Tensor, handle: Any = None, why: str | None = None) -> None:
        """handle: what a packer saved in place of the tensor, if one was at work."""
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._lives_anyway or storage.nbytes() == 0:
            return
        words = getattr(handle, "words", None)
        held = tensor.detach() if words is None else words.tensor
        if isinstance(handle, Copied):
            held = handle.tensor
        key, num_bytes = held.untyped_storage().data_ptr(), held.untyped_storage().nbytes()
        if key in self._held:
            return
        self._held[key] = held
        _add(self.by_layer, self.layers[-1], num_bytes)
        if handle is not None and words is None and why is not None:
            _add(self.left, why, num_bytes)


def _add(counts: dict[str, int], name: str, count: int) -> None:
    counts[name] = counts.get(name, 0) + count


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
def _naming_layers(model: nn.Module, running: list[str]) -> Iterator[None]:
    """The layer whose forward is running is the last of ``running``."""

    def leave(*_) -> None:
        running.pop()

    handles = []
    wrapping = ""  # what is inside of a Stepwise runs for the plain model alone
    for name, module in model.named_modules():
        if wrapping and name.startswith(wrapping):
            continue
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: running.append(name)))
        handles.append(module.register_forward_hook(leave, always_call=True))
        wrapping = f"{name}." if isinstance(module, Stepwise) else ""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _count(model: nn.Module, inputs: Any, plain: bool) -> _Count:
    """Of one forward pass. plain: as if nothing of the model were converted."""
    count = _Count(model)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        count.saved(tensor)
        return tensor

    def saved(tensor: torch.Tensor, *instead: Any) -> None:
        count.saved(tensor, *(() if plain else instead))

    with (
        undisturbed(model),
        _naming_layers(model, count.layers),
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        observing(saved),
        plain_models() if plain else nullcontext(),
    ):
        call_with(model, inputs)
    return count


def saved_bytes(model: nn.Module, inputs: Any) -> SavedBytes:
    """Measures what autograd keeps for backward, by layer, and what it would keep for the plain
    model: runs ``model`` forward twice, as it is and without what compress() changed.

    ``inputs`` is a tensor, a sequence of arguments or a dict of keyword arguments. The model's
    state that a forward pass changes (running means, the random generator) is put back.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"[saved_bytes] expected model to be a module, got {type(model).__name__}")
    plain = _count(model, inputs, plain=True)
    result = SavedBytes(plain=plain.total, plain_by_layer=plain.by_layer)
    del plain  # It holds what the first pass saved.
    saved = _count(model, inputs, plain=False)
    return replace(result, total=saved.total, by_layer=saved.by_layer, left=saved.left)
