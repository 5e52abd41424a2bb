"""steps: the best step function for an activation's derivative."""

from __future__ import annotations

from dataclasses import dataclass

from ._arguments import pair_of_numbers, text
from ._library import ops


@dataclass(frozen=True)
class StepTable:
    """``levels[i]`` holds for ``borders[i-1] < x <= borders[i]``; of |x| if ``even``."""

    borders: list[float]
    levels: list[float]
    error: float
    even: bool


def steps(
    activation: str,
    bits: int = 3,
    interval: tuple[float, float] = (-10.0, 10.0),
    weight: str = "uniform",
) -> StepTable:
    """The 2**bits constant pieces that approximate the activation's derivative best.

    ``weight`` is "uniform" on the interval or "normal", the better choice for normalised inputs.
    """
    text(activation, "steps", "activation")
    text(weight, "steps", "weight")
    if isinstance(bits, bool) or not isinstance(bits, int):
        raise TypeError(f"[steps] expected bits to be an integer, got {type(bits).__name__}")
    low, high = pair_of_numbers(interval, "steps", "interval")
    borders, levels, error, even = ops.steps(activation, bits, low, high, weight)
    return StepTable(borders.tolist(), levels.tolist(), error, even)
