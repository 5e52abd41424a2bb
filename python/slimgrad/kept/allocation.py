"""Spreading bytes over items so that the sum of their errors is least."""

from __future__ import annotations

from collections.abc import Sequence

Choice = tuple[int, float]  # bytes, error


def _steps(choices: Sequence[Choice]) -> list[tuple[float, int, int]]:
    """Along the lower convex hull: error saved for a byte, from which choice, to which."""
    steps, at = [], 0
    while at < len(choices) - 1:
        num_bytes, error = choices[at]

        def slope(to: int, num_bytes: int = num_bytes, error: float = error) -> float:
            return (error - choices[to][1]) / (choices[to][0] - num_bytes)

        to = max(range(at + 1, len(choices)), key=lambda i: (slope(i), i))
        if slope(to) <= 0:
            break
        steps.append((slope(to), at, to))
        at = to
    return steps


def spread(items: Sequence[Sequence[Choice]], room: int) -> list[int]:
    """For every item the number of its choice, so that all bytes together are at most ``room``.

    items: for each its choices, in the order of their bytes, all different.

    Every item begins with its first choice, even where those do not fit. Then steps are taken along
    the convex hull of each item, that which saves most error for a byte first, as a multiplier of
    Lagrange would order them: up to the first step that does not fit, no other choice with as few
    bytes has less error. Later steps that do fit fill the rest. So the error is above the least one
    by at most what that first step would have saved. Ties go to the earlier item.
    """
    chosen = [0] * len(items)
    left = room - sum(choices[0][0] for choices in items)
    steps = [(-slope, i, at, to) for i, item in enumerate(items) for slope, at, to in _steps(item)]
    for _, i, at, to in sorted(steps):
        cost = items[i][to][0] - items[i][at][0]
        if chosen[i] == at and cost <= left:
            chosen[i] = to
            left -= cost
    return chosen
