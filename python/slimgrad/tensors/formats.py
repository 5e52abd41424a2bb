"""Low-bit float formats: their grids, their errors, the best one, and the scale for a tensor."""

from __future__ import annotations

import re

from .._library import ops
from .._support import number, pair_of_numbers, whole_number
from .stats import TensorStats, stats_tensor


class FloatFormat:
    """A format by its sign-exponent-mantissa bits: ``FloatFormat("1-5-2")``.

    2 to 8 bits; no subnormals, no Inf, no NaN; above the largest value it saturates.
    """

    def __init__(self, text: str):
        match = re.fullmatch(r"1-([0-9])-([0-9])", text) if isinstance(text, str) else None
        if match is None:
            got = repr(text) if isinstance(text, str) else type(text).__name__
            raise ValueError(
                f"[FloatFormat] expected sign-exponent-mantissa such as 1-5-2, got {got}"
            )
        self.exponent_bits = int(match[1])
        self.mantissa_bits = int(match[2])
        # Here rather than by an op, so that formats can be made inside torch.compile.
        if not (1 <= self.exponent_bits <= 7 and self.mantissa_bits <= 6 and self.bits <= 8):
            raise ValueError(
                "[FloatFormat] expected 1 to 7 exponent bits, 0 to 6 mantissa bits and at most "
                f"8 bits with the sign, got {text!r}"
            )

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


def as_format(format: FloatFormat | str) -> FloatFormat:
    return format if isinstance(format, FloatFormat) else FloatFormat(format)


def bits_of_format(format: FloatFormat | str) -> tuple[int, int]:
    """As ops take a format."""
    format = as_format(format)
    return format.exponent_bits, format.mantissa_bits


def relative_error(format: FloatFormat | str, log2_std: float) -> float:
    """Expected |x_q - x| / |x| of rounding to nearest, for log2|x| ~ N(0, log2_std^2)."""
    format = as_format(format)
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
        deviation: the paper's closed form, which knows nothing else. "normal": if x itself were
        normal with that deviation, for comparison with the paper's Figure 3c.
    error: "relative", the mean of |x_q - x| / |x|, or "squared".
    """
    whole_number(bits, "best_format", "bits")
    if isinstance(what, TensorStats):
        exponent_bits, mantissa_bits = ops.best_format_of_stats(
            what.tensor, bits, method or "empirical", scale, rounding, underflow, error
        ).tolist()
        return FloatFormat(f"1-{int(exponent_bits)}-{int(mantissa_bits)}")
    if isinstance(what, tuple | list):
        low, high = pair_of_numbers(what, "best_format", "a range of deviations")
    else:
        low = high = number(what, "best_format", "TensorStats, or a deviation,")
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
    format = as_format(format)
    return ops.expected_error(
        stats_tensor(stats, "expected_error"),
        format.exponent_bits,
        format.mantissa_bits,
        number(scale, "expected_error", "scale"),
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
    format = as_format(format)
    return ops.gradient_scale(
        stats_tensor(stats, "gradient_scale"), format.exponent_bits, format.mantissa_bits, method
    ).item()
