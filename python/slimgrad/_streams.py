"""Which random numbers a process draws: ranks of a distributed job draw their own, so that their
errors average out."""

from __future__ import annotations

import torch


def current_stream(stream: int | None) -> int:
    """``stream`` if it was set, or the rank that this process has by now: a model is often
    converted before its process group exists."""
    if stream is not None:
        return stream
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 0
    return distributed.get_rank()


def check_stream(stream: int | None, op: str) -> int | None:
    if stream is None or (isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0):
        return stream
    raise ValueError(f"[{op}] expected stream to be a whole number >= 0 or None, got {stream!r}")
