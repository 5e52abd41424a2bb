"""Numbers and lists in the words of a title."""

from __future__ import annotations

from collections.abc import Sequence

LAW_NAMES = {"normal": "normal", "lognormal": "lognormal", "gennorm": "generalized normal"}


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def span(values: Sequence[float], form: str = ".2f") -> str:
    """Such as "1.20 to 3.40", or "1.20" if all are equal."""
    low, high = f"{min(values):{form}}", f"{max(values):{form}}"
    return low if low == high else f"{low} to {high}"


def size(num_bytes: float) -> str:
    for unit, power in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= power:
            return f"{num_bytes / power:.3g} {unit}"
    return f"{num_bytes:.0f} bytes"


def many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def most_frequent(words: Sequence[str]) -> tuple[str, int]:
    """The word that occurs most often, the first one in a tie, and its count."""
    best = max(dict.fromkeys(words), key=words.count)
    return best, words.count(best)
