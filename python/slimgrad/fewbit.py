"""Step tables as the few-bit layers use them: found once, kept, and made from any function.

The default weight is the standard normal density: activations mostly see normalised inputs, and
there a 3-bit GELU table made for N(0, 1) has about half the error of one made for a uniform law.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from ._library import ops
from .step_tables import StepTable

INTERVAL = (-10.0, 10.0)
WEIGHT = "normal"


def check_bits(op: str, bits: object) -> int:
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 4:
        raise ValueError(f"[{op}] expected bits to be 1, 2, 3 or 4, got {bits!r}")
    return bits


def constant(value):
    """A number that a table depends on. ``torch.compile(dynamic=True)`` makes a symbol
    of a number that is passed in; here it becomes a constant again, with a guard."""
    if torch.compiler.is_compiling():
        from torch.fx.experimental.symbolic_shapes import guard_scalar

        return guard_scalar(value)
    return value


@cache
def _kept_table(
    name: str,
    params: tuple[tuple[str, float], ...],
    bits: int,
    interval: tuple[float, float],
    weight: str,
) -> StepTable:
    names, values = [key for key, _ in params], [value for _, value in params]
    return StepTable(*ops.activation_steps(name, names, values, bits, *interval, weight))


@torch.compiler.assume_constant_result  # for torch.compile: a constant of the graph
def _table(name, params, bits, interval, weight) -> StepTable:
    return _kept_table(name, params, bits, interval, weight)


def table_for(
    name: str,
    params: dict[str, float],
    bits: int,
    interval: tuple[float, float] | None = None,
    weight: str = WEIGHT,
) -> StepTable:
    """The table of an activation, from the cache if it has been asked for before.

    Where the derivative is piecewise constant the table is exact and has the 1 or 2 bits that
    takes, whatever ``bits`` says.
    """
    constants = tuple((key, float(constant(value))) for key, value in params.items())
    low, high = INTERVAL if interval is None else interval
    interval = (float(constant(low)), float(constant(high)))
    return _table(name, constants, constant(bits), interval, weight)


def step_table(
    function: Callable[[torch.Tensor], torch.Tensor],
    bits: int = 3,
    interval: tuple[float, float] = INTERVAL,
    weight: str = WEIGHT,
    even: bool = False,
    num_samples: int = 8193,
) -> StepTable:
    """The best step table for the derivative of a pointwise Python function.

    The derivative is taken by autograd in float64 at ``num_samples`` points of ``interval`` and
    joined by straight lines, so a jump is smeared over one of these cells. ``even=True`` promises
    f'(-x) = f'(x): the table is then one over |x|, with twice the resolution.
    """
    check_bits("step_table", bits)
    low, high = float(interval[0]), float(interval[1])
    with torch.enable_grad():
        x = torch.linspace(low, high, num_samples, dtype=torch.float64, requires_grad=True)
        y = function(x)
        if not isinstance(y, torch.Tensor) or y.shape != x.shape:
            raise ValueError(
                f"[step_table] expected a pointwise function, got {getattr(y, 'shape', type(y))} "
                f"for an input of shape {tuple(x.shape)}"
            )
        (slope,) = torch.autograd.grad(y.sum(), x)
    return StepTable(*ops.sampled_steps(slope, bits, low, high, weight, even))
