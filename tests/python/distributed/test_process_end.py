"""The end of groups and of a process that has exchanged gradients."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import join_group, run_ranks

import slimgrad as sg


def _threads() -> list[str]:
    names = [Path(task, "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    return [name for name in names if name.startswith("slimgrad")]


def _groups_come_and_go(rank, world, port, folder):
    join_group(rank, world, port)
    found = []
    for _ in range(4):
        group = dist.new_group()
        sg.distributed.all_reduce(torch.ones(5000), "uniform8", group=group)
        assert _threads()
        dist.barrier()
        dist.destroy_process_group(group)
        del group
        end = time.monotonic() + 60
        while _threads() and time.monotonic() < end:
            time.sleep(0.05)
        counts = [len(os.listdir(f"/proc/self/{kind}")) for kind in ("task", "fd")]
        found.append((len(_threads()), *counts))
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_a_destroyed_group_leaves_no_thread_and_no_descriptor(tmp_path):
    run_ranks(_groups_come_and_go, (str(tmp_path),), world=2)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        # The first group may start threads that torch has once for a process.
        assert [counts[0] for counts in found] == [0] * 4
        assert found[1][1:] == found[-1][1:], found
