"""How saved tensors are packed: the argument ``saved`` of compress()."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._library import ops
from .._support import in_the_name_of

EXACT = "exact"
BITS = (8, 4, 2)
GROUPS = (16, 32, 64, 128, 256, 512)
ROUNDINGS = ("stochastic", "nearest")


@dataclass(frozen=True)
class Saved:
    """bits: 8, 4 or 2 a value, or "exact": zeros are left out, and every bit comes back.
    group: how many neighbours in memory share a scale, 16 to 512; by default 256, and 64 at 2 bits.
    rounding: "stochastic", which is unbiased, or "nearest".
    min_elements: smaller tensors stay as they are.
    """

    bits: int | str = 8
    group: int | None = None
    rounding: str = "stochastic"
    min_elements: int = 4096

    def __post_init__(self) -> None:
        self._check_bits()
        if self.rounding not in ROUNDINGS:
            raise ValueError(
                f"[Saved] expected rounding to be one of {', '.join(ROUNDINGS)}, got "
                f"{self.rounding!r}"
            )
        if not (_is_whole(self.min_elements) and self.min_elements >= 0):
            raise ValueError(f"[Saved] expected min_elements >= 0, got {self.min_elements!r}")

    def _check_bits(self) -> None:
        is_width = _is_whole(self.bits) and self.bits in BITS
        if self.bits != EXACT and not is_width:
            raise ValueError(f"[Saved] expected bits to be 8, 4, 2 or 'exact', got {self.bits!r}")
        if self.bits == EXACT and self.group is not None:
            raise ValueError(f"[Saved] expected no group with bits='exact', got {self.group!r}")
        if self.bits == EXACT and self.rounding != Saved.rounding:
            raise ValueError(
                f"[Saved] expected no rounding with bits='exact', got {self.rounding!r}"
            )
        if self.group is not None and not (_is_whole(self.group) and self.group in GROUPS):
            listed = ", ".join(map(str, GROUPS))
            raise ValueError(f"[Saved] expected group to be one of {listed}, got {self.group!r}")

    def _group_at(self, bits: int) -> int:
        return ops.default_saved_group(bits) if self.group is None else self.group

    def _in_words(self) -> str:
        if self.bits == EXACT:
            return "exactly"
        nearest = ", to the nearest" if self.rounding == "nearest" else ""
        return f"{self.bits} bits, groups of {self._group_at(self.bits)}{nearest}"


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def parse_saved(saved: int | str | Saved) -> Saved:
    """The argument of compress()."""
    with in_the_name_of("compress"):
        return saved if isinstance(saved, Saved) else Saved(bits=saved)
