"""Which law codes a gradient best? 8-bit codes of real weight gradients, by layer.

    python -m bench.model_coding --out results/model_coding.json

Bits a value of whole payloads, header and checksum included, with tables from a fitted normal,
Laplace and generalized normal law, and counted in every block; the order-0 entropy of the codes;
and the Wasserstein-1 distance of every fit, as a multiple of the quantizer's step. Nothing here is
timed, so it comes out the same on every run of the same build.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

from bench.suite_coding import weight_gradients
from bench.timing import write_json

LAWS = ["normal", "laplace", "gennorm"]


def transformer_gradients(num_steps: int) -> dict[str, torch.Tensor]:
    """Of a small causal transformer that learns to continue arithmetic sequences modulo 64."""
    torch.manual_seed(0)
    width, vocabulary, length = 256, 64, 48
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", True, norm_first=True)
    model = nn.ModuleDict(
        {
            "tokens": nn.Embedding(vocabulary, width),
            "blocks": nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            "head": nn.Linear(width, vocabulary),
        }
    )
    places = torch.randn(length, width) * 0.1
    mask = nn.Transformer.generate_square_subsequent_mask(length)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(num_steps):
        start, step = torch.randint(vocabulary, (32, 1)), torch.randint(1, 8, (32, 1))
        rows = (start + step * torch.arange(length + 1)) % vocabulary
        hidden = model["blocks"](model["tokens"](rows[:, :-1]) + places, mask, is_causal=True)
        loss = nn.functional.cross_entropy(
            model["head"](hidden).flatten(0, 1), rows[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {n: p.grad.flatten() for n, p in model.named_parameters() if p.numel() >= 16384}


def describe(network: str, layer: str, x: torch.Tensor) -> dict:
    import slimgrad as sg

    step = float(x.abs().max()) / 127
    codes = torch.round(x / step).to(torch.int64) + 127
    p = torch.bincount(codes).double() / codes.numel()
    entropy = float(-(p[p > 0] * p[p > 0].log2()).sum())
    row = {"network": network, "layer": layer, "values": x.numel(), "entropy": entropy}
    row["zeros"] = float((x == 0).double().mean())
    row["shape"] = sg.fit(x, "gennorm").params["shape"]
    row["bits"] = {
        model: 8 * sg.encode(x, mode="uniform", model=model).numel() / x.numel()
        for model in [*LAWS, "counted"]
    }
    row["wasserstein"] = {law: sg.fit(x, law).wasserstein(x) / step for law in LAWS}
    return row


def markdown(rows: list[dict]) -> str:
    lines = [
        "| layer | values | zeros | shape | entropy | normal | Laplace | gen. normal | counted "
        "| W1 normal | W1 Laplace | W1 gen. normal |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        numbers = [row["zeros"], row["shape"], row["entropy"]]
        numbers += [row["bits"][model] for model in [*LAWS, "counted"]]
        numbers += [row["wasserstein"][law] for law in LAWS]
        cells = [f"{row['network']} {row['layer']}", f"{row['values']}"]
        lines.append("| " + " | ".join(cells + [f"{n:.2f}" for n in numbers]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.model_coding")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    networks = {
        "classifier": weight_gradients(arguments.steps),
        "transformer": transformer_gradients(arguments.steps),
    }
    rows = [describe(n, layer, x) for n, layers in networks.items() for layer, x in layers.items()]
    print(markdown(rows))
    if arguments.out:
        command = "python -m bench.model_coding " + " ".join(sys.argv[1:])
        write_json(arguments.out, command, rows)


if __name__ == "__main__":
    main()
