"""Memory that is cached between calls."""

from __future__ import annotations

from ._library import ops


def cached_memory() -> int:
    """Bytes that are cached for the next backward pass: at most 64 MiB of workspace of sparse
    products, 128 MiB of their results' memory and 32 MiB of unpacked tensors' memory, for all
    threads together."""
    return ops.cached_memory()


def empty_cache() -> int:
    """Returns all cached memory to the system, and how many bytes that was. Safe at any time and
    from any thread; the next backward pass allocates fresh memory, which takes some time."""
    return ops.empty_cache()
