"""quantize, prune and pack: low-bit floats, stochastic sparsity, and real low-bit storage."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

import torch

from .._library import ops
from .._support import check_choice, dense_tensor, number, op_seed
from .formats import FloatFormat, as_format, bits_of_format

P = ParamSpec("P")


# The arguments of the ops after x, from those of the public functions, of which ``op`` is one.


def _quantizing(op, format, scale, rounding="nearest", underflow="zero", seed=None):
    bits, scale = bits_of_format(format, op), number(scale, op, "scale")
    check_choice(rounding, "rounding", op, "rounding")
    check_choice(underflow, "underflow", op, "underflow")
    return *bits, scale, rounding, underflow, op_seed(seed, op)


def _pruning(op, threshold, seed=None):
    return number(threshold, op, "threshold"), op_seed(seed, op)


def _both(op, threshold, format, scale, rounding="nearest", underflow="zero", seed=None):
    threshold = number(threshold, op, "threshold")
    return threshold, *_quantizing(op, format, scale, rounding, underflow, seed)


def _in_place(function: Callable[P, torch.Tensor], op, arguments) -> Callable[P, torch.Tensor]:
    """The version of ``function``, with its signature, that writes to ``x`` and returns it."""
    name = f"{function.__name__}_"

    @functools.wraps(function)
    def run(x, *args, **kwargs):
        op(dense_tensor(x, name), *arguments(name, *args, **kwargs))
        return x

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"``{function.__name__}`` in place; returns ``x``."
    return run  # type: ignore[return-value]


def quantize(
    x: torch.Tensor,
    format: FloatFormat | str,
    scale: float,
    rounding: str = "nearest",
    underflow: str = "zero",
    seed: int | None = None,
) -> torch.Tensor:
    """``x`` rounded to ``scale`` times the grid of ``format``, in the type of ``x``.

    ``rounding``: "nearest", ties to the even code, or "stochastic", unbiased between neighbours.
    ``underflow``: below the smallest grid value "zero", or "stochastic": the smallest value with
    probability |x| / smallest. Stochastic rounding and underflow together are unbiased for all but
    what saturates at the top. NaN and Inf pass through; every zero is +0.

    The result depends on ``seed`` and the elements' order in memory (of a tensor with gaps: on the
    order of its dimensions), never on threads or CPU. Without a seed, what draws takes one from
    torch's generator. There is no derivative: ``x`` must not require a gradient while gradients are
    recorded.
    """
    x = dense_tensor(x, "quantize")
    return ops.quantize(x, *_quantizing("quantize", format, scale, rounding, underflow, seed))


quantize_ = _in_place(quantize, ops.quantize_, _quantizing)


def prune(x: torch.Tensor, threshold: float, seed: int | None = None) -> torch.Tensor:
    """Stochastic pruning: a value with |x| <= threshold becomes +-threshold with probability
    |x| / threshold, else 0, so that its mean stays x. ``threshold`` 0 leaves everything alone.

    For bfloat16 and float16 the threshold is rounded to the type first. Seeds, order, NaN and Inf,
    gradients: as in ``quantize``.
    """
    return ops.prune(dense_tensor(x, "prune"), *_pruning("prune", threshold, seed))


prune_ = _in_place(prune, ops.prune_, _pruning)


def prune_quantize(
    x: torch.Tensor,
    threshold: float,
    format: FloatFormat | str,
    scale: float,
    rounding: str = "nearest",
    underflow: str = "zero",
    seed: int | None = None,
) -> torch.Tensor:
    """``prune`` and then ``quantize``, in one pass that draws once for both.

    Where rounding draws nothing it is ``quantize(prune(x, threshold, seed), ...)``, bit for bit;
    else it has the law of the two with seeds of their own.
    """
    arguments = _both("prune_quantize", threshold, format, scale, rounding, underflow, seed)
    return ops.prune_quantize(dense_tensor(x, "prune_quantize"), *arguments)


prune_quantize_ = _in_place(prune_quantize, ops.prune_quantize_, _both)


class PackedTensor:
    """A tensor with ``format.bits`` bits per element. ``data``: the bytes as a uint8 tensor."""

    def __init__(
        self,
        data: torch.Tensor,
        shape: torch.Size,
        dtype: torch.dtype,
        format: FloatFormat | str,
        scale: float,
    ):
        self.data = data
        self.shape = torch.Size(shape)
        self.dtype = dtype
        self.format = as_format(format, "PackedTensor")
        self.scale = float(scale)

    @property
    def nbytes(self) -> int:
        """ceil(numel * bits / 8)."""
        return self.data.nbytes

    def numel(self) -> int:
        return self.shape.numel()

    def unpack(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The values, contiguous, in the type of the packed tensor or in ``dtype``."""
        return ops.unpack(
            self.data,
            self.shape,
            self.format.exponent_bits,
            self.format.mantissa_bits,
            self.scale,
            dtype or self.dtype,
        )

    def __repr__(self) -> str:
        return (
            f"PackedTensor({tuple(self.shape)}, {self.format}, scale={self.scale:.6g}, "
            f"{self.nbytes} bytes, {self.dtype})"
        )


def pack(
    x: torch.Tensor,
    format: FloatFormat | str,
    scale: float,
    rounding: str = "nearest",
    underflow: str = "zero",
    seed: int | None = None,
) -> PackedTensor:
    """``x`` as codes of exactly ``format.bits`` bits: ``pack(x, ...).unpack()`` is
    ``quantize(x.contiguous(), ...)``, bit for bit. NaN and Inf have no codes and raise."""
    x = dense_tensor(x, "pack")
    data = ops.pack(x, *_quantizing("pack", format, scale, rounding, underflow, seed))
    return PackedTensor(data, x.shape, x.dtype, format, scale)
