"""Step tables as the few-bit layers use them: found once and kept.

The default weight is the standard normal density: activations mostly see normalised inputs, and
there a 3-bit GELU table made for N(0, 1) has about half the error of one made for a uniform law.
"""

from __future__ import annotations

from functools import cache

import torch

from .._library import ops
from .._support import in_the_name_of, number, pair_of_numbers, text
from ..tensors.step_tables import StepTable

INTERVAL = (-10.0, 10.0)
WEIGHT = "normal"


def check_bits(op: str, bits: object, or_exact: bool = False) -> int:
    """or_exact: the caller takes "exact", too, and has looked for it."""
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 4:
        choices = "1, 2, 3, 4 or 'exact'" if or_exact else "1, 2, 3 or 4"
        raise ValueError(f"[{op}] expected bits to be {choices}, got {bits!r}")
    return bits


def check_no_table(op: str, interval: object, weight: str) -> None:
    if interval is not None or weight != WEIGHT:
        raise ValueError(
            f'[{op}] expected neither interval nor weight with bits="exact", which has no step '
            f"table, got interval={interval!r} and weight={weight!r}"
        )


def check_stepwise(f: object, table: object, op: str) -> None:
    if not callable(f):
        raise TypeError(f"[{op}] expected a function of a tensor, got {type(f).__name__}")
    if not isinstance(table, StepTable):
        raise TypeError(
            f"[{op}] expected table to be a StepTable from slimgrad.steps(), got "
            f"{type(table).__name__}"
        )


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
def _table(name, params, bits, interval, weight, op) -> StepTable:
    with in_the_name_of(op):
        return _kept_table(name, params, bits, interval, text(weight, op, "weight"))


def table_for(
    name: str,
    params: dict[str, float],
    bits: int,
    interval: tuple[float, float] | None = None,
    weight: str = WEIGHT,
    *,
    op: str = "steps",
) -> StepTable:
    """The table of an activation, from the cache if it has been asked for before.

    Where the derivative is piecewise constant the table is exact and has the 1 or 2 bits that
    takes, whatever ``bits`` says. ``op``: the function or module that errors name.
    """
    constants = tuple((key, number(constant(value), op, key)) for key, value in params.items())
    low, high = pair_of_numbers(INTERVAL if interval is None else interval, op, "interval")
    interval = (constant(low), constant(high))
    return _table(name, constants, constant(bits), interval, weight, op)
