"""Names that an argument may have, as the library lists them."""

from __future__ import annotations

from functools import cache

from ._library import ops


@cache
def choices(what: str) -> tuple[str, ...]:
    return tuple(ops.choices(what))


def check_choice(value: str, what: str, op: str, name: str) -> None:
    if value not in choices(what):
        raise ValueError(
            f"[{op}] expected {name} to be one of {', '.join(choices(what))}; got {value!r}"
        )
