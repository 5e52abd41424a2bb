"""Seeds of random draws."""

from __future__ import annotations

import torch

from ._library import ops


def fresh_seed(seed: int | None) -> int:
    """``seed``, or one from torch's generator, so that torch.manual_seed reproduces a run."""
    if seed is None:
        return int(torch.randint(1 << 62, (), device="cpu").item())
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise ValueError(f"[compress] expected seed to be a whole number or None, got {seed!r}")
    return _as_int64(seed)


def derive_seed(seed: int, *parts: int | str) -> int:
    """A seed for one of the places that draw, from a seed for all of them.

    parts: what tells the place from the others, numbers or names: a module's name, a rank, a step.
        Two lists of parts that differ, also in their order, give different seeds (but for a
        probability of 2^-64), which adding numbers to a seed does not.

    ``derive_seed(seed, a, b)`` is ``derive_seed(derive_seed(seed, a), b)``. Same result as
    ``slimgrad::derive_seed`` in <slimgrad/seed.h>.
    """
    seed = _as_int64(seed)
    for part in parts:
        names, numbers = ([part], []) if isinstance(part, str) else ([], [_as_int64(part)])
        seed = ops.derive_seed(seed, names, numbers)
    return seed


def _as_int64(number: int) -> int:
    """The lowest 64 bits, as ops take them."""
    return (int(number) + (1 << 63)) % (1 << 64) - (1 << 63)
