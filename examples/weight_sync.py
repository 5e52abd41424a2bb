"""Weights to servers after every step: a trainer sends what changed, two receivers apply it.

    python examples/weight_sync.py                  # over Gloo, three processes
    python examples/weight_sync.py --folder DIR     # files: a full one every N, deltas between

Reinforcement learning does this: a trainer takes a step, inference servers continue with the new
weights. In bfloat16 at a small learning rate nearly all weights keep their bits, and a delta is
tens to hundreds of times smaller than the weights. The result is proven by a hash; a receiver that
joins late, or lost a file, starts from the next full one.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional

import slimgrad as sg

FULL_EVERY = 4
RECEIVERS = 2


class Trainer:
    """A small network whose float32 weights are trained and whose bfloat16 copies are served."""

    def __init__(self, width: int):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, 64))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6)

    def step(self) -> None:
        x = torch.randn(32, 64)
        self.optimizer.zero_grad()
        functional.mse_loss(self.model(x), x.roll(1, dims=1)).backward()
        self.optimizer.step()

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: p.bfloat16() for name, p in self.model.state_dict().items()}


def fingerprint(weights: dict[str, torch.Tensor]) -> str:
    """The hash by which deltas know a set of tensors."""
    return sg.inspect(sg.delta(weights, weights))["result"]


# ---- over Gloo ----------------------------------------------------------------------------------


def over_gloo(rank: int, arguments: argparse.Namespace, store: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=1 + RECEIVERS
    )
    trainer = Trainer(arguments.width)
    weights = list(trainer.weights().values())
    if rank == RECEIVERS:  # It missed the start, so that it has other weights.
        weights = [torch.zeros_like(x) for x in weights]
    base = [x.clone() for x in weights]
    for _ in range(arguments.steps):
        if rank == 0:
            trainer.step()
            weights = list(trainer.weights().values())
        sg.distributed.broadcast(weights, "delta", src=0, base=base)
    names = trainer.weights()
    print(f"rank {rank}: {fingerprint(dict(zip(names, weights, strict=True)))}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


# ---- through a folder ---------------------------------------------------------------------------


def write(path: Path, payload: torch.Tensor) -> None:
    """The file appears when it is complete."""
    unfinished = path.with_name(f"{path.name}.part.{os.getpid()}")
    unfinished.write_bytes(payload.numpy().data)
    unfinished.replace(path)


def push(folder: Path, step: int, base: dict | None, weights: dict) -> None:
    if base is not None:
        payload = sg.delta(base, weights)
        write(folder / f"delta-{step:06}.sgd", payload)
        full = sum(x.nbytes for x in weights.values())
        print(f"step {step}: {payload.numel()} bytes for {full}", flush=True)
    if step % FULL_EVERY == 0:  # Last, so that whoever sees it finds what leads to it.
        sg.save(weights, folder / f"full-{step:06}.sg")


class Receiver:
    def __init__(self, folder: Path):
        self.folder, self.step, self.weights = folder, -1, {}

    def catch_up(self) -> int:
        """Applies what there is; returns how many deltas that was."""
        applied = 0
        while (path := self.folder / f"delta-{self.step + 1:06}.sgd").exists() and self.weights:
            try:
                sg.apply_delta(self.weights, path.read_bytes(), out=self.weights)
            except sg.PayloadError as error:
                print(f"step {self.step + 1} is of no use ({error}): waiting for a full one")
                self.weights = {}
                break
            self.step += 1
            applied += 1
        fulls = sorted(self.folder.glob("full-*.sg"))
        newest = int(fulls[-1].stem.removeprefix("full-")) if fulls else -1
        if newest > self.step:
            self.weights, self.step = sg.load(fulls[-1]), newest
        return applied


def receive(number: int, arguments: argparse.Namespace) -> None:
    folder = Path(arguments.folder)
    receiver, applied = Receiver(folder), 0
    if number == 1:  # Joins late, unless there are too few steps.
        full = FULL_EVERY if arguments.steps >= FULL_EVERY else 0
        while not (folder / f"full-{full:06}.sg").exists():
            time.sleep(0.01)
    while receiver.step < arguments.steps:
        applied += receiver.catch_up()
        time.sleep(0.01)
    print(f"receiver {number}: {applied} deltas, {fingerprint(receiver.weights)}", flush=True)


def through_folder(rank: int, arguments: argparse.Namespace) -> None:
    if rank > 0:
        return receive(rank - 1, arguments)
    folder = Path(arguments.folder)
    trainer, base = Trainer(arguments.width), None
    for step in range(arguments.steps + 1):
        weights = trainer.weights()
        push(folder, step, base, weights)
        base = weights
        trainer.step()
    print(f"trainer: {fingerprint(base)}", flush=True)
    return None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", help="exchange files here instead of messages")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--width", type=int, default=256)
    options = parser.parse_args()
    if options.folder:
        Path(options.folder).mkdir(parents=True, exist_ok=True)
        mp.spawn(through_folder, (options,), nprocs=1 + RECEIVERS)
    else:
        with tempfile.TemporaryDirectory() as empty:
            mp.spawn(over_gloo, (options, f"{empty}/store"), nprocs=1 + RECEIVERS)
