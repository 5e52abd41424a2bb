"""Bytes and bits per value of neural gradients in training and of coded weight gradients."""

from __future__ import annotations

from .figure import Figure, Panel, Variant, axis, markers, run_marker
from .naming import short_layers
from .runs import Run, number
from .words import percent, size

_MODEL_SYMBOLS = {
    "counted": "circle",
    "normal": "x",
    "laplace": "square-open",
    "gennorm": "diamond-open",
}
_MODEL_NAMES = {"gennorm": "generalized normal", "laplace": "Laplace"}


def _bars(runs: list[Run], values: list[float], text: list[str], title: str) -> Panel:
    """One bar per run, in its colour, with the number at its end."""
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": values,
        "y": list(range(len(runs))),
        "marker": {"color": [run.colour for run in runs]},
        "text": text,
        "textposition": "auto",
        "textangle": 0,
        "hovertext": [run.name for run in runs],
        "hovertemplate": "%{hovertext}: %{text}<extra></extra>",
        "showlegend": False,
    }
    names = short_layers([run.name for run in runs])
    y = {"autorange": "reversed", "tickvals": list(range(len(runs))), "ticktext": names}
    return Panel([trace], axis(title, rangemode="tozero"), y, height=130 + 26 * len(runs))


def bytes_of_gradients(runs: list[Run]) -> Figure:
    figure = Figure(
        "bytes",
        "Bytes",
        "Bytes of all neural gradients that went through gates, of the whole run: as float32 "
        "(faint) and as compressed, codes of the format or what an ideal entropy coder would need "
        "for pruned values.",
        "epoch lines with gradient_bytes",
    )
    found = []
    for run in runs:
        whole = sum(number(line, "gradient_bytes") or 0 for line in run.epochs)
        small = sum(number(line, "compressed_gradient_bytes") or 0 for line in run.epochs)
        if whole > 0:
            found.append((run, whole, small))
    if not found:
        return figure
    names = [run for run, _, _ in found]
    small = _bars(
        names,
        [value / 1e6 for _, _, value in found],
        [size(value) for _, _, value in found],
        "megabytes",
    )
    whole = _bars(
        names,
        [value / 1e6 for _, value, _ in found],
        [size(value) for _, value, _ in found],
        "",
    ).traces[0]
    whole |= {"opacity": 0.25, "textposition": "none"}
    small.traces.insert(0, whole)
    small.layout["barmode"] = "overlay"
    run, before, after = min(found, key=lambda item: item[2] / item[1])
    title = (
        f"{run.name} makes gradients smallest: {size(after)} instead of {size(before)}, "
        f"{percent(after / before)}"
    )
    figure.variants = [Variant("all", title, [small])]
    return figure


def bits_of_gradients(runs: list[Run]) -> Figure:
    figure = Figure(
        "bits",
        "Bits a value",
        "First the mean bits of a neural gradient's value over the run, or over the passes that "
        "were logged (32 where nothing is compressed); second the test accuracy of each run.",
        "bits_per_value in layers or end lines",
    )
    found = [(run, bits) for run in runs if (bits := run.bits_per_value()) is not None]
    if not found:
        return figure
    bits = [b for _, b in found]
    panels = [_bars([r for r, _ in found], bits, [f"{b:.2f}" for b in bits], "bits a value")]
    scored = [(r, b, a) for r, b in found if (a := r.result("test_accuracy")) is not None]
    if scored:
        traces = [
            markers([b], [a], run.name, run_marker(run, 12), [run.name]) for run, b, a in scored
        ]
        x = axis("bits a value", type="log", tickvals=[0.25, 0.5, 1, 2, 4, 8, 16, 32])
        panels.append(Panel(traces, x, axis("test accuracy", tickformat=".1%")))
    least, run = min((b, run.name) for run, b in found)
    figure.variants = [Variant("all", f"{run} takes the fewest bits a value: {least:.2f}", panels)]
    return figure


def coded_weights(runs: list[Run]) -> Figure:
    figure = Figure(
        "coding",
        "Coded weight gradients",
        "Bits a value of weight gradients cut into 255 levels and coded, header included: with a "
        "table by counted frequencies, or one that follows from a fitted law. The bar is the "
        "entropy of the levels, the least that a coder of single values needs.",
        "bits lines: slimgrad-train --probe-at",
        menu="gradients",
    )
    for run in runs:
        # Eight bits are the default of encode(); other widths are in the record.
        wide = [line for line in run.bits if line.get("quantizer_bits", 8) == 8]
        for step in sorted({line["step"] for line in wide}):
            lines = [line for line in wide if line["step"] == step]
            for coder in ("rans", "huffman"):
                coded = [line for line in lines if isinstance(line.get(coder), dict)]
                if coded:
                    figure.variants.append(_coded(run, step, coder, coded))
    return figure


def _coded(run: Run, step: int, coder: str, lines: list[dict]) -> Variant:
    rows = list(range(len(lines)))
    entropy = [number(line, "entropy") for line in lines]
    traces = [
        markers(
            entropy,
            rows,
            "entropy",
            {"symbol": "line-ns", "size": 14, "line": {"color": "@accent", "width": 2}},
            [f"{line['layer']}, entropy" for line in lines],
        )
    ]
    wins: list[str] = []
    for model, symbol in _MODEL_SYMBOLS.items():
        values = [number(line[coder], model) for line in lines]
        marker = {"symbol": symbol, "size": 9, "color": "@ink"}
        text = [f"{line['layer']}, {model}" for line in lines]
        if any(value is not None for value in values):
            name = _MODEL_NAMES.get(model, model)
            traces.append(markers(values, rows, name, marker, text))
    for line in lines:
        known = {m: v for m in _MODEL_SYMBOLS if (v := number(line[coder], m)) is not None}
        if known:
            wins.append(min(known, key=known.get))
    best = max(dict.fromkeys(wins), key=wins.count) if wins else "none"
    name = {"rans": "rANS", "huffman": "Huffman"}[coder]
    winner = f"{name}: the {_MODEL_NAMES.get(best, best)} table"
    title = f"{winner} is smallest for {wins.count(best)} of {len(lines)} layers"
    names = short_layers([line["layer"] for line in lines])
    y = {"autorange": "reversed", "tickvals": rows, "ticktext": names}
    panel = Panel(traces, axis("bits a value"), y, height=130 + 22 * len(lines))
    return Variant(f"{run.name} · step {step} · {name}", title, [panel])


def figures(runs: list[Run]) -> list[Figure]:
    trained = [run for run in runs if run.is_training]
    return [bits_of_gradients(trained), bytes_of_gradients(trained), coded_weights(trained)]
