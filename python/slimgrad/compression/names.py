"""Names of layers for readers: many in few words."""

from __future__ import annotations

from collections.abc import Iterable

MODEL = "(model)"  # what the empty name of the model itself is called


def is_number(part: str) -> bool:
    """One that a range may stand for; "01" and "1" are two names."""
    return part.isascii() and part.isdecimal() and str(int(part)) == part


def _merge(names: list[tuple], place: int, numbers: bool) -> list[tuple]:
    """Joins names that are equal but at one place; the values there become one tuple."""
    groups: dict[tuple, list] = {}
    for name in names:
        part = name[place] if place < len(name) else None
        joins = isinstance(part, str) and is_number(part) == numbers
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
    if all(is_number(value) for value in part):
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
