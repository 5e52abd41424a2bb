"""Low-bit float formats: their grids, their errors, the best one, and the scale for a tensor."""

from __future__ import annotations

import math

import torch

from .._library import ops
from .._support import check_choice, number, pair_of_numbers, whole_number
from .stats import TensorStats, stats_tensor


class FloatFormat:
    """A format by its sign-exponent-mantissa bits: ``FloatFormat("1-5-2")``.

    2 to 8 bits; no subnormals, no Inf, no NaN; above the largest value it saturates.
    """

    def __init__(self, text: str):
        self.exponent_bits, self.mantissa_bits = _parsed(text, "FloatFormat")

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    def values(self) -> list[float]:
        """The non-negative grid at scale 1, ascending; a stored value is scale times one."""
        return ops.format_values(self.exponent_bits, self.mantissa_bits).tolist()

    def __str__(self) -> str:
        return f"1-{self.exponent_bits}-{self.mantissa_bits}"

    def __repr__(self) -> str:
        return f"FloatFormat({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FloatFormat) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


@torch.compiler.assume_constant_result  # so that formats can be made inside torch.compile
def _numbers_in(text: str) -> list[int]:
    return ops.parse_float_choice(text)


def _parsed(text: str, op: str) -> tuple[int, int]:
    """Exponent and mantissa bits."""
    numbers = _numbers_in(text) if isinstance(text, str) else []
    if len(numbers) != 3:
        got = repr(text) if isinstance(text, str) else type(text).__name__
        raise ValueError(
            f"[{op}] expected a format by its sign-exponent-mantissa bits, such as '1-5-2', of 1 "
            f"to 7 exponent bits and at most 8 bits in all, got {got}"
        )
    return numbers[1], numbers[2]


def as_format(format: FloatFormat | str, op: str) -> FloatFormat:
    """``format`` as an object; misuse names ``op``."""
    if isinstance(format, FloatFormat):
        return format
    _parsed(format, op)
    return FloatFormat(format)


def _check_rounding(op: str, rounding: str, underflow: str, error: str) -> None:
    check_choice(rounding, "rounding", op, "rounding")
    check_choice(underflow, "underflow", op, "underflow")
    if error not in ("relative", "squared"):
        raise ValueError(f"[{op}] expected error to be relative or squared, got {error!r}")


def parse_float_choice(text: object) -> int | FloatFormat | None:
    """A float of few bits as users write it: the bits of "fp2" to "fp8", whose split the caller
    chooses for the data at hand; the format of "1-4-1"; None for anything else."""
    numbers = ops.parse_float_choice(text) if isinstance(text, str) else []
    return FloatFormat(str(text)) if len(numbers) == 3 else next(iter(numbers), None)


def bits_of_format(format: FloatFormat | str, op: str) -> tuple[int, int]:
    """As ops take a format; misuse names ``op``."""
    format = as_format(format, op)
    return format.exponent_bits, format.mantissa_bits


def relative_error(format: FloatFormat | str, log2_std: float) -> float:
    """Expected |x_q - x| / |x| of rounding to nearest, for log2|x| ~ N(0, log2_std^2)."""
    format = as_format(format, "relative_error")
    log2_std = number(log2_std, "relative_error", "log2_std")
    return ops.relative_error(format.exponent_bits, format.mantissa_bits, log2_std)


def best_format(
    bits: int,
    what: float | tuple[float, float] | TensorStats,
    method: str | None = None,
    *,
    scale: str = "max",
    rounding: str = "stochastic",
    underflow: str = "stochastic",
    error: str = "relative",
) -> FloatFormat:
    """The split of ``bits`` into exponent and mantissa with the least error.

    what: TensorStats, or the deviation of log2|x|: a number, or a (low, high) range, which is
        evaluated at two thirds of it; that reproduces the lognormal paper's Table 2.
    method: "empirical", the default for TensorStats: on the tensor's histogram, at the scale that
        the format would get, under the rounding and underflow given. "lognormal", the default for a
        deviation: the paper's closed form, which uses nothing else. "normal": as if x itself were
        normal with that deviation, for comparison with the paper's Figure 3c.
    error: "relative", the mean of |x_q - x| / |x|, or "squared".
    """
    whole_number(bits, "best_format", "bits")
    if method is not None:
        check_choice(method, "split", "best_format", "method")
    check_choice(scale, "scale_method", "best_format", "scale")
    _check_rounding("best_format", rounding, underflow, error)
    if isinstance(what, TensorStats):
        exponent_bits, mantissa_bits = ops.best_format_of_stats(
            what.tensor, bits, method or "empirical", scale, rounding, underflow, error
        ).tolist()
        return FloatFormat(f"1-{int(exponent_bits)}-{int(mantissa_bits)}")
    if isinstance(what, tuple | list):
        low, high = pair_of_numbers(what, "best_format", "what, if it is a range,")
    else:
        low = high = number(what, "best_format", "what, unless it is TensorStats or a range,")
    exponent_bits, mantissa_bits = ops.best_format(bits, low, high, method or "lognormal")
    return FloatFormat(f"1-{exponent_bits}-{mantissa_bits}")


def expected_error(
    stats: TensorStats,
    format: FloatFormat | str,
    scale: float,
    rounding: str = "stochastic",
    underflow: str = "stochastic",
    error: str = "relative",
) -> float:
    """The error that quantize() is expected to make on a tensor with these statistics: the mean of
    |x_q - x| / |x| over non-zero values, or with error="squared" the mean square over that of x."""
    format = as_format(format, "expected_error")
    scale = number(scale, "expected_error", "scale")
    if not 0 < scale < math.inf:
        raise ValueError(f"[expected_error] expected a positive finite scale, got {scale:g}")
    _check_rounding("expected_error", rounding, underflow, error)
    return ops.expected_error(
        stats_tensor(stats, "expected_error"),
        format.exponent_bits,
        format.mantissa_bits,
        scale,
        rounding,
        underflow,
        error,
    ).item()


def gradient_scale(
    stats: TensorStats | dict, format: FloatFormat | str, method: str = "max"
) -> float:
    """The scale at which to store a tensor: a stored value is scale times a grid value.

    "max": the largest grid value lands on max|x|. "predicted": the same, with the maximum predicted
    from log_mean and log_std. "error": the power of two with the least squared error.
    """
    format = as_format(format, "gradient_scale")
    check_choice(method, "scale_method", "gradient_scale", "method")
    return ops.gradient_scale(
        stats_tensor(stats, "gradient_scale"), format.exponent_bits, format.mantissa_bits, method
    ).item()
