"""torch.nn.functional's activations with a few bits kept for backward.

Every function takes torch's arguments and ``bits``: 1 to 4, or "exact" for gelu, silu and mish. The
result is torch's to the last bit; the gradient is the incoming one times a level of the step table.
``bits`` bits per element are kept; the input is not. A second backward raises.

relu, leaky_relu, threshold, relu6, hardtanh, hardsigmoid, hardshrink and softshrink have a
piecewise constant derivative: they are exact and keep the 1 or 2 bits that takes, whatever ``bits``
says.

``interval`` and ``weight`` choose the step table, as in ``sg.steps``; by default (-10, 10) and
"normal". Beyond the outermost borders the gradient is multiplied with a constant, not with a slope
that vanishes (sigmoid with 3 bits: 0.0663): put no loss behind that divides by the slope, such as
BCELoss behind sigmoid or atanh behind tanh. docs/activations.md has the tails of all tables and
how far each is off at most.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ._library import ops
from ._support import dense_tensor, number, refuse_forward_mode
from .nn.step_tables import (
    WEIGHT,
    check_bits,
    check_no_table,
    check_stepwise,
    constant,
    table_for,
)
from .tensors.step_tables import StepTable

__all__ = [
    "celu",
    "dropout",
    "elu",
    "gelu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "logsigmoid",
    "max_pool2d",
    "mish",
    "prelu",
    "quick_gelu",
    "relu",
    "relu6",
    "rrelu",
    "selu",
    "sigmoid",
    "silu",
    "softplus",
    "softshrink",
    "softsign",
    "stepwise",
    "tanh",
    "tanhshrink",
    "threshold",
]

Bits = int | str


def _activate(
    x: torch.Tensor,
    name: str,
    bits: Bits,
    interval: tuple[float, float] | None,
    weight: str,
    inplace: bool = False,
    params: dict[str, float] | None = None,
    extra: dict[str, float] | None = None,
    op: str = "",
) -> torch.Tensor:
    """``params`` are the arguments that the derivative depends on; ``extra`` are further arguments
    of torch's function. ``op``: the public function, if it is not called ``name``."""
    params, extra, op = params or {}, extra or {}, op or name
    dense_tensor(x, op)
    refuse_forward_mode()
    table = table_for(name, params, check_bits(op, bits), interval, weight, op=op)
    arguments = [number(constant(value), op, key) for key, value in (params | extra).items()]
    if inplace:
        ops.fewbit_activation_(x, name, arguments, table.borders, table.levels, table.even)
        return x
    return ops.fewbit_activation(x, name, arguments, table.borders, table.levels, table.even)


def _exact(
    x: torch.Tensor, name: str, bits: Bits, interval, weight: str, inplace: bool = False
) -> bool:
    if bits != "exact":
        return False
    check_no_table(name, interval, weight)
    dense_tensor(x, name)
    refuse_forward_mode()
    if inplace:
        raise ValueError(f'[{name}] expected inplace=False with bits="exact", got inplace=True')
    return True


def relu(x, inplace=False, bits=1):
    return _activate(x, "relu", bits, None, WEIGHT, inplace)


def leaky_relu(x, negative_slope=0.01, inplace=False, bits=1):
    return _activate(
        x, "leaky_relu", bits, None, WEIGHT, inplace, {"negative_slope": negative_slope}
    )


def rrelu(x, lower=1.0 / 8, upper=1.0 / 3, training=False, inplace=False, bits=1):
    """In evaluation a leaky_relu. In training torch's own: its slope is random for each element."""
    dense_tensor(x, "rrelu")
    if number(lower, "rrelu", "lower") > number(upper, "rrelu", "upper"):
        raise ValueError(f"[rrelu] expected lower <= upper, got {lower} and {upper}")
    if training:
        return torch.nn.functional.rrelu(x, lower, upper, True, inplace)
    params = {"negative_slope": (lower + upper) / 2}
    return _activate(x, "leaky_relu", bits, None, WEIGHT, inplace, params, op="rrelu")


def threshold(x, threshold, value, inplace=False, bits=1):
    params, extra = {"threshold": threshold}, {"value": value}
    return _activate(x, "threshold", bits, None, WEIGHT, inplace, params, extra)


def relu6(x, inplace=False, bits=2):
    return _activate(x, "relu6", bits, None, WEIGHT, inplace)


def hardtanh(x, min_val=-1.0, max_val=1.0, inplace=False, bits=2):
    if number(min_val, "hardtanh", "min_val") > number(max_val, "hardtanh", "max_val"):
        raise ValueError(f"[hardtanh] expected min_val <= max_val, got {min_val} and {max_val}")
    params = {"min_val": min_val, "max_val": max_val}
    return _activate(x, "hardtanh", bits, None, WEIGHT, inplace, params)


def hardsigmoid(x, inplace=False, bits=1):
    return _activate(x, "hardsigmoid", bits, None, WEIGHT, inplace)


def hardshrink(x, lambd=0.5, bits=1):
    return _activate(x, "hardshrink", bits, None, WEIGHT, params={"lambd": lambd})


def softshrink(x, lambd=0.5, bits=1):
    return _activate(x, "softshrink", bits, None, WEIGHT, params={"lambd": lambd})


def gelu(x, approximate="none", bits: Bits = 3, interval=None, weight=WEIGHT):
    names = {"none": "gelu", "tanh": "gelu_tanh"}
    if approximate not in names:
        raise ValueError(f"[gelu] expected approximate to be none or tanh, got {approximate!r}")
    name = names[approximate]
    if _exact(x, "gelu", bits, interval, weight):
        return ops.invertible_activation(x, name)
    return _activate(x, name, bits, interval, weight, op="gelu")


def quick_gelu(x, bits=3, interval=None, weight=WEIGHT):
    """x * sigmoid(1.702 x), as CLIP has it."""
    return _activate(x, "quick_gelu", bits, interval, weight)


def silu(x, inplace=False, bits: Bits = 3, interval=None, weight=WEIGHT):
    if _exact(x, "silu", bits, interval, weight, inplace):
        return ops.invertible_activation(x, "silu")
    return _activate(x, "silu", bits, interval, weight, inplace)


def mish(x, inplace=False, bits: Bits = 3, interval=None, weight=WEIGHT):
    if _exact(x, "mish", bits, interval, weight, inplace):
        return ops.invertible_activation(x, "mish")
    return _activate(x, "mish", bits, interval, weight, inplace)


def hardswish(x, inplace=False, bits=3, interval=None, weight=WEIGHT):
    return _activate(x, "hardswish", bits, interval, weight, inplace)


def sigmoid(x, bits=3, interval=None, weight=WEIGHT):
    return _activate(x, "sigmoid", bits, interval, weight)


def logsigmoid(x, bits=3, interval=None, weight=WEIGHT):
    return _activate(x, "logsigmoid", bits, interval, weight)


def tanh(x, bits=3, interval=None, weight=WEIGHT):
    return _activate(x, "tanh", bits, interval, weight)


def tanhshrink(x, bits=3, interval=None, weight=WEIGHT):
    return _activate(x, "tanhshrink", bits, interval, weight)


def softsign(x, bits=3, interval=None, weight=WEIGHT):
    return _activate(x, "softsign", bits, interval, weight)


def softplus(x, beta=1.0, threshold=20.0, bits=3, interval=None, weight=WEIGHT):
    params = {"beta": beta, "threshold": threshold}
    return _activate(x, "softplus", bits, interval, weight, params=params)


def elu(x, alpha=1.0, inplace=False, bits=3, interval=None, weight=WEIGHT):
    return _activate(x, "elu", bits, interval, weight, inplace, {"alpha": alpha})


def celu(x, alpha=1.0, inplace=False, bits=3, interval=None, weight=WEIGHT):
    return _activate(x, "celu", bits, interval, weight, inplace, {"alpha": alpha})


def selu(x, inplace=False, bits=3, interval=None, weight=WEIGHT):
    return _activate(x, "selu", bits, interval, weight, inplace)


class _Stepwise(torch.autograd.Function):
    """f(x) forward, level(x) * gradient backward."""

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
    """f(x) for any pointwise f, with the gradient of a step table: see ``sg.steps``.

    f runs without autograd and must not change x.
    """
    dense_tensor(x, "stepwise")
    check_stepwise(f, table, "stepwise")
    return _Stepwise.apply(x, f, list(table.borders), list(table.levels), table.even)


def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True) -> torch.Tensor:
    """torch's dropout, with the same mask for the same seed; keeps one bit per element."""
    p = number(constant(p), "dropout", "p")
    return ops.dropout(dense_tensor(x, "dropout"), p, training)


def prelu(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """torch's prelu with a weight that takes no gradient; keeps one bit per element."""
    return ops.prelu(dense_tensor(x, "prelu"), dense_tensor(weight, "prelu", "weight"))


def max_pool2d(
    x: torch.Tensor,
    kernel_size,
    stride=None,
    padding=0,
    dilation=1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> torch.Tensor:
    """torch's max_pool2d, exact; keeps 4 bits per output. Windows of more than 16 elements, and
    calls with return_indices=True, are torch's own."""
    dense_tensor(x, "max_pool2d")
    for name, value in (("kernel_size", kernel_size), ("padding", padding), ("dilation", dilation)):
        if not isinstance(value, int | tuple | list):
            raise TypeError(
                f"[max_pool2d] expected {name} to be an integer or a pair, got {value!r}"
            )
    if return_indices:
        return torch.nn.functional.max_pool2d(  # type: ignore[return-value]
            x, kernel_size, stride, padding, dilation, ceil_mode, True
        )
    stride = [] if stride is None else stride
    return ops.max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode)
