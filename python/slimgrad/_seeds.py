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
    # As the 64 bits that ops take it for.
    return (int(seed) + (1 << 63)) % (1 << 64) - (1 << 63)


def layer_seed(seed: int, index: int) -> int:
    """That of one of a model's layers."""
    return ops.layer_seed(seed, index)
