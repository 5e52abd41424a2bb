"""measure: the statistics of a tensor, in one pass."""

from __future__ import annotations

from typing import Any

import torch

from .._library import ops
from .._support import in_the_name_of, number, tensor_with_values

_COUNTS, _NUMBERS = ops.stats_fields()
_FIELDS = (*_COUNTS, *_NUMBERS)


class TensorStats:
    """Statistics of one tensor. All logarithms are natural.

    Attributes:
        count, zeros, nonfinite: numbers of elements; Inf and NaN enter nothing else.
        zero_fraction: zeros over finite values.
        log_mean, log_std: of ln|x| over the finite non-zeros.
        max_abs, mean_abs, mean_square: over the finite values, zeros included.
        histogram: counts of non-zero magnitudes, eight bins per octave; a sample of a
            large tensor.
        tensor: all of the above as one float64 tensor, the argument of the ops.
    """

    count: int
    zeros: int
    nonfinite: int
    zero_fraction: float
    log_mean: float
    log_std: float
    max_abs: float
    mean_abs: float
    mean_square: float

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor
        for name, value in zip(_FIELDS, tensor[: len(_FIELDS)].tolist(), strict=True):
            setattr(self, name, int(value) if name in _COUNTS else value)

    @property
    def histogram(self) -> torch.Tensor:
        return self.tensor[len(_FIELDS) :]

    @staticmethod
    def histogram_edges() -> torch.Tensor:
        """The lower edge of every bin, and last the upper edge of the last one."""
        return ops.histogram_edges()

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name):.6g}" for name in _FIELDS)
        return f"TensorStats({fields})"


def measure(x: torch.Tensor) -> TensorStats:
    """All statistics of ``x`` in one pass. ``x`` is float32, bfloat16 or float16, of any layout.

    The result does not depend on the number of threads. Above 2**21 elements the histogram is a
    sample; everything else still sees every value.
    """
    return TensorStats(ops.measure(tensor_with_values(x, "measure")))


def stats_tensor(what: TensorStats | dict[str, Any], op: str) -> torch.Tensor:
    """The tensor behind statistics, or behind the parameters of a lognormal."""
    if isinstance(what, TensorStats):
        return what.tensor
    if not isinstance(what, dict):
        raise ValueError(
            f"[{op}] expected TensorStats, or a dict with log_mean, log_std and, if there are "
            f"zeros, zero_fraction, got {type(what).__name__}"
        )
    unknown = set(what) - {"log_mean", "log_std", "zero_fraction", "count"}
    missing = {"log_mean", "log_std"} - set(what)
    if unknown or missing:
        raise ValueError(
            f"[{op}] expected a dict with log_mean, log_std and optionally zero_fraction and "
            f"count, got {sorted(what)}"
        )
    with in_the_name_of(op):
        return ops.lognormal_stats(
            number(what["log_mean"], op, "log_mean"),
            number(what["log_std"], op, "log_std"),
            number(what.get("zero_fraction", 0.0), op, "zero_fraction"),
            int(number(what.get("count", 1 << 20), op, "count")),
        )
