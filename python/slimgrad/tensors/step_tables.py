"""steps: the best step function for an activation's derivative."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .._library import ops
from .._support import in_the_name_of, pair_of_numbers, text, whole_number


@dataclass(frozen=True)
class StepTable:
    """``levels[i]`` holds for ``borders[i-1] < x <= borders[i]``, or for |x| if ``even``."""

    borders: list[float]
    levels: list[float]
    error: float
    even: bool


def _slopes(
    function: Callable[[torch.Tensor], torch.Tensor], low: float, high: float, num_samples: int
) -> torch.Tensor:
    """The derivative at equal distances."""
    with torch.enable_grad():
        x = torch.linspace(low, high, num_samples, dtype=torch.float64, requires_grad=True)
        y = function(x)
        if not isinstance(y, torch.Tensor) or y.shape != x.shape:
            raise ValueError(
                f"[steps] expected a pointwise function, got {getattr(y, 'shape', type(y))} "
                f"for an input of shape {tuple(x.shape)}"
            )
        return torch.autograd.grad(y.sum(), x)[0]


def steps(
    activation: str | Callable[[torch.Tensor], torch.Tensor],
    bits: int = 3,
    interval: tuple[float, float] = (-10.0, 10.0),
    weight: str = "uniform",
    *,
    even: bool = False,
    num_samples: int = 8193,
) -> StepTable:
    """The 2**bits constant pieces that approximate the derivative of an activation best.

    activation: its name, or a pointwise function of a tensor. The derivative of a function is taken
        by autograd in float64 at ``num_samples`` points of ``interval`` and joined by straight
        lines, so a jump is smeared over one of these cells.
    weight: "uniform" on the interval or "normal", the better choice for normalised inputs.
    even: promises f'(-x) = f'(x) of a function: the table is then one over |x|, with twice the
        resolution. For activations given by name it is known.
    """
    text(weight, "steps", "weight")
    whole_number(bits, "steps", "bits")
    low, high = pair_of_numbers(interval, "steps", "interval")
    if callable(activation):
        if whole_number(num_samples, "steps", "num_samples") < 2:
            raise ValueError(f"[steps] expected num_samples >= 2, got {num_samples}")
        slopes = _slopes(activation, low, high, num_samples)
        with in_the_name_of("steps"):
            return StepTable(*ops.sampled_steps(slopes, bits, low, high, weight, even))
    text(activation, "steps", "activation")
    if even:
        raise ValueError(f"[steps] expected even=True only with a function, got {activation!r}")
    with in_the_name_of("steps"):
        borders, levels, error, even = ops.steps(activation, bits, low, high, weight)
    return StepTable(borders.tolist(), levels.tolist(), error, even)
