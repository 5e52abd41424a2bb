"""The speed of the link, measured by a short exchange between neighbours, and speeds as text."""

from __future__ import annotations

import re
import time
from typing import Any

import torch
import torch.distributed as dist

from .._support import number
from .cost import Link

_PIECE = 1 << 20  # bytes per message: larger ones do not fill a slow link with Gloo
_ENOUGH = 0.2  # seconds: then a burst that a switch lets through at once is a small part
_MOST = 64 << 20  # bytes: 64 MiB in less than that are 2.7 Gbit/s and more
_ROUNDS = 8  # of the smallest message, of which the quickest counts

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def as_bandwidth(value: Any, op: str) -> float:
    """Bits a second: a number, or text such as "1 Gbit/s", "100mbit", "25 Gb/s"."""
    if isinstance(value, str):
        # A capital B would be bytes, and is refused.
        found = re.fullmatch(
            r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([kKmMgGtT]?)(?:b|[bB]its?)?(?:/s|ps)?", value.strip()
        )
        try:
            bits = float(found[1]) * _UNITS[found[2].lower()] if found else 0.0
        except ValueError:
            bits = 0.0
        if not found or not 0 < bits < float("inf"):
            raise ValueError(
                f"[{op}] expected bandwidth in bits per second, such as 1e9 or '1 Gbit/s', "
                f"got {value!r}"
            )
        return bits
    bits = number(value, op, "bandwidth")
    if not 0 < bits < float("inf"):
        raise ValueError(f"[{op}] expected bandwidth to be positive bits per second, got {bits:g}")
    return bits


def bandwidth_text(bits: float) -> str:
    if bits == float("inf"):
        return "any"
    for unit, name in ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= 0.9995 * unit:
            return f"{bits / unit:.3g} {name}"
    return f"{bits:.3g} bit/s"


def _exchange(outgoing: torch.Tensor, incoming: torch.Tensor, group) -> float:
    """Seconds of the slowest rank for sending to its right while receiving from its left."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    right, left = ((rank + step) % ranks for step in (1, -1))
    if group is not None:
        right, left = (dist.get_global_rank(group, r) for r in (right, left))
    dist.barrier(group)
    start = time.perf_counter()
    works: list[Any] = []
    for there, here in zip(outgoing.split(_PIECE), incoming.split(_PIECE), strict=True):
        works += [dist.irecv(here, left, group=group), dist.isend(there, right, group=group)]
    for work in works:
        work.wait()
    took = torch.tensor(time.perf_counter() - start, dtype=torch.float64, device=outgoing.device)
    dist.all_reduce(took, dist.ReduceOp.MAX, group)
    return float(took)


def measure_link(group=None, device: torch.device | str = "cpu") -> Link:
    """Bandwidth and latency as this group's ranks see them, the same on every rank.

    All ranks must call it. Every rank sends to its neighbour at once, twice as much each time,
    until that takes 0.2 s or has 64 MiB: half a second in all on most links, and on a very slow one
    as long as 128 KiB need.
    """
    if dist.get_world_size(group) < 2:
        return Link(float("inf"), 0.0)
    buffers = [torch.zeros(_MOST, dtype=torch.uint8, device=device) for _ in range(2)]
    outgoing, incoming = buffers
    _exchange(outgoing[:1], incoming[:1], group)  # makes the connections
    latency = min(_exchange(outgoing[:1], incoming[:1], group) for _ in range(_ROUNDS))
    size = _PIECE // 8
    while True:
        seconds = _exchange(outgoing[:size], incoming[:size], group)
        if seconds >= _ENOUGH or size >= _MOST:
            return Link(8 * size / max(seconds - latency, 1e-9), latency)
        size *= 2
