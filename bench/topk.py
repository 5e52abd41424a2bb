"""How should the values that top-k keeps be rounded to 2 bits? How long does it take?

    python -m bench.topk --out results/topk.json

The 64 largest of every 4,096 values of gradients, and of differences of weights over 20 steps, of
two networks (those of bench.distributed_convergence), tensors of 2^14 values and more. Compared are
our bins, split at their mean magnitude for each sign, and SparseLoCo's, four of 1.5 standard
deviations around the mean; in both a value becomes the mean of its bin. Recorded: the squared error
over the squares of what is kept, the entropy of the 2-bit codes, and what the Golomb code of places
takes, of which log2 C(4096, 64) / 64 = 7.36 bits are the entropy if they lie anywhere.

Then generated values: the payload over the entropy of 64 places of 4,096 and 2 bits each, and GB of
input a second of one thread, the best of several rounds. Bars: at most 1.03, and at least 1 GB/s.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch

import slimgrad as sg
from bench.distributed_convergence import TASKS
from bench.rate import gennorm
from bench.timing import race, write_json

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


def speed_of(shape: float, dtype: torch.dtype, n: int = 1 << 22) -> dict:
    x = gennorm(shape, n).to(dtype)
    payload = sg.encode(x, "topk", bits=2)
    out, back = torch.empty(2 * x.nbytes, dtype=torch.uint8), torch.empty_like(x)
    ways = {
        "encode": lambda: sg.encode(x, "topk", bits=2, out=out),
        "decode": lambda: sg.decode(payload, out=back),
    }
    name = str(dtype).removeprefix("torch.")
    seconds = {row.name: row.milliseconds / 1e3 for row in race("topk", name, "encode", ways, 1.0)}
    entropy = n / OF * (math.log2(math.comb(OF, K)) + 2 * K) / 8
    row = {"tensor": f"{name} of shape {shape}", "values": n}
    row["size_over_entropy"] = round(payload.numel() / entropy, 4)
    return row | {f"{way}_gb_s": round(x.nbytes / s / 1e9, 2) for way, s in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.topk")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row_of(name, x) for task in TASKS for name, x in tensors_of(task).items()]
    rows += [speed_of(s, t) for s in (0.5, 1.0, 2.0) for t in (torch.float32, torch.bfloat16)]
    for row in rows:
        print(row)
    if arguments.out:
        write_json(arguments.out, f"python -m bench.topk --out {arguments.out}", rows, True)


if __name__ == "__main__":
    main()
