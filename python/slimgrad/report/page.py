"""The page: one HTML file with everything in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape
from pathlib import Path

from . import formats, laws, layers, sizes, sparsity, training
from .figure import Figure
from .run_table import run_table, what_was_run
from .runs import Run
from .tensor_table import tensor_table

_HERE = Path(__file__).parent
# By section, what makes its figures.
_SECTIONS: dict[str, Callable[[list[Run]], list[Figure]]] = {
    "Training": training.figures,
    "Layers over time": layers.figures,
    "Laws of the gradients": laws.figures,
    "Formats": formats.figures,
    "Sparsity": sparsity.figures,
    "Sizes": sizes.figures,
}
# Forbids the browser to fetch anything.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)


def figures_of(runs: list[Run]) -> dict[str, list[Figure]]:
    return {section: make(runs) for section, make in _SECTIONS.items()}


def _figure(figure: Figure) -> str:
    menu = ""
    if len(figure.variants) > 1:
        entries = "".join(f"<option>{escape(v.label)}</option>" for v in figure.variants)
        # Without it a browser keeps what was chosen when the page is loaded again.
        menu = (
            f'<label class="menu">{escape(figure.menu)} '
            f'<select autocomplete="off">{entries}</select></label>'
        )
    return (
        f'<article class="figure" id="{figure.id}">'
        f'<p class="topic">{escape(figure.topic)}</p>'
        f"<h3>{escape(figure.variants[0].title)}</h3>{menu}"
        f'<div class="panels"></div><p class="note">{escape(figure.note)}</p></article>'
    )


def _contents(sections: dict[str, list[Figure]]) -> str:
    drawn = [figure for figures in sections.values() for figure in figures if figure.variants]
    entries = [("runs", "What was run"), *((f.id, f.topic) for f in drawn)]
    if any(not f.variants for figures in sections.values() for f in figures):
        entries.append(("missing", "Not in these runs"))
    items = "".join(f'<li><a href="#{id}">{escape(topic)}</a></li>' for id, topic in entries)
    return f'<nav aria-label="Contents"><ol>{items}</ol></nav>'


def _missing(sections: dict[str, list[Figure]]) -> str:
    gone = [figure for figures in sections.values() for figure in figures if not figure.variants]
    if not gone:
        return ""
    items = "".join(
        f"<li><strong>{escape(f.topic)}</strong>: needs {escape(f.needs)}</li>" for f in gone
    )
    return f'<h2 id="missing">Not in these runs</h2><ul class="missing">{items}</ul>'


def _data(sections: dict[str, list[Figure]]) -> str:
    """What plotly.js draws, as JSON that is safe inside a script element."""
    figures = {
        figure.id: [
            {"title": v.title, "panels": [panel.as_plotly() for panel in v.panels]}
            for v in figure.variants
        ]
        for figures in sections.values()
        for figure in figures
        if figure.variants
    }
    text = json.dumps(figures, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def page(runs: list[Run], notes: list[str], title: str, plotly_js: str) -> str:
    sections = figures_of(runs)
    body = [
        f'<header><h1>{escape(title)}</h1><p class="lead">{escape(what_was_run(runs))}</p>',
        _contents(sections),
        "</header><main>",
        '<h2 id="runs">What was run</h2>',
        run_table(runs),
        tensor_table(runs),
    ]
    if notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in notes)
        body.append(f'<ul class="notes">{items}</ul>')
    for section, figures in sections.items():
        drawn = [_figure(figure) for figure in figures if figure.variants]
        if drawn:
            body += [f"<h2>{escape(section)}</h2>", *drawn]
    body += [_missing(sections), "</main>"]
    body.append(
        "<footer>Written by python -m slimgrad report. Spreads use logarithms to base 2. "
        "docs/runs.md explains the lines of a run.</footer>"
    )
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><link rel="icon" href="data:,">'
        f"<style>{style}</style></head>\n"
        f"<body>{''.join(body)}\n"
        f'<script type="application/json" id="figures">{_data(sections)}</script>\n'
        f"<script>{plotly_js}</script>\n<script>{script}</script></body></html>\n"
    )
