"""Seconds to an accuracy with a sparse backward pass, on CIFAR-10.

    python -m bench.time_to_accuracy --data DIR [--images N] [--epochs E] [--out FILE]

DIR holds CIFAR-10's binary version (data_batch_1.bin, ..., test_batch.bin). Every setting starts
from the same weights and sees the same images in the same order; the seconds are of training steps
alone. All settings take turns epoch by epoch, so that a slow minute of the machine hits all.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn

import slimgrad as sg
from bench.suite_step import Block
from bench.timing import commit

SETTINGS = {
    "plain": None,
    "weight 0.9": sg.Prune(weight=0.9, input=0),
    "weight 0.97": sg.Prune(weight=0.97, input=0),
    "weight 0.9, input 0.5": sg.Prune(weight=0.9, input=0.5),
    "weight 0.9, input 0.8": sg.Prune(weight=0.9, input=0.8),
    "weight 0.95, input 0.9": sg.Prune(weight=0.95, input=0.9),
}


def read_batches(paths: list[Path], count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images around zero, channels-last, and labels."""
    record = 1 + 3 * 32 * 32
    data = b"".join(path.read_bytes() for path in paths)[: count * record]
    rows = torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(-1, record)
    images = rows[:, 1:].reshape(-1, 3, 32, 32).float().div_(64).sub_(1.9)
    return images.contiguous(memory_format=torch.channels_last), rows[:, 0].long()


def network(width: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)]
    layers += [nn.ReLU(), Block(width, width, 1), Block(width, 2 * width, 2)]
    layers += [Block(2 * width, 4 * width, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * width, 10)).to(memory_format=torch.channels_last)


class Training:
    def __init__(self, prune: sg.Prune | None, arguments: argparse.Namespace):
        torch.manual_seed(arguments.seed)
        self.model = network(arguments.width)
        if prune is not None:
            sg.compress(self.model, prune, seed=arguments.seed)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, 0.9, weight_decay=5e-4)
        steps = arguments.epochs * (arguments.images // arguments.batch)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.2, steps)
        self.batch = arguments.batch
        self.seconds = 0.0
        self.curve: list[tuple[float, float]] = []  # seconds, accuracy

    def epoch(self, images: torch.Tensor, labels: torch.Tensor, order: torch.Tensor) -> None:
        self.model.train()
        for picked in order[: len(order) // self.batch * self.batch].split(self.batch):
            x, y = images[picked].contiguous(memory_format=torch.channels_last), labels[picked]
            start = time.perf_counter()
            self.optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
            self.schedule.step()
            self.seconds += time.perf_counter() - start

    @torch.no_grad()
    def test(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.model.eval()
        right = sum(
            (self.model(x).argmax(1) == y).sum().item()
            for x, y in zip(images.split(500), labels.split(500), strict=True)
        )
        self.curve.append((self.seconds, right / len(labels)))


def seconds_to(curve: list[tuple[float, float]], accuracy: float) -> float | None:
    return next((seconds for seconds, reached in curve if reached >= accuracy), None)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.time_to_accuracy")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=50000)
    parser.add_argument("--test-images", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    batches = sorted(arguments.data.rglob("data_batch_*.bin"))
    tests = sorted(arguments.data.rglob("test_batch.bin"))
    if not batches or not tests:
        parser.error(f"--data: expected data_batch_1.bin and test_batch.bin in {arguments.data}")
    images, labels = read_batches(batches, arguments.images)
    test_images, test_labels = read_batches(tests, arguments.test_images)
    runs = {name: Training(prune, arguments) for name, prune in SETTINGS.items()}
    for epoch in range(arguments.epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for name, run in runs.items():
            run.epoch(images, labels, order)
            run.test(test_images, test_labels)
            seconds, accuracy = run.curve[-1]
            print(f"epoch {epoch + 1}: {name:24} {accuracy:.4f} after {seconds:.1f} s", flush=True)
    goal = 0.95 * max(accuracy for _, accuracy in runs["plain"].curve)
    print(f"\n{'':24} accuracy  seconds  to {goal:.3f}")
    for name, run in runs.items():
        reached = seconds_to(run.curve, goal)
        shown = "never" if reached is None else f"{reached:.1f}"
        print(f"{name:24} {run.curve[-1][1]:8.4f} {run.seconds:8.1f} {shown:>9}")
    if arguments.out:
        record = {
            "command": "python -m bench.time_to_accuracy --data DIR"
            f" --images {arguments.images} --epochs {arguments.epochs} --batch {arguments.batch}"
            f" --width {arguments.width} --seed {arguments.seed}",
            "commit": commit(),
            "goal": goal,
            "curves": {name: run.curve for name, run in runs.items()},
        }
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
