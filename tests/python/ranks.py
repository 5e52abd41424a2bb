"""Runs the ranks of a distributed test, with an end to waiting."""

import socket
import time

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def join_group(rank: int, world: int, port: int) -> None:
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)


def leave_group() -> None:
    dist.barrier()  # A rank that closes its connections early can leave another one waiting.
    dist.destroy_process_group()


def run_ranks(worker, arguments: tuple, world: int = 2, seconds: float = 60) -> None:
    """worker(rank, world, port, *arguments) in `world` processes.

    Gloo on a busy machine was seen to hang between ranks; a run that takes too long is ended and
    tried again, twice at the most. An error in a rank is an error at once.
    """
    for _ in range(3):
        group = mp.spawn(worker, (world, free_port(), *arguments), nprocs=world, join=False)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if group.join(timeout=1):
                return
        for process in group.processes:
            process.kill()
    pytest.fail(f"the ranks did not finish within {seconds} s, three times")
