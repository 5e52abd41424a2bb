"""Accuracy and loss, over steps and over seconds."""

from __future__ import annotations

from itertools import accumulate

from .figure import Figure, Panel, Trace, Variant, axis, log_axis, rounded, run_line, thinned
from .runs import Line, Run, number
from .words import percent

_LOSS_LINES = (("loss", "training"), ("test_loss", "test"))


def _seconds(run: Run) -> list[float] | None:
    """Of training, since the start of the run; None if some are not known."""
    each = [number(line, "seconds") for line in run.epochs]
    return None if None in each else list(accumulate(each))


def _series(run: Run, field: str, over: str) -> tuple[list[float], list[float]]:
    places = [line["step"] for line in run.epochs] if over == "steps" else _seconds(run)
    if places is None:
        return [], []
    points = [
        (x, value)
        for x, line in zip(places, run.epochs, strict=True)
        if (value := number(line, field)) is not None
    ]
    points = thinned(points)
    return [x for x, _ in points], [y for _, y in points]


def _trace(run: Run, field: str, over: str, what: str = "", **line: object) -> Trace | None:
    x, y = _series(run, field, over)
    if not x:
        return None
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(x) <= 60 else "lines",
        "x": rounded(x),
        "y": rounded(y),
        "name": run.name,
        "line": {**run_line(run), **line},
        "marker": {"size": 6, "color": run.colour},
        "hovertemplate": f"{run.name}{what}<br>%{{y:.4g}} after %{{x:.4g}} {over}<extra></extra>",
    }


def _final(runs: list[Run], field: str) -> list[tuple[float, Run]]:
    return [(value, run) for run in runs if (value := run.result(field)) is not None]


def _by_axis(make) -> list[Variant]:
    """One variant over steps, and one over seconds where they are known."""
    return [variant for over in ("steps", "seconds") if (variant := make(over)) is not None]


def _x_axis(over: str) -> dict:
    return axis("training steps" if over == "steps" else "seconds of training", rangemode="tozero")


def _note(runs: list[Run], trained: str, logged: str) -> str:
    """trained: the note about runs of slimgrad-train; logged: about runs that a user logged, of
    which the page knows only the names of the metrics."""
    if not _is_logged(runs):
        return trained
    if all(run.was_logged for run in runs):
        return logged
    return f"Of slimgrad-train: {trained} Of other runs: {logged}"


def _is_logged(runs: list[Run]) -> bool:
    return any(run.was_logged for run in runs)


def accuracy(runs: list[Run]) -> Figure:
    figure = Figure(
        "accuracy",
        "Accuracy",
        _note(
            runs,
            "Share of samples (of text: of next bytes) that the network gets right, after each "
            "epoch. Seconds are those of training steps alone.",
            "The accuracy and the seconds that were passed to controller.log() or log_run().",
        ),
        "accuracy in epoch lines",
        menu="over",
    )

    def variant(over: str) -> Variant | None:
        field = "test_accuracy" if _final(runs, "test_accuracy") else "accuracy"
        traces = [t for run in runs if (t := _trace(run, field, over))]
        final = _final(runs, field)
        if not traces:
            return None
        (best, first), (worst, last) = (f(final, key=lambda f: f[0]) for f in (max, min))
        name = "test accuracy"
        if field == "accuracy":
            name = "logged accuracy" if _is_logged(runs) else "training accuracy"
        title = f"{first.name} ends at {percent(best)} {name}"
        if len(final) > 1:
            title = (
                f"All runs end at {percent(best)} {name}"
                if best == worst
                else f"{title}, the best; {last.name} at {percent(worst)}, the worst"
            )
        y = axis(name, tickformat=".0%")
        return Variant(over, title, [Panel(traces, _x_axis(over), y)])

    figure.variants = _by_axis(variant)
    return figure


def loss(runs: list[Run]) -> Figure:
    figure = Figure(
        "loss",
        "Loss",
        _note(
            runs,
            "Cross-entropy in nats: solid the mean over the training samples of an epoch while it "
            "ran, dotted over the test samples after it.",
            "The loss (solid) and the test_loss (dotted) that were passed to controller.log() or "
            "log_run(). What they are means of, and their unit, is not recorded.",
        ),
        "loss in epoch lines",
        menu="over",
    )

    def variant(over: str) -> Variant | None:
        traces = []
        for run in runs:
            for field, what in _LOSS_LINES:
                dash = {} if field == "loss" else {"dash": "dot"}
                trace = _trace(run, field, over, f", {what}", **dash)
                if trace:
                    first = all(other["legendgroup"] != run.name for other in traces)
                    traces.append(trace | {"legendgroup": run.name, "showlegend": first})
        if not traces:
            return None
        # Losses that a user logged may be negative.
        is_positive = all(y is None or y > 0 for trace in traces for y in trace["y"])
        y = (log_axis if is_positive else axis)("loss" if _is_logged(runs) else "loss (nats)")
        return Variant(over, _loss_title(runs), [Panel(traces, _x_axis(over), y)])

    figure.variants = _by_axis(variant)
    return figure


def _loss_title(runs: list[Run]) -> str:
    def ends(run: Run) -> tuple[float, float] | None:
        values = [v for line in run.epochs if (v := number(line, "loss")) is not None]
        return (values[0], values[-1]) if values else None

    diverged = [run.name for run in runs if _diverged(run.end)]
    if diverged:
        return f"The loss of {', '.join(diverged)} was no longer finite"
    found = [(e[1], e[0], run) for run in runs if (e := ends(run))]
    if not found:
        return "Loss of the test samples"
    last, first, run = min(found, key=lambda f: f[0])
    what = f"{'logged' if run.was_logged else 'training'} loss goes from {first:.3g} to {last:.3g}"
    return f"{run.name} has the lowest loss: its {what}" if len(found) > 1 else f"The {what}"


def _diverged(end: Line | None) -> bool:
    return bool(end and end.get("diverged"))


def figures(runs: list[Run]) -> list[Figure]:
    runs = [run for run in runs if run.is_training]
    return [accuracy(runs), loss(runs)]
