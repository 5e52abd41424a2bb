"""saved_bytes: what autograd keeps between forward and backward, by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .kept.handles import Copied
from .kept.keeper import Keeper, observing
from .kept.modules import KEPT


@dataclass
class SavedBytes:
    """Bytes of the storages that autograd kept, each counted for the layer that kept it first.

    Parameters and buffers are not counted: they live anyway. A storage that several layers keep,
    such as the output of an activation that is the input of a linear layer, counts once.

    plain, plain_by_layer: what they would be if compress(kept=) or keep() packed nothing.
    left: by reason, the bytes of what was not packed where the rest was.
    """

    total: int = 0
    by_layer: dict[str, int] = field(default_factory=dict)
    plain: int = 0
    plain_by_layer: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.plain == self.total:
            lines = [f"{count:>14,}  {name or '(model)'}" for name, count in self.by_layer.items()]
            return "\n".join([*lines, f"{self.total:>14,}  total"])
        lines = [f"{'plain':>14} {'kept':>14}"]
        for name, count in self.plain_by_layer.items():
            lines.append(f"{count:>14,} {self.by_layer.get(name, 0):>14,}  {name or '(model)'}")
        lines.append(f"{self.plain:>14,} {self.total:>14,}  total")
        lines += [f"{'':>14} {count:>14,}  left: {why}" for why, count in self.left.items()]
        return "\n".join(lines)


class _Count:
    """Of bytes by layer, each storage once."""

    def __init__(self, model: nn.Module, result: SavedBytes):
        self.result = result
        self.layers = [""]  # those whose forward is running
        state = [*model.parameters(), *model.buffers()]
        self._lives_anyway = {tensor.untyped_storage().data_ptr() for tensor in state}
        # What was counted is held, so that nothing else can have its address.
        self._plain: dict[int, torch.Tensor] = {}
        self._held: dict[int, Any] = {}

    def saved(self, tensor: torch.Tensor, handle: Any = None, why: str | None = None) -> None:
        """handle: what a keeper saved in place of the tensor, if one was at work."""
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key in self._lives_anyway or storage.nbytes() == 0:
            return
        layer, result = self.layers[-1], self.result
        if key not in self._plain:
            self._plain[key] = tensor.detach()
            result.plain += storage.nbytes()
            _add(result.plain_by_layer, layer, storage.nbytes())
        words = getattr(handle, "words", None)
        held = tensor.detach() if words is None else words.tensor
        if isinstance(handle, Copied):
            held = handle.tensor
        key = held.untyped_storage().data_ptr()
        if key not in self._held:
            self._held[key] = held
            result.total += held.untyped_storage().nbytes()
            _add(result.by_layer, layer, held.untyped_storage().nbytes())
            if handle is not None and words is None and why is not None:
                _add(result.left, why, held.untyped_storage().nbytes())


def _add(counts: dict[str, int], name: str, count: int) -> None:
    counts[name] = counts.get(name, 0) + count


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Puts back what a forward pass changes: buffers (running means), the random generator, and the
    state of what packs saved tensors: draws, and the passes that a budget counts."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    keepers = {vars(module).get(KEPT) for module in model.modules()}
    states = {k: k.tensors_by_name() for k in keepers if isinstance(k, Keeper)}
    try:
        with torch.random.fork_rng():
            yield
    finally:
        for keeper, state in states.items():
            keeper.load(state)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])


def call_with(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, Sequence) and not isinstance(inputs, torch.Tensor):
        return model(*inputs)
    return model(inputs)


def saved_bytes(model: nn.Module, inputs: Any) -> SavedBytes:
    """Runs ``model`` forward once and measures what autograd keeps for backward, by layer; of a
    model that packs what it keeps also what that would be without.

    ``inputs`` is a tensor, a sequence of arguments or a dict of keyword arguments. The model's
    state that a forward pass changes (running means, the random generator) is put back.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"[saved_bytes] expected model to be a module, got {type(model).__name__}")
    count = _Count(model, SavedBytes())

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        count.saved(tensor)
        return tensor

    def leave(*_) -> None:
        count.layers.pop()

    handles = []
    for name, module in model.named_modules():
        handles.append(
            module.register_forward_pre_hook(lambda *_, name=name: count.layers.append(name))
        )
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        with (
            undisturbed(model),
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
            observing(count.saved),
        ):
            call_with(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return count.result
