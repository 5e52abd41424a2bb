"""How saved tensors are packed: the argument ``saved`` of compress()."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._library import classes
from .._support import in_the_name_of

EXACT = "exact"


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
        if self.bits != EXACT and not (_is_whole(self.bits) and self.bits in (8, 4, 2)):
            raise ValueError(f"[Saved] expected bits to be 8, 4, 2 or 'exact', got {self.bits!r}")
        for name in ("group", "min_elements"):
            value = getattr(self, name)
            if not (_is_whole(value) or (name == "group" and value is None)):
                raise ValueError(f"[Saved] expected {name} to be a whole number, got {value!r}")
        if not isinstance(self.rounding, str):
            raise ValueError(f"[Saved] expected rounding to be a string, got {self.rounding!r}")
        self._packing(0, 0, "Saved")  # It checks the rest.

    def _packing(self, seed: int, stream: int, called: str) -> Any:
        """A slimgrad::SavedTensors; include/slimgrad/saved_tensors.h has what it does."""
        bits = 0 if self.bits == EXACT else self.bits
        group = 0 if self.group is None else self.group or -1  # In C++ 0 is the default one.
        return classes.SavedTensors(
            bits, group, self.rounding, self.min_elements, seed, stream, called
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def parse_saved(saved: int | str | Saved) -> Saved:
    """The argument of compress()."""
    with in_the_name_of("compress"):
        return saved if isinstance(saved, Saved) else Saved(bits=saved)
