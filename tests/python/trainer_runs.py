"""Runs of `slimgrad-train` for the tests, and data of the layouts that it reads.

The binary is the one installed beside this Python, or the one that SLIMGRAD_TRAIN names.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

PROGRAM = os.environ.get("SLIMGRAD_TRAIN") or str(Path(sys.executable).parent / "slimgrad-train")

TINY = ["--images", "192", "--test-images", "100", "--epochs", "1", "--min-accuracy", "0"]

# What may differ between two runs of the same.
TIMES = {
    *("seconds", "test_seconds", "samples_per_second", "step_seconds", "mean_step_seconds"),
    *("median_step_seconds", "resumed", "peak_memory_bytes"),
}


def run(*args, cwd=None):
    return subprocess.run(
        [PROGRAM, *map(str, args)], capture_output=True, text=True, cwd=cwd, timeout=600
    )


class Lines:
    """What --out has."""

    def __init__(self, path):
        self.all = [json.loads(line) for line in Path(path).read_text().splitlines()]

    def of(self, kind, run=1):
        return [line for line in self.all if line["kind"] == kind and line["run"] == run]

    def one(self, kind, run=1):
        (line,) = self.of(kind, run)
        return line

    def untimed(self):
        return [{k: v for k, v in line.items() if k not in TIMES} for line in self.all]


def lines_of(out, *args):
    """The lines and the finished process of a run that must succeed."""
    done = run(*args, "--out", out)
    assert done.returncode == 0, done.stderr
    return Lines(out), done


def write_cifar10(folder, images=4):
    """A tiny CIFAR-10: ``images`` random ones in each of the six files."""
    draw = random.Random(1)
    folder.mkdir(exist_ok=True)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        records = [bytes([i % 10]) + draw.randbytes(3072) for i in range(images)]
        (folder / f"{name}.bin").write_bytes(b"".join(records))
    return f"cifar10:{folder}"


def write_idx(folder, images=8, side=28):
    draw = random.Random(1)
    folder.mkdir(exist_ok=True)
    for part in ("train", "t10k"):
        shape = b"".join(n.to_bytes(4, "big") for n in (images, side, side))
        pixels = draw.randbytes(images * side * side)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + shape + pixels)
        labels = bytes(i % 10 for i in range(images))
        count = images.to_bytes(4, "big")
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + count + labels)
    return f"idx:{folder}"
