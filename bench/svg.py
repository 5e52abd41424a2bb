"""Small charts as SVG text: lines over an axis, bars beside names. The standard library alone.

A drawing follows the reader's light or dark scheme by itself and names no font file. The same
numbers give the same bytes, so that a test can compare a drawing with its record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

# Fill or stroke by role, in a light and in a dark page.
COLOURS = {
    "plain": ("#6b7280", "#9aa4b2"),
    "ours": ("#0b6bcb", "#5ab0ff"),
    "also": ("#0f8a6c", "#3ecfa8"),
    "third": ("#7c4dd6", "#b69aff"),
    "rival": ("#c2620a", "#f2a65a"),
    "worse": ("#b3261e", "#ff8a80"),
    "ink": ("#1f2933", "#e6e9ee"),
    "faint": ("#5b6673", "#a9b3c0"),
    "grid": ("#d9dee5", "#3a424d"),
    "box": ("#eef3f9", "#27313d"),
}
HEIGHT_OF_TEXT = 13


def _style() -> str:
    def rules(which: int) -> str:
        return "".join(
            f".f-{name}{{fill:{pair[which]}}}.s-{name}{{stroke:{pair[which]};fill:none}}"
            for name, pair in COLOURS.items()
        )

    return (
        "<style>text{font:13px system-ui,sans-serif}.b{font-weight:600}.small{font-size:11.5px}"
        f"{rules(0)}@media (prefers-color-scheme: dark){{{rules(1)}}}</style>"
    )


def _n(value: float) -> str:
    """One decimal, no minus zero: bytes that do not depend on the last bit."""
    return f"{round(value, 1) + 0.0:g}"


class Drawing:
    """Collects elements; ``str()`` is the file."""

    def __init__(self, width: float, height: float, title: str):
        self.width, self.height, self.title = width, height, title
        self._parts: list[str] = []

    def text(self, x, y, words, role="ink", anchor="start", extra="") -> None:
        self._parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}" class="f-{role} {extra}" '
            f'text-anchor="{anchor}">{escape(str(words))}</text>'
        )

    def line(self, x1, y1, x2, y2, role="grid", width=1.0, extra="") -> None:
        self._parts.append(
            f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" '
            f'class="s-{role}" stroke-width="{_n(width)}"{extra}/>'
        )

    def rect(self, x, y, width, height, role, radius=2.0) -> None:
        self._parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(max(width, 0.5))}" height="{_n(height)}" '
            f'rx="{_n(radius)}" class="f-{role}"/>'
        )

    def path(self, points: Sequence[tuple[float, float]], role, width=2.0, dashed=False) -> None:
        where = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<polyline points="{where}" class="s-{role}" stroke-width="{_n(width)}" '
            f'stroke-linejoin="round"{dash}/>'
        )

    def dot(self, x, y, role, radius=3.0) -> None:
        self._parts.append(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" class="f-{role}"/>')

    def __str__(self) -> str:
        size = f'width="{_n(self.width)}" height="{_n(self.height)}"'
        box = f'viewBox="0 0 {_n(self.width)} {_n(self.height)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} role="img">'
        name = f"<title>{escape(self.title)}</title>"
        return "\n".join([head, name, _style(), *self._parts, "</svg>", ""])


def _share(value: float, ends: tuple[float, float], log: bool) -> float:
    """Of the way from the lower to the upper end."""
    low, high = ends
    if log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return (value - low) / (high - low)


class Axes:
    """A rectangle of a drawing in which numbers have places."""

    def __init__(self, drawing, left, top, width, height, x, y, log_x=False, log_y=False):
        self.drawing, self.left, self.top = drawing, left, top
        self.width, self.height = width, height
        self.x_range, self.y_range, self.log_x, self.log_y = x, y, log_x, log_y

    def x(self, value: float) -> float:
        return self.left + _share(value, self.x_range, self.log_x) * self.width

    def y(self, value: float) -> float:
        return self.top + self.height - _share(value, self.y_range, self.log_y) * self.height

    def frame(self, title, x_title, x_ticks, y_ticks) -> None:
        """Ticks are (value, words)."""
        d, bottom = self.drawing, self.top + self.height
        d.text(self.left, self.top - 14, title, extra="b")
        for value, words in y_ticks:
            d.line(self.left, self.y(value), self.left + self.width, self.y(value))
            d.text(self.left - 8, self.y(value) + 4, words, "faint", "end", "small")
        for value, words in x_ticks:
            d.text(self.x(value), bottom + 18, words, "faint", "middle", "small")
        d.line(self.left, bottom, self.left + self.width, bottom, "faint")
        d.text(self.left + self.width / 2, bottom + 36, x_title, "faint", "middle", "small")

    def curve(self, points, role, dots=True, dashed=False) -> None:
        places = [(self.x(x), self.y(y)) for x, y in points]
        self.drawing.path(places, role, dashed=dashed)
        if dots:
            for x, y in places:
                self.drawing.dot(x, y, role)


def legend(drawing: Drawing, left: float, y: float, entries, gap: float = 18.0) -> None:
    """In one row: (role, words). Widths are guessed from the number of letters."""
    for role, words in entries:
        drawing.rect(left, y - 9, 14, 10, role)
        drawing.text(left + 20, y, words, "ink", extra="small")
        left += 20 + 6.1 * len(words) + gap


def bars(drawing: Drawing, left, top, name_width, bar_width, rows, largest, row=22.0) -> float:
    """Rows of (name, value, role, words behind the bar); a row without a value is a heading. The
    place below the last."""
    for name, value, role, words in rows:
        if value is None:
            drawing.text(left, top + 16, name, "ink", extra="b")
        else:
            drawing.text(left + name_width - 8, top + 15, name, "ink", "end", "small")
            length = value / largest * bar_width
            drawing.rect(left + name_width, top + 3, length, row - 7, role)
            drawing.text(left + name_width + length + 6, top + 15, words, "faint", extra="small")
        top += row
    return top
