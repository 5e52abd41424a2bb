"""Sparsity wanted and achieved: `python -m bench.sparsity [--quick] [--out FILE]`.

A ResNet-20 is trained from scratch on generated images, pruned in every convolution, by several
ways to find the threshold. A row says how far the share of zeros of a layer's gradient was from the
wanted one (or from the zeros that were there already, if those were more), over all layers and
steps. The row "plain" is the same training without pruning, for its loss. No random numbers but
seeded ones: a second run prints the same.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

import slimgrad as sg
from bench.suite_step import resnet20
from bench.timing import write_json

SPARSITIES = (0.7, 0.8, 0.85, 0.9, 0.95)
WAYS = {  # method, whether it plans once an epoch instead of at every step
    "empirical, every step (default)": ("empirical", False),
    "normal, every step": ("normal", False),
    "lognormal, once an epoch": ("lognormal", True),
    "gennorm, once an epoch": ("gennorm", True),
    "normal, once an epoch": ("normal", True),
}
STEPS_AN_EPOCH, BATCH = 10, 16


@dataclass
class Row:
    way: str
    sparsity: float
    median: float  # of the distances over layers and steps
    largest: float
    within: float  # the share of them that is within 0.005
    first_loss: float
    last_loss: float


def images(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten patterns under noise."""
    patterns = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(100 + step)
    labels = torch.randint(10, (BATCH,), generator=generator)
    return patterns[labels] + 2 * torch.randn(BATCH, 3, 32, 32, generator=generator), labels


def distances(controller: sg.Controller) -> list[float]:
    found = []
    for name, row in controller.report().items():
        if row["compressed"]:
            zeros = controller.gates[name].seen().zero_fraction
            found.append(abs(row["sparsity"] - max(row["sparsity_wanted"], zeros)))
    return found


def train(way: str, sparsity: float, epochs: int) -> Row:
    method, once_an_epoch = WAYS.get(way, ("empirical", False))
    torch.manual_seed(0)
    model = resnet20()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    refresh = 0 if once_an_epoch else 1
    controller = sg.compress(model, sg.Prune(sparsity, method), refresh=refresh, seed=1)
    if way == "plain":
        controller.remove()
    missed, losses = [], []
    for step in range(epochs * STEPS_AN_EPOCH):
        if once_an_epoch and step % STEPS_AN_EPOCH == 0:
            controller.refresh()
        inputs, labels = images(step)
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        missed += distances(controller)
    distance = torch.tensor(missed or [0.0])
    within = float((distance <= 0.005).double().mean())
    median, largest = float(distance.median()), float(distance.max())
    return Row(way, sparsity, median, largest, within, losses[0], losses[-1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sparsity")
    parser.add_argument("--quick", action="store_true", help="one epoch, to see that it runs")
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # so that the sums of a second run are the same
    print(f"{'way':33} {'wanted':>6} {'median':>7} {'largest':>7} {'<=0.005':>7}  loss")
    rows = []
    for way in ["plain", *WAYS]:
        for sparsity in [0.0] if way == "plain" else SPARSITIES:
            row = train(way, sparsity, 1 if arguments.quick else 3)
            rows.append(row)
            print(
                f"{way:33} {sparsity:6.2f} {row.median:7.4f} {row.largest:7.4f} "
                f"{row.within:7.3f}  {row.first_loss:.2f} -> {row.last_loss:.2f}",
                flush=True,
            )
    if arguments.out:
        write_json(arguments.out, f"python -m bench.sparsity --out {arguments.out}", rows)


if __name__ == "__main__":
    main()
