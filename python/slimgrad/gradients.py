"""What to do with neural gradients: Prune and Quantize, the settings that compress() takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from .formats import FloatFormat, as_format
from .plan import METHODS, PRUNE_KINDS, ROUNDINGS, SCALE_METHODS, UNDERFLOWS, Plan, choice

ALLOCATIONS = ("uniform", "min_cosine", "mean_cosine", "mean_error", "total_error")


@dataclass(frozen=True)
class Prune:
    """Stochastic pruning of neural gradients to a sparsity.

    sparsity: the fraction of zeros, for every layer or, with an allocation, overall.
    method: how the threshold is found: "empirical" (exact for any tensor), "lognormal" (the paper),
        "gennorm", "normal" (the ATP baseline) or "mean".
    allocation: "uniform" gives every layer the same sparsity; "min_cosine", "mean_cosine",
        "mean_error" and "total_error" spread it so that the damage is least.
    cap: no layer is pruned further than this by an allocation.
    kind: "stochastic", or for comparison "topk" (deterministic, biased) and "topk_stochastic".
    """

    sparsity: float
    method: str = "empirical"
    allocation: str = "uniform"
    cap: float = 0.98
    kind: str = "stochastic"

    def __post_init__(self):
        if not 0 <= self.sparsity < 1:
            raise ValueError(f"[Prune] expected 0 <= sparsity < 1, got {self.sparsity}")
        if not 0 < self.cap <= 1:
            raise ValueError(f"[Prune] expected 0 < cap <= 1, got {self.cap}")
        choice(self.method, METHODS, "method")
        choice(self.allocation, ALLOCATIONS, "allocation")
        choice(self.kind, PRUNE_KINDS[1:], "kind")

    def write(self, plan: torch.Tensor) -> None:
        plan[Plan.PRUNE] = PRUNE_KINDS.index(self.kind)
        plan[Plan.SPARSITY] = self.sparsity
        plan[Plan.METHOD] = METHODS.index(self.method)


@dataclass(frozen=True)
class LossScale:
    """The baseline to per-layer scales: one scale for all layers, as in global loss scaling.

    Quantizing a gradient at loss scale L is quantizing it at grid scale 1/L. A dynamic one is
    halved when a gradient exceeds the grid and doubled after `growth_interval` steps without.
    """

    value: float = 2.0**16
    dynamic: bool = False
    growth_interval: int = 2000

    def __post_init__(self):
        if not (self.value > 0 and self.value < float("inf")):
            raise ValueError(f"[LossScale] expected a positive finite value, got {self.value}")
        if self.growth_interval < 1:
            raise ValueError(
                f"[LossScale] expected growth_interval >= 1, got {self.growth_interval}"
            )


@dataclass(frozen=True)
class Quantize:
    """Rounding of neural gradients to a low-bit float format.

    bits: 2 to 8; the exponent/mantissa split follows each layer's measured spread. Or
    format: a fixed split such as "1-4-1".
    scale: "max", "predicted" or "error" (per layer), or a LossScale (one for all, a baseline).
    rounding: "nearest" or "stochastic"; underflow: "zero" or "stochastic". By default formats of
        at most 5 bits use the stochastic ones, which keep the gradient unbiased; wider ones do not
        need them.
    """

    bits: int | None = None
    format: FloatFormat | str | None = None
    scale: str | LossScale = "max"
    rounding: str | None = None
    underflow: str | None = None

    def __post_init__(self):
        if (self.bits is None) == (self.format is None):
            raise ValueError("[Quantize] expected either bits or format")
        if self.format is not None:
            object.__setattr__(self, "format", as_format(self.format))
            object.__setattr__(self, "bits", self.format.bits)
        if not 2 <= self.bits <= 8:
            raise ValueError(f"[Quantize] expected 2 to 8 bits, got {self.bits}")
        default = "stochastic" if self.bits <= 5 else None
        object.__setattr__(self, "rounding", self.rounding or default or "nearest")
        object.__setattr__(self, "underflow", self.underflow or default or "zero")
        choice(self.rounding, ROUNDINGS, "rounding")
        choice(self.underflow, UNDERFLOWS, "underflow")
        if not isinstance(self.scale, LossScale):
            choice(self.scale, SCALE_METHODS, "scale")

    def write(self, plan: torch.Tensor) -> None:
        plan[Plan.BITS] = self.bits
        if self.format is not None:
            plan[Plan.EXPONENT_BITS] = self.format.exponent_bits
            plan[Plan.MANTISSA_BITS] = self.format.mantissa_bits
        if isinstance(self.scale, LossScale):
            plan[Plan.FIXED_SCALE] = 1 / self.scale.value
        else:
            plan[Plan.SCALE_METHOD] = SCALE_METHODS.index(self.scale)
        plan[Plan.ROUNDING] = ROUNDINGS.index(self.rounding)
        plan[Plan.UNDERFLOW] = UNDERFLOWS.index(self.underflow)


def parse_gradients(what) -> tuple[Prune | None, Quantize | None]:
    """ "fp6", a Prune, a Quantize, or several of them, as (Prune, Quantize)."""
    prune = quantize = None
    items = what if isinstance(what, Iterable) and not isinstance(what, str) else [what]
    for item in items:
        if isinstance(item, str):
            if not (item.startswith("fp") and item[2:].isdigit()):
                raise ValueError(f"[compress] expected gradients such as 'fp6', got {item!r}")
            item = Quantize(bits=int(item[2:]))
        if isinstance(item, Prune) and prune is None:
            prune = item
        elif isinstance(item, Quantize) and quantize is None:
            quantize = item
        else:
            raise ValueError(
                "[compress] expected gradients to be 'fp4' to 'fp8', a Prune, a Quantize, or one "
                f"of each in a list; got {what!r}"
            )
    return prune, quantize
