"""Names that a reader can tell apart: of runs, by what differs between them; of layers, short."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from ..compression.names import MODEL, is_number
from .runs import Run

MOST_FIELDS = 3  # that differ, before the file's name says it better
CUT = "\u2026"


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
    """By what was set to be compressed; where that is the same, by what else differs, or by the
    file; the colours follow the order."""
    groups = defaultdict(list)
    for index, run in enumerate(runs):
        run.index = index
        run.name = "plain" if run.is_plain else plain(", ".join(run.compressed()) or run.source)
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


# ---- layers --------------------------------------------------------------------------------------


def _distinct_lengths(siblings: Sequence[str]) -> dict[str, int]:
    """How much of each must stay so that none is the beginning of another; all, if one is."""
    lengths = {}
    for word in siblings:
        others = [other for other in siblings if other != word]
        ends = range(1, len(word) + 1)
        lengths[word] = next(
            (n for n in ends if not any(o.startswith(word[:n]) for o in others)), len(word)
        )
    return lengths


def _children(names: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], list[str]]:
    children: dict[tuple[str, ...], dict[str, None]] = {}
    for name in names:
        for depth, part in enumerate(name):
            children.setdefault(name[:depth], {})[part] = None
    return {parent: list(parts) for parent, parts in children.items()}


def shorten(names: Sequence[str], width: int) -> dict[str, str]:
    """Names of at most ``width`` characters where that can be: each word is cut as little as that
    takes, and never so far that it could be another at its place, so two names never become the
    same. A word that was cut ends with an ellipsis instead of a dot. The first words are cut before
    the last, which says what a layer is; numbers never. Names that begin alike are cut alike."""
    shown = {name: name or MODEL for name in names}
    paths = {name: tuple(text.split(".")) for name, text in shown.items()}
    needed = {p: _distinct_lengths(parts) for p, parts in _children(list(paths.values())).items()}

    def cut(path: tuple[str, ...], length: int, last: int) -> str:
        text = ""
        for depth, part in enumerate(path):
            keep = max(last if depth == len(path) - 1 else length, needed[path[:depth]][part])
            is_whole = is_number(part) or part == MODEL or keep >= len(part)
            text += f"{part}." if is_whole else f"{part[:keep]}{CUT}"
        return text.removesuffix(".")

    groups: dict[str, list[str]] = {}
    for name, path in paths.items():
        groups.setdefault(path[0], []).append(name)
    for group in groups.values():
        longest = max(len(part) for name in group for part in paths[name])
        first_words = [(length, longest) for length in range(longest, 2, -1)]
        all_words = [(length, last) for last in range(longest, 0, -1) for length in (3, 2, 1)]
        for lengths in first_words + all_words:
            shown |= {name: cut(paths[name], *lengths) for name in group}
            if all(len(shown[name]) <= width for name in group):
                break
    return shown


def short_layers(layers: list[str], width: int = 18) -> list[str]:
    """For an axis: cut where that is needed, in the middle if nothing else helps. The same layer is
    called the same, two never are."""
    whole = list(dict.fromkeys(layers))
    short = shorten(whole, width)
    for name, text in short.items():
        if len(text) > width + 4:
            short[name] = f"{text[: width // 2 + 1]}{CUT}{text[-(width // 2) :]}"
    if len(set(short.values())) < len(whole):
        for i, name in enumerate(whole, 1):
            text = short[name]
            short[name] = f"{i}: {text if len(text) <= width else CUT + text[-width:]}"
    return [short[name] for name in layers]
