"""Reused memory: allocating fresh memory takes longer than coding."""

from __future__ import annotations

import threading

import torch

# Buffers are handed out in multiples of this, so that frames of nearly the same size share them.
_STEP = 1 << 20
# Bytes of address space: about a seventh of a buffer with a coded frame is ever written.
_MOST_CACHED = 1 << 30


class Buffers:
    """Bytes and sums for one group. Only the part of a buffer that was written takes memory."""

    def __init__(self):
        self._lock = threading.Lock()
        self._cached: dict[tuple, list[torch.Tensor]] = {}
        self._cached_bytes = 0

    def take(self, size: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        """At least ``size`` elements, whatever they hold."""
        size = max(1, -(-size // _STEP)) * _STEP
        with self._lock:
            cached = self._cached.get((size, dtype))
            if cached:
                buffer = cached.pop()
                self._cached_bytes -= buffer.nbytes
                return buffer
        return torch.empty(size, dtype=dtype)

    def give_back(self, buffer: torch.Tensor) -> None:
        with self._lock:
            if self._cached_bytes + buffer.nbytes <= _MOST_CACHED:
                self._cached.setdefault((buffer.numel(), buffer.dtype), []).append(buffer)
                self._cached_bytes += buffer.nbytes
