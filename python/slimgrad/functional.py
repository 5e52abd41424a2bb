"""torch.nn.functional's activations with a few bits kept for backward.

Every function takes torch's arguments and ``bits``: 1 to 4, or "exact" for gelu, silu and mish. The
result is torch's to the last bit; the gradient is the incoming one times a level of the step table.
What is kept is ``bits`` bits an element; the input is not kept. A second backward raises.

relu, leaky_relu, threshold, relu6, hardtanh, hardsigmoid, hardshrink and softshrink have a piecewise
constant derivative: they are exact and keep the 1 or 2 bits that takes, whatever ``bits`` says.

``interval`` and ``weight`` choose the step table, as in ``sg.steps``. The default weight is "normal".
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ._library import ops
from .fewbit import INTERVAL, WEIGHT, check_bits, table_for
from .step_tables import StepTable

Bits = int | str


def _activate(
    x: torch.Tensor,
    name: str,
    bits: int,
    interval: tuple[float, float],
    weight: str,
    inplace: bool = False,
    params: dict[str, float] | None = None,
    extra: tuple[float, ...] = (),
) -> torch.Tensor:
    """``params`` shape the derivative; ``extra`` are further arguments of torch's function."""
    params = params or {}
    check_bits(name, bits)
    table = table_for(name, params, bits, interval, weight)
    arguments = [float(value) for value in params.values()] + [float(value) for value in extra]
    op = ops.fewbit_activation_ if inplace else ops.fewbit_activation
    return op(x, name, arguments, table.borders, table.levels, table.even)


def _exact(x: torch.Tensor, name: str, bits: Bits, inplace: bool = False) -> bool:
    if bits != "exact":
        return False
    if inplace:
        raise ValueError(f'[{name}] expected inplace=False with bits="exact", got inplace=True')
    return True


def relu(x, inplace=False, bits=1):
    return _activate(x, "relu", bits, INTERVAL, WEIGHT, inplace)


def leaky_relu(x, negative_slope=0.01, inplace=False, bits=1):
    return _activate(
        x, "leaky_relu", bits, INTERVAL, WEIGHT, inplace, {"negative_slope": negative_slope}
    )


def rrelu(x, lower=1.0 / 8, upper=1.0 / 3, training=False, inplace=False, bits=1):
    """In evaluation a leaky_relu. In training torch's own: its slope is random for each element."""
    if training:
        return torch.nn.functional.rrelu(x, lower, upper, True, inplace)
    return leaky_relu(x, (lower + upper) / 2, inplace, bits)


def threshold(x, threshold, value, inplace=False, bits=1):
    return _activate(
        x, "threshold", bits, INTERVAL, WEIGHT, inplace, {"threshold": threshold}, (value,)
    )


def relu6(x, inplace=False, bits=2):
    return _activate(x, "relu6", bits, INTERVAL, WEIGHT, inplace)


def hardtanh(x, min_val=-1.0, max_val=1.0, inplace=False, bits=2):
    if min_val > max_val:
        raise ValueError(f"[hardtanh] expected min_val <= max_val, got {min_val} and {max_val}")
    params = {"min_val": min_val, "max_val": max_val}
    return _activate(x, "hardtanh", bits, INTERVAL, WEIGHT, inplace, params)


def hardsigmoid(x, inplace=False, bits=1):
    return _activate(x, "hardsigmoid", bits, INTERVAL, WEIGHT, inplace)


def hardshrink(x, lambd=0.5, bits=1):
    return _activate(x, "hardshrink", bits, INTERVAL, WEIGHT, params={"lambd": lambd})


def softshrink(x, lambd=0.5, bits=1):
    return _activate(x, "softshrink", bits, INTERVAL, WEIGHT, params={"lambd": lambd})


def gelu(x, approximate="none", bits: Bits = 3, interval=INTERVAL, weight=WEIGHT):
    names = {"none": "gelu", "tanh": "gelu_tanh"}
    if approximate not in names:
        raise ValueError(f"[gelu] expected approximate to be none or tanh, got {approximate!r}")
    name = names[approximate]
    if _exact(x, name, bits):
        return ops.invertible_activation(x, name)
    return _activate(x, name, bits, interval, weight)


def quick_gelu(x, bits=3, interval=INTERVAL, weight=WEIGHT):
    """x * sigmoid(1.702 x), as CLIP has it."""
    return _activate(x, "quick_gelu", bits, interval, weight)


def silu(x, inplace=False, bits: Bits = 3, interval=INTERVAL, weight=WEIGHT):
    if _exact(x, "silu", bits, inplace):
        return ops.invertible_activation(x, "silu")
    return _activate(x, "silu", bits, interval, weight, inplace)


def mish(x, inplace=False, bits: Bits = 3, interval=INTERVAL, weight=WEIGHT):
    if _exact(x, "mish", bits, inplace):
        return ops.invertible_activation(x, "mish")
    return _activate(x, "mish", bits, interval, weight, inplace)


def hardswish(x, inplace=False, bits=3, interval=INTERVAL, weight=WEIGHT):
    return _activate(x, "hardswish", bits, interval, weight, inplace)


def sigmoid(x, bits=3, interval=INTERVAL, weight=WEIGHT):
    return _activate(x, "sigmoid", bits, interval, weight)


def logsigmoid(x, bits=3, interval=INTERVAL, weight=WEIGHT):
    return _activate(x, "logsigmoid", bits, interval, weight)


def tanh(x, bits=3, interval=INTERVAL, weight=WEIGHT):
    return _activate(x, "tanh", bits, interval, weight)


def tanhshrink(x, bits=3, interval=INTERVAL, weight=WEIGHT):
    return _activate(x, "tanhshrink", bits, interval, weight)


def softsign(x, bits=3, interval=INTERVAL, weight=WEIGHT):
    return _activate(x, "softsign", bits, interval, weight)


def softplus(x, beta=1.0, threshold=20.0, bits=3, interval=INTERVAL, weight=WEIGHT):
    params = {"beta": beta}
    return _activate(x, "softplus", bits, interval, weight, params=params, extra=(threshold,))


def elu(x, alpha=1.0, inplace=False, bits=3, interval=INTERVAL, weight=WEIGHT):
    return _activate(x, "elu", bits, interval, weight, inplace, {"alpha": alpha})


def celu(x, alpha=1.0, inplace=False, bits=3, interval=INTERVAL, weight=WEIGHT):
    return _activate(x, "celu", bits, interval, weight, inplace, {"alpha": alpha})


def selu(x, inplace=False, bits=3, interval=INTERVAL, weight=WEIGHT):
    return _activate(x, "selu", bits, interval, weight, inplace)


class _Stepwise(torch.autograd.Function):
    """f(x) forward, level(x) * gradient backward; ``reference`` is what is coded, x or a mask."""

    @staticmethod
    def forward(ctx, x, function, borders, levels, even):
        codes = ops.stepwise_codes(x, borders, even)
        y = function(x)
        if y.shape != x.shape or y.dtype != x.dtype:
            raise ValueError(
                f"[stepwise] expected f to keep shape and dtype {tuple(x.shape)} {x.dtype}, "
                f"got {tuple(y.shape)} {y.dtype}"
            )
        ctx.save_for_backward(codes)
        ctx.levels = levels
        ctx.strides = torch.empty_like(x, device="meta").stride()
        return y

    @staticmethod
    def backward(ctx, grad):
        (codes,) = ctx.saved_tensors
        return ops.stepwise_backward(grad, codes, ctx.levels, ctx.strides), None, None, None, None


def stepwise(
    x: torch.Tensor, f: Callable[[torch.Tensor], torch.Tensor], table: StepTable
) -> torch.Tensor:
    """f(x) for any pointwise f, with the gradient of a step table: see ``sg.step_table``.

    f runs without autograd and must not change x.
    """
    return _Stepwise.apply(x, f, list(table.borders), list(table.levels), table.even)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p):
        # torch's own recipe and random numbers. Its noise is one float an element; one bit is kept.
        noise = torch.empty_like(x).bernoulli_(1 - p)
        codes = ops.stepwise_codes(noise, [0.5], False)
        noise.div_(1 - p)
        ctx.save_for_backward(codes)
        ctx.scale = torch.ones((), dtype=x.dtype).div_(1 - p).item()
        ctx.strides = noise.stride()
        return x * noise

    @staticmethod
    def backward(ctx, grad):
        (codes,) = ctx.saved_tensors
        return ops.stepwise_backward(grad, codes, [0.0, ctx.scale], ctx.strides), None


def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True) -> torch.Tensor:
    """torch's dropout, same mask for the same seed, exact; keeps one bit an element, not a float."""
    if not 0 <= p <= 1:
        raise ValueError(f"[dropout] expected a probability, got {p}")
    if not training or p == 0 or p == 1 or not (torch.is_grad_enabled() and x.requires_grad):
        return torch.nn.functional.dropout(x, p, training)
    return _Dropout.apply(x, p)
