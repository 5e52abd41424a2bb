"""Names that a reader can tell apart: of runs, by what differs between them; of layers, short."""

from __future__ import annotations

from collections import Counter, defaultdict

from ..names import shorten
from .runs import Run

MOST_FIELDS = 3  # that differ, before the file's name says it better


def plain(text: str) -> str:
    """Without what plotly would read as markup."""
    return text.replace("<", "\u2039").replace(">", "\u203a")


def _differing(runs: list[Run]) -> list[str]:
    fields = dict.fromkeys(name for run in runs for name in run.config)
    left_out = {"kind", "run", "schema", "data_hash", "parameters", "probe", "probe_at", "rate"}
    return [
        name
        for name in fields
        if name not in left_out and len({str(run.config.get(name)) for run in runs}) > 1
    ]


def give_names(runs: list[Run]) -> None:
    """By what was done to the gradients; where that is the same, by what else differs, or by the
    file; the colours follow the order."""
    groups = defaultdict(list)
    for index, run in enumerate(runs):
        run.index = index
        name = str(run.config.get("gradients") or run.source)
        run.name = "plain" if name == "none" else plain(name)
        groups[run.name].append(run)
    for group in groups.values():
        if len(group) > 1:
            _tell_apart(group)


def _tell_apart(group: list[Run]) -> None:
    fields = _differing(group)
    for run in group:
        if 0 < len(fields) <= MOST_FIELDS:
            words = [f"{name} {run.config.get(name)}" for name in fields]
            run.name = plain(", ".join([run.name, *words]))
        elif len({other.source for other in group}) == len(group):
            run.name = f"{run.name} ({run.source})"
    names = Counter(run.name for run in group)
    number = Counter()
    for run in group:
        if names[run.name] > 1:
            number[run.name] += 1
            run.name = f"{run.name} #{number[run.name]}"


def short_layers(layers: list[str], width: int = 18) -> list[str]:
    """For an axis: cut where that is needed, in the middle if nothing else helps. The same layer is
    called the same, two never are."""
    whole = list(dict.fromkeys(layers))
    short = shorten(whole, width)
    for name, text in short.items():
        if len(text) > width + 4:
            short[name] = f"{text[: width // 2 + 1]}\u2026{text[-(width // 2) :]}"
    if len(set(short.values())) < len(whole):
        short = {name: f"{i}: {short[name][-width:]}" for i, name in enumerate(whole, 1)}
    return [short[name] for name in layers]
