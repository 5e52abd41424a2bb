"""Errors of low-bit formats over the spread, with the measured layers on them (the lognormal
paper's Figure 3)."""

from __future__ import annotations

from dataclasses import dataclass

from ..tensors.formats import (
    FloatFormat,
    best_format,
    expected_error,
    gradient_scale,
    parse_float_choice,
    relative_error,
)
from .figure import (
    DASHES,
    Figure,
    Panel,
    Trace,
    Variant,
    axis,
    curve,
    log_axis,
    markers,
    run_marker,
)
from .runs import LN2, Run, number
from .words import most_frequent

DEFAULT_BITS = (4, 6, 8)
_SPREADS = [0.25 * i for i in range(1, 33)]  # 0.25 to 8 octaves: beyond what networks showed
# Exponent bits have an order: from dark to bright, as heat maps do.
_RAMP = tuple(f"@ramp{i}" for i in range(7))


@dataclass
class Point:
    """A layer: its spread, its format, and the relative error of that format."""

    layer: str
    log2_std: float
    format: FloatFormat
    error: float


def _measured(run: Run, bits: int) -> list[Point]:
    """From the last line of each layer, if the run quantized to ``bits`` bits."""
    last = {line["layer"]: line for line in run.layers}
    points = []
    for layer, line in last.items():
        format, error = parse_float_choice(line.get("format")), number(line, "relative_error")
        spread = number(line, "log_std")
        if not isinstance(format, FloatFormat):
            continue
        # The error of a pruned gradient is not that of its format.
        pruned = (number(line, "threshold") or 0) > 0
        if format.bits == bits and error is not None and spread and not pruned:
            points.append(Point(layer, spread / LN2, format, error))
    return points


def _expected(run: Run, bits: int) -> list[Point]:
    """The best split for each measured gradient and its error, with rounding to nearest, as for the
    curves."""
    points = []
    for probe in run.last_probes("neural_gradient") or run.last_probes("tensor"):
        stats = probe.stats
        rounding = {"rounding": "nearest", "underflow": "zero"}
        format = best_format(bits, stats, **rounding)
        error = expected_error(stats, format, gradient_scale(stats, format), **rounding)
        points.append(Point(probe.layer, probe.log2_std, format, error))
    return points


def splits(bits: int) -> list[FloatFormat]:
    return [FloatFormat(f"1-{e}-{bits - 1 - e}") for e in range(max(1, bits - 7), bits)]


def _curves(bits: int) -> list[Trace]:
    formats = splits(bits)
    traces = []
    for place, format in enumerate(formats):
        colour = _RAMP[round(place * (len(_RAMP) - 1) / max(1, len(formats) - 1))]
        errors = [relative_error(format, spread) for spread in _SPREADS]
        line = {"color": colour, "width": 2.2, "dash": DASHES[place % len(DASHES)]}
        traces.append(curve(_SPREADS, errors, str(format), line))
    return traces


def _dots(points: list[Point], run: Run, name: str, y: str, is_open: bool) -> Trace:
    marker = run_marker(run)
    if is_open:
        marker = {**marker, "symbol": f"{marker['symbol']}-open", "line": {"width": 2}}
    values = [p.error if y == "error" else p.format.exponent_bits for p in points]
    text = [f"{p.layer}: {p.format}" for p in points]
    return markers([p.log2_std for p in points], values, name, marker, text)


def _variant(runs: list[Run], bits: int) -> Variant | None:
    errors, exponents = _curves(bits), _best_exponents(bits)
    chosen: list[str] = []
    for run in runs:
        for points, is_open in ((_measured(run, bits), False), (_expected(run, bits), True)):
            if points:
                name = f"{run.name}, {'expected' if is_open else 'in training'}"
                errors.append(_dots(points, run, name, "error", is_open))
                dots = _dots(points, run, name, "exponent", is_open)
                exponents.append(dots | {"showlegend": False})
                chosen += [str(point.format) for point in points]
    if not chosen:
        return None
    best, count = most_frequent(chosen)
    title = (
        f"With {bits} bits all {count} measured gradients get {best}"
        if count == len(chosen)
        else f"With {bits} bits {best} is best for {count} of {len(chosen)} measured gradients"
    )
    x = axis("spread: deviation of log2|x| (octaves)")
    whole = axis("exponent bits", dtick=1, range=[0, bits])
    return Variant(
        f"{bits} bits",
        title,
        [Panel(errors, x, log_axis("mean relative error")), Panel(exponents, x, whole)],
    )


def _best_exponents(bits: int) -> list[Trace]:
    """The ideal number of exponent bits under two laws (3b and 3c)."""
    traces = []
    for method, dash in (("lognormal", "solid"), ("normal", "dot")):
        best = [best_format(bits, spread, method).exponent_bits for spread in _SPREADS]
        line = {"color": "@ink", "width": 1.6, "dash": dash, "shape": "hvh"}
        traces.append(curve(_SPREADS, best, f"best if {method}", line))
    return traces


def figures(runs: list[Run]) -> list[Figure]:
    figure = Figure(
        "formats",
        "Format errors",
        "First the mean of |x' - x| / |x| of each split (sign-exponent-mantissa) for a lognormal "
        "gradient, by its spread, with rounding to nearest, as in Figure 3 of the lognormal paper; "
        "second the best number of exponent bits. Filled points were measured in training, with "
        "the rounding of the run (stochastic rounding lies above the curves); open points are "
        "computed from a histogram, with the largest value of the grid at its maximum.",
        "layers lines with a format, or histogram lines",
        menu="width",
    )
    used = {bits for run in runs for bits in range(2, 9) if _measured(run, bits)}
    # Those first that a run was trained with.
    widths = sorted({*DEFAULT_BITS, *used}, key=lambda bits: (bits not in used, bits))
    variants = [_variant(runs, bits) for bits in widths]
    figure.variants = [variant for variant in variants if variant]
    return [figure]
