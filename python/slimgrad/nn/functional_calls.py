"""Activations that a forward calls as functions, ``F.gelu(x)``: they cannot be exchanged from
outside, but a forward pass with sample inputs sees every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..saved.saved_bytes import call_with, undisturbed

FUNCTION_NAMES = {
    "relu", "leaky_relu", "prelu", "threshold", "relu6", "hardtanh", "hardsigmoid", "hardshrink",
    "softshrink", "gelu", "silu", "mish", "hardswish", "sigmoid", "logsigmoid", "log_sigmoid",
    "tanh", "tanhshrink", "softsign", "softplus", "elu", "celu", "selu", "rrelu", "dropout",
    "max_pool2d",
}  # fmt: skip


class _FunctionalCalls(TorchFunctionMode):
    """Counts activation calls that do not come from inside a converted or known module."""

    def __init__(self, inside: list[str]):
        super().__init__()
        self.inside = inside
        self.found: dict[tuple[str, str], int] = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        is_activation = name.rstrip("_") in FUNCTION_NAMES
        if (
            is_activation
            and self.inside
            and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
        ):
            key = (self.inside[-1], name)
            self.found[key] = self.found.get(key, 0) + 1
        return func(*args, **(kwargs or {}))


def find_functional_calls(
    model: nn.Module, inputs: Any, is_known: Callable[[nn.Module], bool]
) -> list[tuple[str, str]]:
    """(layer, function) for every activation that a forward pass calls as a function.

    Calls that known modules make (torch.nn's activations, converted ones) are theirs, and not
    listed. A call made in C++, as on the fast path of nn.TransformerEncoderLayer, is not seen.
    """
    inside: list[str] = []
    mode = _FunctionalCalls(inside)

    def leave(*_) -> None:
        inside.pop()

    handles = []
    for name, module in model.named_modules():
        known = is_known(module)

        # The empty name: calls inside a known activation are not counted.
        def enter(*_, name=name, known=known):
            inside.append("" if known else name or "(model)")

        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        with undisturbed(model), torch.enable_grad(), mode:
            call_with(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return [key for key in mode.found if key[0]]
