"""saved_bytes: what autograd keeps between forward and backward, by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass
class SavedBytes:
    """Bytes of the storages that autograd kept, each counted for the layer that kept it first.

    Parameters and buffers are not counted: they live anyway. A storage that several layers keep,
    such as the output of an activation that is the input of a linear layer, counts once.
    """

    total: int = 0
    by_layer: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{count:>14,}  {name or '(model)'}" for name, count in self.by_layer.items()]
        return "\n".join([*lines, f"{self.total:>14,}  total"])


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Puts back what a forward pass changes: buffers (running means) and the random generator."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with torch.random.fork_rng():
            yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])


def call_with(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, Sequence) and not isinstance(inputs, torch.Tensor):
        return model(*inputs)
    return model(inputs)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def saved_bytes(model: nn.Module, inputs: Any) -> SavedBytes:
    """Runs ``model`` forward once and measures what autograd keeps for backward, by layer.

    ``inputs`` is a tensor, a sequence of arguments or a dict of keyword arguments. The model's
    state that a forward pass changes (running means, the random generator) is put back.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"[saved_bytes] expected model to be a module, got {type(model).__name__}")
    result = SavedBytes()
    layer_stack = [""]
    seen: dict[int, torch.Tensor] = {}
    lives_anyway = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key not in lives_anyway and key not in seen and storage.nbytes() > 0:
            seen[key] = tensor.detach()  # held, so that no other storage can have its address
            layer = layer_stack[-1]
            result.by_layer[layer] = result.by_layer.get(layer, 0) + storage.nbytes()
            result.total += storage.nbytes()
        return tensor

    def leave(*_) -> None:
        layer_stack.pop()

    handles = []
    for name, module in model.named_modules():
        handles.append(
            module.register_forward_pre_hook(lambda *_, name=name: layer_stack.append(name))
        )
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        with (
            undisturbed(model),
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        ):
            call_with(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return result
