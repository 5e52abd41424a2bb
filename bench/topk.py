"""How should the values that top-k keeps be rounded to 2 bits?

    python -m bench.topk --out results/topk.json

The 64 largest of every 4,096 values of gradients, and of differences of weights over 20 steps, of
two networks (those of bench.distributed_convergence), tensors of 2^14 values and more. Compared are
our bins, split at their mean magnitude for each sign, and SparseLoCo's, four of 1.5 standard
deviations around the mean; in both a value becomes the mean of its bin. Recorded: the squared error
over the squares of what is kept, the entropy of the 2-bit codes, and what the Golomb code of places
takes, of which log2 C(4096, 64) / 64 = 7.36 bits are the entropy if they lie anywhere.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from bench.distributed_convergence import TASKS
from bench.timing import write_json

K, OF = 64, 4096


def tensors_of(task: str, steps: int = 20) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model, batch, loss_of = TASKS[task][0](0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, *batch()).backward()
        optimizer.step()
    found = {}
    for name, p in model.named_parameters():
        if p.grad is None or p.numel() < 1 << 14:
            continue
        found[f"{task} gradient {name}"] = p.grad
        found[f"{task} difference {name}"] = p.detach() - start[name]
    return found


def entropy(codes: torch.Tensor) -> float:
    share = torch.bincount(codes, minlength=4).double() / codes.numel()
    return float(-(share * share.clamp(min=1e-300).log2()).sum())


def error(values: torch.Tensor, codes: torch.Tensor) -> float:
    """Of what is kept, each value being the mean of those of its code."""
    sums = torch.zeros(4, dtype=torch.float64).index_add_(0, codes, values)
    means = sums / torch.bincount(codes, minlength=4).clamp(min=1)
    return float((means[codes] - values).square().sum() / values.square().sum())


def golomb_bits(gaps: torch.Tensor) -> float:
    g = max(1, round(0.6931 * (float(gaps.double().mean()) + 1)))
    width = (g - 1).bit_length()
    short = (gaps % g < (1 << width) - g).double()
    return float((gaps // g + 1 + width - short).double().mean())


def row_of(name: str, x: torch.Tensor) -> dict:
    groups = x.flatten()[: x.numel() // OF * OF].view(-1, OF)
    places = groups.abs().topk(K, dim=1).indices.sort(dim=1).values
    values = groups.gather(1, places).flatten().double()
    first = torch.full((len(places), 1), -1)
    gaps = (torch.diff(places, dim=1, prepend=first) - 1).flatten()
    magnitudes = values.abs()
    ours = 2 * (values < 0).long() + (magnitudes > magnitudes.mean()).long()
    centred = values - values.mean()
    theirs = (centred / (1.5 * centred.std()) + 2).round().clamp(0, 3).long()
    row = {"tensor": name, "values": x.numel(), "place_bits": round(golomb_bits(gaps), 3)}
    for way, codes in {"ours": ours, "sparseloco": theirs}.items():
        row[f"{way}_error"] = round(error(values, codes), 5)
        row[f"{way}_entropy"] = round(entropy(codes), 3)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.topk")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row_of(name, x) for task in TASKS for name, x in tensors_of(task).items()]
    for row in rows:
        print(row)
    if arguments.out:
        write_json(arguments.out, f"python -m bench.topk --out {arguments.out}", rows, True)


if __name__ == "__main__":
    main()
