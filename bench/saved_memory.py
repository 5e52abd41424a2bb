"""What training a network in one way keeps and needs, measured in a process that does nothing else.

    python -m bench.saved_memory NETWORK WAY [--quick]              what a step keeps and needs
    python -m bench.saved_memory NETWORK WAY --within MIB           a guess of the largest batch
    python -m bench.saved_memory NETWORK WAY --within MIB --batch N whether a step of N fits

prints JSON. Linux only. The process runs with MALLOC_MMAP_THRESHOLD_=65536: glibc would hold on to
freed memory, more or less of it by chance, and every way's peak would be that of its history.
"""

import argparse
import gc
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from bench.saved_models import COMPILED_WAYS, WAYS, Training, networks

THRESHOLD = {"MALLOC_MMAP_THRESHOLD_": "65536"}
MIB = 1 << 20
PRECISION = 1 / 16


def _status(field: str) -> float:
    """MiB, of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(field + ":"))) / 1024


def _settle() -> None:
    """Gives back what nobody uses, slimgrad's own reserve included."""
    import slimgrad as sg

    gc.collect()
    sg.empty_cache()


def measure(training: Training) -> dict[str, float]:
    """In MiB. kept: what autograd counts between forward and backward. held: by how much a forward
    pass makes the process grow for as long as its loss lives: what is kept, as the system sees it.
    idle: what is resident between steps, after the first. peak: of the second step."""
    training.step()
    _settle()
    idle = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
    training.step()
    peak = _status("VmHWM")
    _settle()
    before = _status("VmRSS")
    loss = training.loss()
    held = _status("VmRSS") - before
    del loss
    return {"saved": training.bytes_saved() / MIB, "held": held, "idle": idle, "peak": peak}


def largest(fits: Callable[[int], bool], guess: int, part: float = 0.0) -> int:
    """The largest batch that fits, 0 if none does, from few trials near a good guess. With a part,
    one that fits, where one larger by that part does not: every trial is some training steps.

    REQUIRES: fewer than what fits fit, too."""
    guess = max(1, guess)
    stride = max(1, guess // 16)
    low, high = 0, None  # fits, does not
    batch = guess
    while high is None or high - low > max(1, part * low):
        if fits(batch):
            low = batch
            batch = low + stride if high is None else (low + high) // 2
            stride *= 2
        else:
            high = batch
            batch = max((low + high) // 2, high - stride) if low == 0 else (low + high) // 2
            stride *= 2
    return low


def _limited(training: Training, most: float) -> bool:
    """Can a step be made with at most so many MiB of memory for data? oneDNN has many words for a
    lack of it ("could not create a primitive"), so that every error counts as one."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (int(most * MIB), hard))
    try:
        training.step()
    except (RuntimeError, MemoryError):
        return False
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    return True


def fits(training: Training, batch: int, within: float) -> bool:
    """Whether a step of that batch fits into so many MiB beside what the process has between steps:
    libraries, weights, gradients, the optimizer's state. The limit is the system's: a step that
    does not fit fails. To be asked once in a process: after a failure oneDNN may refuse every shape
    that it has not seen, however small."""
    training.of_batch(1)
    training.step()
    training.of_batch(batch)
    if training.call is not training.model:  # Compiling is not what is measured.
        training.step()
    _settle()
    return _limited(training, _status("VmData") + within)


def guess_batch(training: Training, within: float) -> int:
    """From what one and two examples more keep."""
    few = max(1, training.network.batch // 4)
    kept = []
    for batch in (few, 2 * few):
        training.of_batch(batch)
        kept.append(training.bytes_saved() / MIB)
    return int(0.8 * within / ((kept[1] - kept[0]) / few))


def in_process(name: str, way: str, quick: bool, *options: str) -> dict[str, float]:
    """What main() prints, from a new process."""
    command = [sys.executable, "-m", "bench.saved_memory", name, way, *options]
    command += ["--quick"] if quick else []
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **THRESHOLD}
    )
    return json.loads(done.stdout.splitlines()[-1])


def largest_batch(name: str, way: str, quick: bool, within: float) -> int:
    """That fits, up to a part of PRECISION; every trial is a process of its own."""
    limit = ("--within", str(within))

    def is_fit(batch: int) -> bool:
        return bool(in_process(name, way, quick, *limit, "--batch", str(batch))["fits"])

    return largest(is_fit, int(in_process(name, way, quick, *limit)["guess"]), PRECISION)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.saved_memory")
    parser.add_argument("network", choices=networks(True))
    parser.add_argument("way", choices=[*WAYS, *COMPILED_WAYS])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--within", type=float, help="MiB beside what a process has between steps")
    parser.add_argument("--batch", type=int)
    arguments = parser.parse_args()
    if os.environ.get("MALLOC_MMAP_THRESHOLD_") != THRESHOLD["MALLOC_MMAP_THRESHOLD_"]:
        parser.error("expected MALLOC_MMAP_THRESHOLD_=65536 in the environment")
    torch.set_num_threads(2)
    training = Training(networks(arguments.quick)[arguments.network], arguments.way)
    if arguments.within is None:
        print(json.dumps(measure(training)))
    elif arguments.batch is None:
        print(json.dumps({"guess": guess_batch(training, arguments.within)}))
    else:
        print(json.dumps({"fits": fits(training, arguments.batch, arguments.within)}))


if __name__ == "__main__":
    main()
