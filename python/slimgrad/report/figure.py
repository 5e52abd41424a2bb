"""What a figure of the page is: titles, panels, and the plain dicts that plotly.js draws.

Colours that begin with @ are variables of page.css, so that one page serves light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .runs import Run

Trace = dict[str, Any]
# More points would be slower to draw, and a screen has no more columns for them.
MOST_POINTS = 500
# Heat maps have a number in every cell.
MOST_COLUMNS = 120
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up")
SCALE = "Cividis"  # readable with colour blindness


@dataclass
class Panel:
    traces: list[Trace]
    x: dict[str, Any]
    y: dict[str, Any]
    height: int = 320
    layout: dict[str, Any] = field(default_factory=dict)

    def as_plotly(self) -> dict[str, Any]:
        layout = {"xaxis": self.x, "yaxis": self.y, "height": self.height, **self.layout}
        return {"data": self.traces, "layout": layout}


@dataclass
class Variant:
    """What one entry of a figure's menu shows. The title states the result."""

    label: str
    title: str
    panels: list[Panel]


@dataclass
class Figure:
    """``note`` is the sentence under it, ``needs`` what a run must have for it to be drawn."""

    id: str
    topic: str  # in the table of contents
    note: str
    needs: str
    menu: str = "show"
    variants: list[Variant] = field(default_factory=list)


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more}


def log_axis(title: str, **more: Any) -> dict[str, Any]:
    return axis(title, type="log", exponentformat="power", tickfont={"size": 10}, **more)


def rounded(values: Iterable[float | None], digits: int = 5) -> list[float | None]:
    """To ``digits`` significant digits, to keep the page small. NaN and Inf become gaps."""
    return [None if v is None or not math.isfinite(v) else float(f"{v:.{digits}g}") for v in values]


def thinned(items: Sequence, most: int = MOST_POINTS) -> list:
    """At most ``most`` items, evenly spaced, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def run_line(run: Run) -> dict[str, Any]:
    """One colour per run on the whole page; beyond eight runs the dashes differ as well."""
    return {"color": run.colour, "width": 2, "dash": DASHES[run.index // 8 % len(DASHES)]}


def run_marker(run: Run, size: int = 9, **more: Any) -> dict[str, Any]:
    symbol = SYMBOLS[run.index // 8 % len(SYMBOLS)]
    edge = {"color": "@ground", "width": 1}
    return {"color": run.colour, "size": size, "symbol": symbol, "line": edge, **more}


def markers(x, y, name: str, marker: dict, text: Sequence[str], **more: Any) -> Trace:
    """Points with a text that is shown on hover."""
    return {
        "type": "scatter",
        "mode": "markers",
        "x": rounded(x),
        "y": rounded(y),
        "name": name,
        "marker": marker,
        "text": list(text),
        "hovertemplate": "%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>",
        **more,
    }


def curve(x, y, name: str, line: dict, **more: Any) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": rounded(x),
        "y": rounded(y),
        "name": name,
        "line": line,
        "hovertemplate": f"{name}<br>%{{x:.4g}}, %{{y:.4g}}<extra></extra>",
        **more,
    }
