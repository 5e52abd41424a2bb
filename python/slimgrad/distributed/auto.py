"""codec="auto": which codec suits this link? Measured once, at registration; every rank takes the
same."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
import torch.distributed as dist

from .cost import Link, Speed
from .estimation import Estimate, Workload, gradients_of, measured_workload
from .link import measure_link

# Fewer than eight bits may harm a training, so "auto" never chooses them.
CANDIDATES = ("lossless", "uniform8", "fp8", "packed8")


@dataclass(frozen=True)
class Choice:
    """What ``codec="auto"`` chose, and from what. ``codec`` is a name; "float32" is torch's own
    all-reduce, when nothing pays. To have the same again without measuring, register that name.
    """

    codec: str
    estimate: Estimate

    @property
    def link(self) -> Link:
        return self.estimate.link

    def __str__(self) -> str:
        return f'codec="auto" took {self.codec!r}. {self.estimate.verdict}'


def slowest(workload: Workload, group, device) -> Workload:
    """The same with the times of the slowest rank and the bytes of the longest, on every rank."""
    rows = [list(astuple(speed)) for speed in workload.speeds.values()]
    rows.append([workload.cast] * 5)
    numbers = torch.tensor(rows, dtype=torch.float64, device=device)
    dist.all_reduce(numbers, dist.ReduceOp.MAX, group)
    *rows, cast = numbers.tolist()
    speeds = {name: Speed(*row) for name, row in zip(workload.speeds, rows, strict=True)}
    return Workload(workload.values, workload.small, workload.tensors, cast[0], speeds)


def choose(model, group=None, candidates: Sequence[str] = CANDIDATES) -> Choice:
    """All ranks of ``group`` must call it: it measures the link, and every rank how fast it codes.

    That is a measurement by clock, which is why it happens only on request. Rank 0 decides; what it
    decides is in the result, on every rank alike.
    """
    tensors, sizes, where = gradients_of(model, None)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    ranks = dist.get_world_size(group)
    link = measure_link(group, device)
    workload = slowest(measured_workload(tensors, sizes, candidates), group, device)
    found = Estimate(workload, ranks, link, where)
    allowed = ["float32", *candidates]  # torch's float16 rounds to nearest, and overflows
    seconds = {name: found.row(name).seconds for name in allowed}
    best = torch.tensor(allowed.index(min(seconds, key=seconds.__getitem__)), device=device)
    source = 0 if group is None else dist.get_global_rank(group, 0)
    dist.broadcast(best, source, group)
    choice = Choice(allowed[int(best)], found)
    if dist.get_rank(group) == 0:
        logging.getLogger("slimgrad").warning("%s", choice)  # shown unless somebody says otherwise
    return choice
