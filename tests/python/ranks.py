"""Runs the ranks of a distributed test, with an end to waiting."""

import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp


def join_group(rank: int, world: int, port: int) -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # for run_ranks
    store = dist.TCPStore("127.0.0.1", port)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)


def store_for_others(port: int) -> dict[str, str]:
    """The environment of those who make their group themselves: with the store of run_ranks(), as
    under torchrun, whose agent holds one."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return where | {"TORCHELASTIC_USE_AGENT_STORE": "True"}


def leave_group() -> None:
    dist.barrier()  # A rank that closes its connections early can leave another one waiting.
    dist.destroy_process_group()


@contextmanager
def sent_on(when: Callable[[], bool]) -> Iterator[None]:
    """Ranks that stand still (SIGSTOP) go on as soon as `when` holds."""

    def standing():
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] == "T" and int(fields[1]) == os.getpid():
                yield int(entry.name)

    def watch():
        while not done.wait(0.5):
            if when():
                for pid in standing():
                    os.kill(pid, signal.SIGCONT)

    done = threading.Event()
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _seconds_used(pid: int) -> float:
    """Of processor time, by all threads of a process; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _end(processes) -> None:
    """Every rank says where it is, on stderr, one after the other, and ends."""
    for process in processes:
        if process.is_alive():
            os.kill(process.pid, signal.SIGUSR1)
            time.sleep(2)
    for process in processes:
        process.kill()
        process.join()


def run_ranks(worker, arguments: tuple, world: int = 2, idle: float = 120, most: float = 300):
    """worker(rank, world, port, *arguments) in `world` processes.

    Ten seconds of processor time, nearly all of it for imports, take a minute and more on a machine
    with other work; so it is not the clock that tells a hang. Ranks that wait for one another use
    next to no processor time (Gloo looks up now and then): less than 0.5 % of a core each for
    `idle` seconds is a hang, and so are more than `most` seconds of it, for ranks that spin.
    """
    # Here and not in rank 0, seconds later: by then a port that was free may be another test's.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = mp.spawn(worker, (world, store.port, *arguments), nprocs=world, join=False)
    since, used_then = time.monotonic(), 0.0
    while not group.join(timeout=1):
        used = sum(_seconds_used(process.pid) for process in group.processes)
        if used - used_then > 0.005 * idle * world:
            since, used_then = time.monotonic(), used
        if used > most or time.monotonic() - since > idle:
            _end(group.processes)
            pytest.fail(f"the ranks hang, after {used:.1f} s of processor time: stacks on stderr")
