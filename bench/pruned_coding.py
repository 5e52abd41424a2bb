"""How many bits does a pruned gradient take? Beside the rates of the paper on lognormal gradients.

    python -m bench.pruned_coding --out results/pruned_coding.json

The paper states 4 bits a value at a sparsity of 0.8 and 2 bits at 0.9: a prefix code of one bit for
zero, three for plus or minus the threshold, and two before every survivor, which stays a float32.
Here that code's bits are counted on the same values as ours, of whole payloads, header and checksum
included. "Ideal" is the entropy of the classes zero, plus, minus and survivor, and the bits of the
survivors: what no code without context is below, unless it shortens the survivors, too. Nothing is
timed, so it comes out the same on every run of the same build.
"""

import argparse
import sys
from pathlib import Path

import torch

from bench.suite_coding import weight_gradients
from bench.timing import write_json

PAPER = {0.8: 4.0, 0.9: 2.0}
SURVIVORS = {"exact": 32, "bfloat16": 16, "float": 8}  # bits of one; "float" is 1-5-2


def lognormal_gradient(sigma: float, size: int = 1 << 20) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    sign = torch.randint(2, (size,), generator=generator) * 2 - 1
    return sign * torch.randn(size, generator=generator).mul(sigma).sub(10).exp()


def describe(name: str, x: torch.Tensor, sparsity: float) -> dict:
    import slimgrad as sg

    threshold = sg.threshold(sg.measure(x), sparsity, method="empirical")
    pruned = sg.prune(x, threshold, seed=1)
    zeros, at = pruned == 0, pruned.abs() == torch.tensor(threshold)
    p = torch.stack([zeros, at & (pruned > 0), at & (pruned < 0), ~zeros & ~at])
    p = p.double().mean(1)
    classes = float(-(p[p > 0] * p[p > 0].log2()).sum())
    survivors = float(p[3])
    prefix = float(p[0] + 3 * (p[1] + p[2])) + 34 * survivors
    row = {"gradient": name, "zeros": float(p[0]), "survivors": survivors}
    row |= {"paper": PAPER[sparsity], "prefix code": prefix}
    for kind, bits in SURVIVORS.items():
        payload = sg.encode(pruned, mode="pruned", survivors=kind, format="1-5-2")
        row[f"ideal {kind}"] = classes + bits * survivors
        row[kind] = 8 * payload.numel() / x.numel()
    return row


def markdown(rows: list[dict]) -> str:
    columns = [key for key in rows[0] if key != "gradient"]
    lines = [f"| gradient | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row in rows:
        cells = [row["gradient"], *(f"{row[column]:.2f}" for column in columns)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pruned_coding")
    parser.add_argument("--steps", type=int, default=30, help="of training, for real gradients")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    gradients = {f"lognormal, sigma {sigma}": lognormal_gradient(sigma) for sigma in (1, 2, 3)}
    gradients["real, of weights"] = torch.cat(list(weight_gradients(arguments.steps).values()))
    rows = [describe(name, x, sparsity) for sparsity in PAPER for name, x in gradients.items()]
    print(markdown(rows))
    if arguments.out:
        command = "python -m bench.pruned_coding " + " ".join(sys.argv[1:])
        write_json(arguments.out, command, rows)


if __name__ == "__main__":
    main()
