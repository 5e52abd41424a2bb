"""Linear layers whose weight gradient reads their packed input, some rows at a time.

What autograd saves is unpacked in full by whoever needs it. The weight gradient of a linear layer
does not need that: it is a sum over rows, so that a tile of them in the cache is enough. All else
is as with the hooks alone: the same words, packed once for all that save the tensor, counted by
the same tally, and given up by autograd when backward has used them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from .._library import ops
from .handles import Packed, Plain, Words, _check_version, refuse_second_derivatives

if TYPE_CHECKING:
    from .keeper import Keeper

# From how many rows on; None, the default: never. A product by tiles is as fast as that of an
# unpacked input from 8192 rows on, but the peaks that were measured are those of other nodes, and a
# mode costs every function that is called (docs/kept.md).
LEAST_ROWS: int | None = None


class ReadsPacked(TorchFunctionMode):
    """While it is entered, F.linear keeps words that its backward reads, where that pays."""

    def __init__(self, keeper: Keeper):
        super().__init__()
        self._keeper = keeper

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is not F.linear or torch.compiler.is_compiling():
            return function(*args, **kwargs)
        return _linear(self._keeper, *args, **kwargs)


def _linear(
    keeper: Keeper, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    if not _pays(input, weight) or not _saves(keeper):
        return F.linear(input, weight, bias)
    # Held until the end: if autograd saves the input itself, it finds the words that are there.
    handle = keeper.pack(input)
    if not _is_readable(handle):
        return F.linear(input, weight, bias)
    words = handle.words

    def pack(tensor: torch.Tensor) -> _Held | Plain:
        return _Held(words) if tensor is words.tensor else Plain(tensor)

    with torch.autograd.graph.saved_tensors_hooks(pack, _unpack):
        return _PackedLinear.apply(input, weight, bias, words.tensor, words.bits, words.group)


def _pays(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the input is worth it, and plain enough. Under autocast it would be that of another
    type than what the product takes."""
    return (
        torch.is_grad_enabled()
        and type(x) is torch.Tensor
        and type(weight) in (torch.Tensor, torch.nn.Parameter)
        and weight.requires_grad
        and x.grad_fn is not None
        and x.dim() >= 2
        and x.shape[-1] > 0
        and LEAST_ROWS is not None
        and x.numel() >= LEAST_ROWS * x.shape[-1]
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and x.is_contiguous()
        and not torch.is_autocast_enabled("cpu")
    )


def _saves(keeper: Keeper) -> bool:
    """Whether its hooks are the innermost: not so inside a checkpoint, or what is excluded."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None and getattr(hooks[0], "__self__", None) is keeper


def _is_readable(handle: Any) -> bool:
    """Not so in a pass that a budget measures, which looks at what is unpacked."""
    return (
        isinstance(handle, Packed)
        and isinstance(handle.words.bits, int)
        and handle.words.met is None
    )


class _Held:
    """Words as autograd holds them. All of them, so that others who save the tensor find them."""

    __slots__ = ("words",)

    def __init__(self, words: Words):
        self.words = words

    def unpack(self) -> torch.Tensor:
        _check_version(self.words.tensor, self.words.version, "the input of a linear layer")
        return self.words.tensor


def _unpack(held: _Held | Plain) -> torch.Tensor:
    return held.unpack()


class _PackedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, packed, bits, group):
        ctx.save_for_backward(packed, weight)
        ctx.format = bits, group
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        packed, weight = ctx.saved_tensors
        refuse_second_derivatives()
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = gradient.matmul(weight)
        if ctx.needs_input_grad[1]:
            of_weight = ops.kept_weight_gradient(gradient, packed, weight.shape[1], *ctx.format)
        if ctx.needs_input_grad[2]:
            of_bias = gradient.flatten(0, -2).sum(0)
        return of_x, of_weight, of_bias, None, None, None
