"""Reads folded names back: "layer.0-1.{q,k}" is four names."""

import re


def values(part):
    if part.startswith("{"):
        return [value for each in part[1:-1].split(",") for value in values(each)]
    if re.fullmatch(r"\d+-\d+", part):
        first, last = part.split("-")
        return [str(n) for n in range(int(first), int(last) + 1)]
    return [part]


def unfold(folded):
    """The names that a folded one stands for."""
    names = [""]
    for part in folded.split("."):
        names = [f"{name}.{value}" for name in names for value in values(part)]
    return [name[1:] for name in names]
