"""Gradients averaged over a directory: an exchange without torch.distributed, in ten lines.

Every worker writes its coded gradients to a file and reads those of the others. A file appears
under its name when it is complete; bytes that were damaged on their way raise ``PayloadError``.

    python examples/codec_files.py
"""

import tempfile
import threading
import time
from pathlib import Path

import torch

import slimgrad as sg

WORKERS, STEPS = 3, 30


def averaged(gradients, codec, rank: int, step: int, directory: Path):
    """The mean over all workers; every worker decodes the same files, so all have the same bits."""
    unfinished = directory / f"{step}.{rank}.part"
    unfinished.write_bytes(codec.encode(gradients))
    unfinished.rename(directory / f"{step}.{rank}")
    total = [torch.zeros_like(g) for g in gradients]
    for other in range(WORKERS):
        while not (file := directory / f"{step}.{other}").exists():
            time.sleep(0.001)
        for t, g in zip(total, codec.decode(file.read_bytes(), like=gradients), strict=True):
            t += g / WORKERS
    return total


def train(rank: int, directory: Path, losses: list) -> None:
    torch_generator = torch.Generator().manual_seed(0)
    truth, weights = torch.randn(8192, generator=torch_generator), torch.zeros(8192)
    codec = sg.distributed.Codec.parse("rate2", error_feedback=True, seed=rank)
    for step in range(STEPS):
        noise = torch.randn(8192, generator=torch.Generator().manual_seed(1000 * step + rank))
        gradient = weights - truth + 0.1 * noise
        (mean,) = averaged([gradient], codec, rank, step, directory)
        weights -= 0.3 * mean
    losses[rank] = float((weights - truth).square().mean())


if __name__ == "__main__":
    losses = [0.0] * WORKERS
    with tempfile.TemporaryDirectory() as directory:
        workers = [
            threading.Thread(target=train, args=(rank, Path(directory), losses))
            for rank in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        sent = sum(file.stat().st_size for file in Path(directory).iterdir())
    print(f"losses {losses[0]:.4f}, the same on all: {len(set(losses)) == 1}")
    print(f"{8 * sent / (WORKERS * STEPS * 8192):.2f} bits a value")
