"""Spread, sparsity and cosine of every layer over time: heat maps, layers by steps."""

from __future__ import annotations

from collections.abc import Callable

from .figure import MOST_COLUMNS, SCALE, Figure, Panel, Variant, axis, rounded, thinned
from .naming import short_layers
from .runs import LN2, Line, Run, number
from .words import span

# By layer and step.
Cells = dict[tuple[str, int], float]


def heat_map(
    rows: list[str],
    columns: list,
    cells: dict,
    x: dict,
    what: str,
    limits: tuple[float, float],
    digits: int = 2,
) -> Panel:
    """``cells`` by row and column; missing cells stay empty."""
    # Numbers where a phone has room for them.
    shown = {"texttemplate": f"%{{z:.{digits}f}}"} if len(columns) <= 10 - digits else {}
    names = short_layers(rows)
    trace = {
        "type": "heatmap",
        "x": [str(column) for column in columns],
        "y": list(range(len(rows))),
        "z": [rounded([cells.get((row, c)) for c in columns], 4) for row in rows],
        "text": [[row] * len(columns) for row in rows],
        "zmin": limits[0],
        "zmax": limits[1],
        "colorscale": SCALE,
        **shown,
        "colorbar": {"thickness": 10, "outlinewidth": 0},
        "hoverongaps": False,
        "hovertemplate": f"%{{text}}<br>{x['title']['text']} %{{x}}: {what} %{{z:.4g}}"
        "<extra></extra>",
    }
    y = {
        "autorange": "reversed",
        "tickvals": list(range(len(rows))),
        "ticktext": names,
        "showgrid": False,
        "zeroline": False,
        "tickfont": {"size": 11},
    }
    x = {"type": "category", "nticks": 10, "showgrid": False, **x}
    return Panel([trace], x, y, height=130 + 22 * len(rows))


def _cells(run: Run, value: Callable[[Line], float | None]) -> Cells:
    return {
        (line["layer"], line["step"]): found
        for line in run.layers
        if number(line, "passes") != 0 and (found := value(line)) is not None
    }


def _spread(line: Line) -> float | None:
    """In the paper's units. A gate that has seen no gradient reports zero."""
    found = number(line, "log_std")
    return found / LN2 if found else None


def _spread_cells(run: Run) -> Cells:
    """From the gates; without any, from the measured gradients."""
    return _cells(run, _spread) or {
        (p.layer, p.step): p.log2_std for p in run.probes() if p.tensor != "weight_gradient"
    }


def _over_time(
    figure: Figure, runs: list[Run], cells_of: Callable[[Run], Cells], what: str, title: str
) -> Figure:
    """A variant for each run, all with the same colour scale. ``title`` is a format string with
    ``run``, ``span``, ``lowest`` and ``highest``."""
    found = [(run, cells) for run in runs if (cells := cells_of(run))]
    everything = [value for _, cells in found for value in cells.values()]
    for run, cells in found:
        rows = list(dict.fromkeys(layer for layer, _ in cells))
        columns = thinned(sorted({step for _, step in cells}), MOST_COLUMNS)
        limits = (min(everything), max(everything))
        digits = 2 if what == "spread" else 3
        panel = heat_map(rows, columns, cells, axis("step"), what, limits, digits)
        values = span(list(cells.values()), f".{digits}f")
        lowest, highest = (f(cells, key=cells.get)[0] for f in (min, max))
        said = title.format(run=run.name, span=values, lowest=lowest, highest=highest)
        figure.variants.append(Variant(run.name, said, [panel]))
    return figure


def figures(runs: list[Run]) -> list[Figure]:
    runs = [run for run in runs if run.is_training]
    spread = Figure(
        "spread",
        "Spread of the layers",
        "Standard deviation of log2|x| over the non-zero values of a layer's gradient, in octaves: "
        "how many powers of two a format has to span. Bright layers need more exponent bits.",
        "runs with layers or histogram lines",
        menu="run",
    )
    sparsity = Figure(
        "sparsity",
        "Sparsity of the layers",
        "Share of zeros in a layer's gradient after compression (no unit, 0 to 1). Without pruning "
        "these are the values that underflowed.",
        "layers lines of gradients that were compressed",
        menu="run",
    )
    cosine = Figure(
        "cosine",
        "Cosine of the layers",
        "Cosine similarity between a layer's gradient before and after compression (no unit): 1 is "
        "the same direction. The direction of dark layers changed most.",
        "layers lines of gradients that were compressed",
        menu="run",
    )
    return [
        _over_time(
            spread,
            runs,
            _spread_cells,
            "spread",
            "{run}: gradients spread over {span} octaves, most in {highest}",
        ),
        _over_time(
            sparsity,
            runs,
            lambda run: _cells(run, lambda line: number(line, "sparsity")),
            "sparsity",
            "{run}: {span} of the values are zero, most in {highest}",
        ),
        _over_time(
            cosine,
            runs,
            lambda run: _cells(run, lambda line: number(line, "cosine")),
            "cosine",
            "{run}: cosines of {span}, lowest in {lowest}",
        ),
    ]
