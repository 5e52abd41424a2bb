"""What sparse products and unpacked tensors keep between calls."""

from __future__ import annotations

from ._library import ops


def kept_memory() -> int:
    """Bytes that sparse backward passes keep for the next one: at most 64 MiB of workspace and
    128 MiB that gradients have left behind, for all threads together. What keep() has unpacked
    leaves at most 32 MiB behind."""
    return ops.kept_memory()


def release_memory() -> int:
    """Gives it all back, and returns how many bytes that was. At any time, from any thread; the
    next backward pass takes fresh memory, which costs it some time."""
    return ops.release_memory()
