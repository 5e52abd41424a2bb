"""What a controller's summary() prints: a table of the layers, what was left, activations, and
warnings, in lines that fit a terminal."""

from __future__ import annotations

import math
import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from ..nn.conversion_report import ConversionReport
from ..saved.modules import SavedModules
from .names import MODEL, fold

LEAST_WIDTH = 60
# Names leave this much of a line to calls, zeros and cosine; they go before all other columns.
ROOM_FOR_COLUMNS = 30
INDENT = "    "

Row = dict
Cell = Callable[[Row], str]


def line_width(width: int | None) -> int:
    """How long lines may be: that of the terminal by default, 80 characters if there is none."""
    if width is None:
        return max(shutil.get_terminal_size((80, 24)).columns, LEAST_WIDTH)
    if isinstance(width, bool) or not isinstance(width, int) or width < LEAST_WIDTH:
        raise ValueError(f"[summary] expected width >= {LEAST_WIDTH} or None, got {width!r}")
    return width


def wrapped(text: str, width: int, indent: str = "  ") -> list[str]:
    """A sentence in lines; those after the first are indented."""
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)


def _listed(names: list[str], width: int) -> list[str]:
    """Names in indented lines. One that is too long for a line is broken behind a dot or comma."""
    room = width - len(INDENT)
    lines = [""]
    for number, name in enumerate(names):
        rest = name if number == len(names) - 1 else f"{name},"
        while len(rest) > room:
            end = max(rest.rfind(mark, 0, room) for mark in ".,") + 1 or room
            lines.append(rest[:end])
            rest = rest[end:]
        if lines[-1].endswith(",") and len(lines[-1]) + 1 + len(rest) <= room:
            lines[-1] += f" {rest}"
        else:
            lines.append(rest)
    return [INDENT + line for line in lines if line]


def _named(sentence: str, names: Iterable[str], width: int) -> list[str]:
    """A sentence, and under it the names that it is about."""
    return wrapped(sentence, width) + _listed(fold(names), width)


# ---- the table -----------------------------------------------------------------------------------


def _break_even(row: Row) -> str:
    """The sparsity from which on the sparse product is faster, and how it was found."""
    if row["chosen_by"] == "user":
        return "set by user"
    if row["break_even"] is None:
        return "not chosen yet"
    sparsity = "none" if row["break_even"] == 1 else f"{row['break_even']:.2f}"
    return f"{sparsity} ({'measured' if row['chosen_by'] == 'tune' else 'predicted'})"


def _zeros(row: Row) -> str:
    """Achieved and wanted. Of a gradient that was left alone nothing was."""
    wanted = f"{row['sparsity_wanted']:.3f}" if row["compressed"] or "way" in row else "-"
    return f"{row['sparsity']:.3f} {f'({wanted})':>7}"


def _columns(rows: list[Row], prunes: bool) -> dict[str, Cell]:
    """By head, what stands in a column; the important ones first."""
    is_sparse = any("way" in row for row in rows)
    columns: dict[str, Cell] = {"calls": lambda row: str(row["calls"])}
    if prunes:
        columns["zeros (wanted)"] = _zeros
    else:
        columns["zeros"] = lambda row: f"{row['sparsity']:.3f}"
    columns["cosine"] = lambda row: f"{row['cosine']:.4f}"
    if is_sparse:
        columns["way"] = lambda row: row["way"]
        columns["break-even"] = _break_even
    columns["rel.err"] = lambda row: f"{row['relative_error']:.4f}"
    if not is_sparse:
        columns["format"] = lambda row: row["format"] or "-"
    columns["values"] = lambda row: str(row["elements"])
    columns["log2std"] = lambda row: f"{row['log_std'] / math.log(2):.2f}"
    if not is_sparse:
        columns["scale"] = lambda row: f"{row['scale']:.2e}" if row["scale"] else "-"
    return columns


def _worst_first(report: Mapping[str, Row]) -> dict[str, Row]:
    """By what is left of the direction, then by error. What was not compressed is at the end."""

    def rank(item: tuple[str, Row]) -> tuple:
        row = item[1]
        if not (row["calls"] and row["compressed"]):
            return (1, row["calls"] == 0, 0.0)
        cosine, error = row["cosine"], row["relative_error"]
        return (0, -math.inf if math.isnan(cosine) else cosine, -error)

    return dict(sorted(report.items(), key=rank))


def _table(report: Mapping[str, Row], width: int, prunes: bool) -> list[str]:
    rows = list(report.values())
    names = [name or MODEL for name in report]
    longest = max(map(len, ["layer", *names]))
    room, shown = width, {}
    left_out: list[str] = []
    for head, cell in _columns(rows, prunes).items():
        # A layer without a backward pass has only its number of calls.
        texts = [head, *(cell(row) if row["calls"] or head == "calls" else "-" for row in rows)]
        size = 1 + max(len(text) for text in texts)
        # A column that does not fit ends the table.
        if left_out or room - size < min(longest, width - ROOM_FOR_COLUMNS):
            left_out.append(head)
        else:
            shown[head] = [text.rjust(size) for text in texts]
            room -= size
    size = min(longest, room)
    lines = []
    for name, *cells in zip(["layer", *names], *shown.values(), strict=True):
        # A name is never cut, so that it can be given to include= and exclude=.
        lines += [name.ljust(size)] if len(name) <= size else [*_hard(name, width), " " * size]
        lines[-1] += "".join(cells)
    if left_out:
        note = f"(without {', '.join(left_out)} at {width} columns; report() has all)"
        lines += wrapped(note, width, " ")
    return lines


def _hard(name: str, width: int) -> list[str]:
    """A name that is longer than a line is broken: nothing is lost."""
    return textwrap.wrap(name, width, subsequent_indent=INDENT, break_on_hyphens=False)


def _asides(report: Mapping[str, Row], width: int) -> list[str]:
    """Rows of the table that are not what they seem: nothing was done there."""
    silent = [name for name, row in report.items() if not row["calls"]]
    if len(silent) == len(report):
        return ["no backward pass yet"]
    alone = [
        name
        for name, row in report.items()
        if row["calls"] and not row["compressed"] and row.get("way") != "dense"
    ]
    lines = []
    if silent:
        lines += _named(f"{_count(silent)} without a backward pass yet", silent, width)
    if alone:
        lines += _named(f"{_count(alone)} left alone, small or in warm-up", alone, width)
    return lines


# ---- around it -----------------------------------------------------------------------------------


def _count(names: list[str]) -> str:
    return f"{len(names)} layer{'' if len(names) == 1 else 's'}"


def _by(pairs: Iterable[tuple]) -> dict:
    """Values that have the same key, in one list."""
    groups: dict = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def _left(left: Mapping[str, str], width: int) -> list[str]:
    groups = _by((why, name) for name, why in left.items())
    return [
        line
        for why, names in groups.items()
        for line in _named(f"{_count(names)} not converted: {why}", names, width)
    ]


def _activations(report: ConversionReport, width: int) -> list[str]:
    lines = wrapped(f"activations: {report.nothing}", width) if report.nothing else []
    kinds = _by((report.saved.get(name, now), (name, was)) for name, was, now in report.converted)
    for kept, members in kinds.items():
        counts = Counter(was for _, was in members)
        what = ", ".join(f"{count} {was}" for was, count in counts.items())
        lines += _named(f"activations, {kept}: {what}", [name for name, _ in members], width)
    for (what, why), names in _by(((what, why), name) for name, what, why in report.left).items():
        lines += _named(f"activations left, {len(names)} {what}: {why}", names, width)
    return lines


_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+|%)")  # not those of a format, 1-4-1


def _spans(sentences: list[str]) -> str:
    """Sentences that differ in their numbers alone, as one: 0.43..0.70."""
    columns = zip(*(_NUMBER.findall(sentence) for sentence in sentences), strict=True)
    spans = []
    for texts in columns:
        low, high = (f(texts, key=lambda text: float(text.rstrip("%"))) for f in (min, max))
        spans.append(low if low == high else f"{low}..{high}")
    return _NUMBER.sub(lambda _: spans.pop(0), sentences[0])


def _warnings(sentences: list[str], names: Iterable[str], width: int) -> list[str]:
    """What several layers are told with other numbers is said once."""
    names = sorted(names, key=len, reverse=True)  # the longest that fits
    about = {s: next((n for n in names if s.startswith(f"{n}: ")), None) for s in sentences}
    bodies = {s: s if name is None else s[len(name) + 2 :] for s, name in about.items()}
    lines = []
    for members in _by((_NUMBER.sub("#", bodies[s]), s) for s in sentences).values():
        if len(members) == 1 or about[members[0]] is None:
            whole = [MODEL + s if about[s] == "" else s for s in members]
            lines += [line for s in whole for line in wrapped(f"warning: {s}", width)]
            continue
        told = [bodies[s] for s in members]
        sentence = f"warning, {len(members)} times: {_spans(told)}"
        lines += _named(sentence, [about[s] or "" for s in members], width)
    return lines


def _bytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"


def _saved(saved: SavedModules | None, width: int) -> list[str]:
    """What autograd saved in the last pass."""
    if saved is None:
        return []
    tally = saved.tally
    where = "" if list(saved.packing) == [""] else f" in {', '.join(fold(saved.packing))}"
    lines = wrapped(f"saved for backward{where}: {saved.in_words()}", width)
    if not tally.packed and not tally.left:
        why = (
            "no forward pass with gradients yet; of one that torch.compile runs with another "
            "backend than inductor none is packed"
        )
        return lines + wrapped(f"  {why}", width, INDENT)
    sizes = f"{_bytes(tally.plain_bytes)} are {_bytes(tally.bytes)}"
    lines += wrapped(f"  packed, {tally.packed} tensors: {sizes}", width, INDENT)
    if tally.packing_seconds:  # Graphs of torch.compile have no clock.
        times = f"{1e3 * tally.packing_seconds:.1f} + {1e3 * tally.unpacking_seconds:.1f} ms"
        lines += wrapped(f"  packing and unpacking took {times}", width, INDENT)
    for why, (count, size) in sorted(tally.left.items(), key=lambda item: -item[1][1]):
        lines += wrapped(f"  left, {count} tensors of {_bytes(size)}: {why}", width, INDENT)
    return lines


def summary_lines(
    report: Mapping[str, Row],
    left: Mapping[str, str],
    activations: ConversionReport,
    warnings: list[str],
    *,
    saved: SavedModules | None = None,
    prunes: bool,
    width: int | None = None,
    worst_first: bool = False,
) -> list[str]:
    """None is longer than ``width``."""
    width = line_width(width)
    lines = []
    if report:
        rows = _worst_first(report) if worst_first else report
        lines += _table(rows, width, prunes) + _asides(report, width)
    lines += _left(left, width) + _activations(activations, width) + _saved(saved, width)
    return lines + _warnings(warnings, report, width)
