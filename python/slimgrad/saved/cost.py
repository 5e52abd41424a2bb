"""What packing and unpacking should take on this machine. It is for the text of reports alone: no
result depends on it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping

import torch

from .._library import ops
from .handles import CAST, Kind
from .settings import EXACT

_SIZE = 1 << 20  # larger than most caches, and 1 ms of work
_ROUNDS = 5


def _best(work: Callable[[], object]) -> float:
    """Seconds a value."""
    times = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times) / _SIZE


@functools.cache
def _seconds_a_value(kind: Kind, num_threads: int) -> tuple[float, float]:
    """To pack and to unpack; measured once, in some 10 ms. Masks stand for all that is exact."""
    bits, group, dtype = kind
    if not dtype.is_floating_point:
        x = torch.arange(_SIZE, dtype=dtype)
        small = x.to(torch.int32)
        return _best(lambda: x.to(torch.int32)), _best(lambda: small.to(dtype))
    x = torch.linspace(-1, 1, _SIZE).to(dtype)
    size, stride = x.size(), x.stride()
    if bits == CAST:
        small = x.to(torch.bfloat16)
        return _best(lambda: x.to(torch.bfloat16)), _best(lambda: small.to(torch.float32))
    if bits == EXACT:
        mask = (x > 0).to(dtype)
        packed = ops.pack_exact(mask)
        unpack = lambda: ops.unpack_exact(packed, size, stride, dtype)  # noqa: E731
        return _best(lambda: ops.pack_exact(mask)), _best(unpack)
    packed = ops.pack_saved(x, bits, group, "stochastic", 0, 0)
    unpack = lambda: ops.unpack_saved(packed, size, stride, dtype, bits, group)  # noqa: E731
    return _best(lambda: ops.pack_saved(x, bits, group, "stochastic", 0, 0)), _best(unpack)


def expected_seconds(work: Mapping[Kind, tuple[int, int]]) -> tuple[float, float]:
    """Of packing and of unpacking so many values of each kind, without Python's part."""
    threads = torch.get_num_threads()
    costs = [(_seconds_a_value(kind, threads), counts) for kind, counts in work.items()]
    packing = sum(cost[0] * counts[0] for cost, counts in costs)
    return packing, sum(cost[1] * counts[1] for cost, counts in costs)
