"""Required and achieved sparsity, sparsity that thresholds by other laws would achieve, the cosine
that pruning costs, and accuracy against sparsity (the lognormal paper's Figure 5)."""

from __future__ import annotations

import statistics
import warnings

from ..tensors.pruning import SparsityWarning, expected_cosine, expected_sparsity, threshold
from .figure import Figure, Panel, Trace, Variant, axis, curve, markers, run_marker, thinned
from .layers import heat_map
from .runs import Probe, Run, number
from .words import LAW_NAMES, percent, span

_WANTED = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
# By which law a threshold is found; drawn in black, because colours stand for runs.
_METHODS = {"empirical": "circle", "lognormal": "square", "gennorm": "diamond", "normal": "x"}
_DASHES = {"empirical": "solid", "lognormal": "dashdot", "gennorm": "dash", "normal": "dot"}
MOST_POINTS = 400


def _pruned(run: Run) -> list[dict]:
    return [
        line
        for line in run.layers
        if (number(line, "sparsity_wanted") or 0) > 0 and number(line, "sparsity") is not None
    ]


def required(runs: list[Run]) -> Figure:
    figure = Figure(
        "required",
        "Required and achieved sparsity",
        "Each point is a layer at a step: the share of zeros that was wanted and the share that "
        "was achieved, for slimgrad-train means over the epoch, for controller.log() of the last "
        "pass. On the line they are equal; the title has the largest difference in a single pass.",
        "layers lines of pruned gradients",
    )
    traces: list[Trace] = []
    misses = []
    for run in runs:
        lines = _pruned(run)
        misses += [m for line in lines if (m := number(line, "worst_sparsity_miss")) is not None]
        lines = thinned(lines, MOST_POINTS)
        if lines:
            wanted = [line["sparsity_wanted"] for line in lines]
            got = [line["sparsity"] for line in lines]
            text = [f"{line['layer']}, step {line['step']}" for line in lines]
            traces.append(markers(wanted, got, run.name, run_marker(run), text))
    if traces:
        # The axes span at least 0.1, so that a difference of a thousandth looks as small as it is.
        shown = [v for t in traces for v in (*t["x"], *t["y"])]
        ends = [max(0.0, min(shown) - 0.05), min(1.0, max(shown) + 0.05)]
        traces.append(curve(ends, ends, "equal", {"color": "@accent", "width": 1.5}))
        title = "Achieved sparsity against what was wanted"
        if misses:
            title = f"No layer misses its sparsity by more than {max(misses):.4f} in any pass"
        x, y = (axis(f"sparsity {what}", range=ends) for what in ("wanted", "achieved"))
        figure.variants = [Variant("all", title, [Panel(traces, x, y)])]
    return figure


def _achieved(probe: Probe, wanted: float, method: str) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SparsityWarning)  # The figure shows it.
        alpha = threshold(probe.stats, wanted, method)
    return expected_sparsity(probe.stats, alpha)


def _small(miss: float) -> str:
    return "less than 0.001" if miss < 0.001 else f"{miss:.3f}"


def by_law(runs: list[Run]) -> Figure:
    figure = Figure(
        "thresholds",
        "Thresholds by law",
        "What thresholds that follow from a law would achieve on the measured histograms: the "
        "median over layers, with bars from the least to the most. The empirical one, the default, "
        "follows from the histogram itself.",
        "histogram lines",
        menu="run",
    )
    for run in runs:
        probes = run.last_probes("neural_gradient") or run.last_probes("tensor")
        probes = thinned(probes, 60)
        if not probes:
            continue
        traces, worst = [], {}
        for method, symbol in _METHODS.items():
            got = [[_achieved(probe, wanted, method) for probe in probes] for wanted in _WANTED]
            middle = [statistics.median(values) for values in got]
            misses = [abs(v - w) for w, values in zip(_WANTED, got, strict=True) for v in values]
            worst[method] = max(misses)
            line = {"color": "@ink", "width": 1.4, "dash": _DASHES[method]}
            traces.append(
                curve(
                    _WANTED,
                    middle,
                    LAW_NAMES.get(method, method),
                    line,
                    mode="lines+markers",
                    marker={"symbol": symbol, "color": "@ink", "size": 7},
                    error_y={
                        "array": [max(v) - m for v, m in zip(got, middle, strict=True)],
                        "arrayminus": [m - min(v) for v, m in zip(got, middle, strict=True)],
                        "symmetric": False,
                        "color": "@muted",
                        "thickness": 1,
                        "width": 3,
                    },
                )
            )
        title = (
            f"{run.name}: a lognormal law would miss by up to {worst['lognormal']:.2f}, a normal "
            f"one by {worst['normal']:.2f}, the histogram by {_small(worst['empirical'])}"
        )
        panel = Panel(traces, axis("sparsity wanted"), axis("sparsity achieved"))
        figure.variants.append(Variant(run.name, title, [panel]))
    return figure


def cost(runs: list[Run]) -> Figure:
    """Of measured gradients, pruned or not."""
    figure = Figure(
        "cost",
        "What pruning would cost",
        "Expected cosine similarity between each gradient before and after pruning (no unit), from "
        "the histogram of the last step that has one. The direction of dark cells changes most.",
        "histogram lines",
        menu="run",
    )
    for run in runs:
        probes = run.last_probes("neural_gradient") or run.last_probes("tensor")
        cells = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SparsityWarning)
            for probe in probes:
                for wanted in _WANTED:
                    alpha = threshold(probe.stats, wanted)
                    cells[probe.layer, wanted] = expected_cosine(probe.stats, alpha)
        if not cells:
            continue
        rows = list(dict.fromkeys(probe.layer for probe in probes))
        at = [cells[row, 0.85] for row in rows]
        title = f"{run.name}: pruned to 0.85, gradients would keep a cosine of {span(at)}"
        x = axis("sparsity")
        limits = (min(cells.values()), 1.0)
        panel = heat_map(rows, list(_WANTED), cells, x, "cosine", limits)
        figure.variants.append(Variant(run.name, title, [panel]))
    return figure


def accuracy(runs: list[Run]) -> Figure:
    figure = Figure(
        "accuracy-sparsity",
        "Accuracy and sparsity",
        "Test accuracy at the end of each run, and the share of zeros in the gradients that it "
        "compressed (no unit). The line is the best run without compression.",
        "runs with compressed gradients and a test accuracy",
    )
    points = [
        (run, sparsity, accuracy)
        for run in runs
        if (sparsity := run.sparsity()) is not None
        and (accuracy := run.result("test_accuracy")) is not None
    ]
    if not points:
        return figure
    traces = [markers([s], [a], run.name, run_marker(run, 12), [run.name]) for run, s, a in points]
    plain = [a for run in runs if run.is_plain and (a := run.result("test_accuracy")) is not None]
    title = "Runs with compressed gradients, by sparsity and test accuracy"
    if plain:
        best = max(plain)
        traces.append(curve([0, 1], [best, best], "without compression", _baseline()))
        near = [(s, run) for run, s, a in points if a >= best - 0.01]
        title = f"No compressed run comes within a point of {percent(best)}"
        if near:
            sparsest, run = max(near, key=lambda item: item[0])
            title = (
                f"{run.name}, at a sparsity of {sparsest:.2f}, is the sparsest within a point of "
                f"plain training's {percent(best)}"
            )
    x = axis("share of zeros in compressed gradients", range=[-0.03, 1.03])
    panel = Panel(traces, x, axis("test accuracy", tickformat=".1%"))
    figure.variants = [Variant("all", title, [panel])]
    return figure


def _baseline() -> dict:
    return {"color": "@accent", "width": 1.5, "dash": "dash"}


def figures(runs: list[Run]) -> list[Figure]:
    return [required(runs), by_law(runs), cost(runs), accuracy(runs)]
