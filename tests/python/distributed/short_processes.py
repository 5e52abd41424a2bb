"""Many short processes that train together and end: how many end badly?

    python tests/python/distributed/short_processes.py --processes 300
    python tests/python/distributed/short_processes.py --codec torch --lose-a-rank

Groups of ranks, one after the other, each a few steps of DistributedDataParallel whose gradients a
codec makes small ("torch": none, for comparison). With --lose-a-rank the last rank of each group
kills itself in the third step, and the others end after they have caught the error. A rank ends
badly by a signal other than its own, such as an abort in Python's last moments, or with an error
that nobody expects. Ranks are forked from a process that has imported torch, so that 300 take a
minute or two; they end as any process does, with all that Python and the libraries do then.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import slimgrad as sg


def train(rank: int, world: int, store: str, codec: str, loses_a_rank: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, world),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    layers = [torch.nn.Linear(64, 128), torch.nn.Linear(128, 64)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    if codec != "torch":
        sg.distributed.register(model, codec)
    try:
        for step in range(3):
            # Before the second step DDP exchanges buckets by itself, and raises as it does.
            if loses_a_rank and step == 2 and rank == world - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            model(torch.randn(8, 64)).sum().backward()
    except RuntimeError as error:  # an ExchangeError, or torch's
        if not loses_a_rank:
            raise
        expected = sg.distributed.ExchangeError if codec != "torch" else RuntimeError
        assert isinstance(error, expected), error
        return
    assert not loses_a_rank
    dist.barrier()
    dist.destroy_process_group()


def how_it_ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit {os.WEXITSTATUS(status)}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=300)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--codec", default="uniform8")
    parser.add_argument("--lose-a-rank", action="store_true")
    parser.add_argument("--seconds", type=float, default=300, help="most that it takes")
    arguments = parser.parse_args()
    ended: Counter[str] = Counter()
    begun, world = time.monotonic(), arguments.ranks
    while sum(ended.values()) < arguments.processes:
        if time.monotonic() - begun > arguments.seconds:
            print("out of time")
            break
        with tempfile.TemporaryDirectory() as folder:
            ranks = []
            for rank in range(world):
                if not (pid := os.fork()):
                    store = str(Path(folder) / "store")
                    train(rank, world, store, arguments.codec, arguments.lose_a_rank)
                    return  # to the end of the script, and of Python
                ranks.append(pid)
            for rank, pid in enumerate(ranks):
                how = how_it_ended(os.waitpid(pid, 0)[1])
                is_lost = arguments.lose_a_rank and rank == world - 1
                ended["killed itself" if is_lost and how == "SIGKILL" else how] += 1
    words = ", ".join(f"{count} x {how}" for how, count in sorted(ended.items()))
    print(f"{arguments.codec}, {world} ranks: {words}; {time.monotonic() - begun:.0f} s")
    sys.exit(set(ended) - {"exit 0", "killed itself"} != set())


if __name__ == "__main__":
    main()
