"""Names of layers for readers: many in few words, and long ones short, never ambiguous."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MODEL = "(model)"  # what the empty name of the model itself is called


# ---- many names in few words ---------------------------------------------------------------------


def _is_number(part: str) -> bool:
    """One that a range may stand for; "01" and "1" are two names."""
    return part.isascii() and part.isdecimal() and str(int(part)) == part


def _merge(names: list[tuple], place: int, numbers: bool) -> list[tuple]:
    """Joins names that are equal but at one place; the values there become one tuple."""
    groups: dict[tuple, list] = {}
    for name in names:
        part = name[place] if place < len(name) else None
        joins = isinstance(part, str) and _is_number(part) == numbers
        joins = joins and (numbers or len(name) > 1)  # "a, b" is shorter than "{a,b}"
        key = (*name[:place], None, *name[place + 1 :]) if joins else name
        groups.setdefault(key, []).append(part)
    merged = []
    for key, parts in groups.items():
        if None in key:
            value = parts[0] if len(parts) == 1 else tuple(parts)
            key = (*key[:place], value, *key[place + 1 :])
        merged.append(key)
    return merged


def _ranges(numbers: Iterable[str]) -> str:
    """Of 0, 1, 2, 3 and 7: "0-3,7"."""
    runs: list[list[int]] = []
    for number in sorted(int(n) for n in numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def _text(part: str | tuple[str, ...]) -> str:
    if isinstance(part, str):
        return part
    if all(_is_number(value) for value in part):
        text = _ranges(part)
        return f"{{{text}}}" if "," in text else text
    return f"{{{','.join(part)}}}"


def fold(names: Iterable[str]) -> list[str]:
    """Every name, but numbered ones together: "layer.0-11.query", "block.{0,2}.{key,value}"."""
    folded: list[tuple] = [tuple((name or MODEL).split(".")) for name in dict.fromkeys(names)]
    depth = max((len(name) for name in folded), default=0)
    for numbers in (True, False):  # Numbers first: they are what is repeated.
        for place in reversed(range(depth)):
            folded = _merge(folded, place, numbers)
    return [".".join(_text(part) for part in name) for name in folded]


# ---- long names, short ---------------------------------------------------------------------------


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
    same. The first words are cut before the last, which says what a layer is; numbers never. Names
    that begin alike are cut alike."""
    shown = {name: name or MODEL for name in names}
    paths = {name: tuple(text.split(".")) for name, text in shown.items()}
    needed = {p: _distinct_lengths(parts) for p, parts in _children(list(paths.values())).items()}

    def cut(path: tuple[str, ...], length: int, last: int) -> str:
        parts = []
        for depth, part in enumerate(path):
            keep = last if depth == len(path) - 1 else length
            least = needed[path[:depth]][part]
            whole = _is_number(part) or part == MODEL
            parts.append(part if whole else part[: max(keep, least)])
        return ".".join(parts)

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
