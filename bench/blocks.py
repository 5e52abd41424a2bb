"""Blocks of 16 and 32 values of neural gradients: which law do they follow, what do 4 bits cost?

    python -m bench.blocks --cifar DIR --text FILE --sst2 DIR --weights DIR --out FILE
    python -m bench.blocks --show --out results/blocks.json     the tables once more

Formats such as NVFP4 and MXFP4 have a scale for every 16 or 32 values along the dimension that a
product sums over, often behind a random Hadamard transform of 16. Three networks are trained in
float32: a ResNet on CIFAR-10 (the binary version, data_batch_1.bin), the GPT of bench.jobs on a
text, and a pretrained BERT on SST-2; at two moments the gradient of every layer's output is taken.
Without data all of them train on generated samples, the BERT from random weights.

Laws: sg.fit to the values of a block, and its Kolmogorov-Smirnov distance. So few values fit any
law: beside the median stands that of as many values drawn from the fitted law itself, fitted again.
A law holds where both agree.

Errors: E|Q(x) - x|^2 / |x|^2 under stochastic rounding, exactly, without a draw: the variance of a
value between its neighbours l and u of the grid is (x - l)(u - x). Scales put the largest value of
a block, or of a layer, at the top of the grid, so that nothing is clipped and all are unbiased.
Nothing is timed.
"""

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

import slimgrad as sg
from bench import jobs
from bench.method_errors import capture
from bench.saved_models import ResNet
from bench.timing import commit

FAMILIES = ("lognormal", "gennorm", "laplace", "normal")
SIZES = (16, 32)
SCALES = ((16, "E4M3"), (32, "E4M3"), (32, "power of two"))  # NVFP4, in between, MXFP4
HADAMARD = 16
FITTED_BLOCKS = 64  # of each gradient and size
GRIDS = {
    "E2M1": torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64) / 6,
    "E3M0": torch.tensor([0, *(2.0**i for i in range(7))], dtype=torch.float64) / 64,
    "integers": torch.arange(8, dtype=torch.float64) / 7,
}


# ---- gradients -----------------------------------------------------------------------------------


def image_job(folder: Path | None) -> tuple[nn.Module, Callable, Callable]:
    from bench.time_to_accuracy import read_batches

    if folder:
        images, labels = read_batches([folder / "data_batch_1.bin"], 10000)
    else:
        images, labels = torch.randn(512, 3, 32, 32), torch.randint(10, (512,))
    model = ResNet(32, [2, 2, 2, 2], 10, large_stem=False)

    def inputs(step: int) -> dict:
        generator = torch.Generator().manual_seed(sg.derive_seed(0, step))
        rows = torch.randint(len(images), (32,), generator=generator)
        return {"images": images[rows], "labels": labels[rows]}

    return model, inputs, lambda model, batch: model(**batch)


def other_job(name: str, data: Path | None, weights: Path | None):
    arguments = argparse.Namespace(data=data, weights=weights, steps=jobs.STEPS[name])
    job = jobs.JOBS[name](arguments, jobs.SETTINGS["plain"], 1)
    return job.model, lambda step: job.inputs(step, 0, 1), job.loss


def gradients(model, inputs, loss, moments: list[int], rate: float) -> Iterator[torch.Tensor]:
    """The gradient of every layer's output at these steps, as rows over channels."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    model.train()
    for step in range(max(moments) + 1):
        optimizer.zero_grad()
        batch = inputs(step)
        run = lambda batch=batch: loss(model, batch).backward()  # noqa: E731
        for sample in capture(model, lambda name: name, run) if step in moments else run() or []:
            gradient = sample.gradient
            if gradient.dim() == 4:
                gradient = gradient.permute(0, 2, 3, 1)
            yield gradient.flatten(0, -2).double()
        optimizer.step()


# ---- blocks --------------------------------------------------------------------------------------


def hadamard(size: int, seed: int) -> torch.Tensor:
    """An orthogonal matrix of +-1/sqrt(size) whose rows have random signs. size: a power of two."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    signs = torch.randint(2, (size,), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return matrix * signs / math.sqrt(size)


def cut(rows: torch.Tensor, size: int) -> torch.Tensor:
    """Blocks along channels. What remains of a row is left out, and so are blocks of zeros."""
    channels = rows.shape[1] // size * size
    blocks = rows[:, :channels].reshape(-1, size)
    return blocks[(blocks != 0).any(1)]


def transformed(rows: torch.Tensor) -> torch.Tensor:
    """After a Hadamard transform of every 16 channels."""
    channels = rows.shape[1] // HADAMARD * HADAMARD
    blocks = rows[:, :channels].reshape(-1, HADAMARD) @ hadamard(HADAMARD, 0)
    return blocks.reshape(-1, channels)


def distance(values: torch.Tensor, family: str, seed: int) -> tuple[float, float]:
    """The KS distance of the law fitted to these values, and that of values drawn from it."""

    def fitted(x: torch.Tensor):
        law = sg.fit(x.float(), family)
        return law, law.ks(x.float())

    law, found = fitted(values)
    places = torch.rand(len(values), generator=torch.Generator().manual_seed(seed))
    drawn = torch.tensor([law.quantile(p) for p in places.tolist()], dtype=torch.float64)
    return found, fitted(drawn)[1]


def distances(rows: torch.Tensor, size: int) -> dict[str, list[tuple[float, float]]]:
    """By family, for blocks with no zero, spread over the gradient."""
    blocks = cut(rows, size)
    blocks = blocks[(blocks != 0).all(1)]
    chosen = blocks[:: max(1, len(blocks) // FITTED_BLOCKS)][:FITTED_BLOCKS]
    return {
        family: [
            distance(block, family, sg.derive_seed(i, family)) for i, block in enumerate(chosen)
        ]
        for family in FAMILIES
    }


# ---- errors --------------------------------------------------------------------------------------


def variances(x: torch.Tensor, grid: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Of stochastic rounding to +-scale * grid. REQUIRES: |x| <= scale * grid[-1]."""
    magnitude = x.abs() / scale
    above = torch.searchsorted(grid, magnitude.contiguous()).clamp(1, len(grid) - 1)
    low, high = grid[above - 1], grid[above]
    return (magnitude - low) * (high - magnitude).clamp_min(0) * scale**2


def rounded_up(scale: torch.Tensor, kind: str) -> torch.Tensor:
    """Scales as they are stored: a power of two (MXFP4) or an 8-bit float with 3 bits of mantissa
    (NVFP4), rounded up so that nothing is clipped."""
    mantissa, exponent = torch.frexp(scale)
    steps = {"power of two": 2, "E4M3": 16}[kind]
    return torch.ldexp((mantissa * steps).ceil() / steps, exponent)


def layer_error(rows: torch.Tensor) -> float:
    """With one scale a layer, the split chosen on the histogram, as Quantize(4) has it."""
    stats = sg.measure(rows.float())
    format = sg.best_format(4, stats)
    grid = torch.tensor(format.values(), dtype=torch.float64)
    scale = rows.abs().max() / grid[-1]
    return (variances(rows, grid, scale).sum() / rows.square().sum()).item()


def block_errors(rows: torch.Tensor, size: int, kind: str) -> dict[str, float]:
    """By grid, and with the best of the three for every block, which takes 2 bits a block more."""
    blocks = cut(rows, size)
    scale = rounded_up(blocks.abs().amax(1, keepdim=True), kind)
    found = {name: variances(blocks, grid, scale).sum(1) for name, grid in GRIDS.items()}
    found["best of a block"] = torch.stack(list(found.values())).amin(0)
    total = blocks.square().sum()
    return {name: (error.sum() / total).item() for name, error in found.items()}


# ---- the record ----------------------------------------------------------------------------------


def record_of(network: str, model, inputs, loss, rate: float, moments: list[int]) -> dict:
    laws, errors, count = defaultdict(list), defaultdict(list), 0
    for rows in gradients(model, inputs, loss, moments, rate):
        if rows.shape[1] < max(SIZES) or not rows.any():
            continue
        count += 1
        for place, values in {"as it is": rows, "transformed": transformed(rows)}.items():
            errors[f"{place}, one scale a layer"].append(layer_error(values))
            for size, scale in SCALES:
                for name, error in block_errors(values, size, scale).items():
                    errors[f"{place}, {size} with {scale}, {name}"].append(error)
            for size in SIZES:
                for family, pairs in distances(values, size).items():
                    laws[f"{place}, {size}, {family}"] += pairs
    median = statistics.median
    return {
        "network": network,
        "gradients": count,
        "ks": {k: [median(p[0] for p in v), median(p[1] for p in v)] for k, v in laws.items() if v},
        "errors": {name: median(values) for name, values in errors.items()},
    }


def print_tables(record: dict) -> None:
    networks = record["networks"]
    head = " | ".join(f"{n['network']} ({n['gradients']})" for n in networks)
    for title, key in (("KS distance", "ks"), ("error", "errors")):
        print(f"\n| {title} | {head} |\n|---|" + "---|" * len(networks))
        for name in networks[0][key]:
            cells = [n[key].get(name) for n in networks]
            text = [
                "" if c is None else f"{c:.3g}" if key == "errors" else f"{c[0]:.3f} / {c[1]:.3f}"
                for c in cells
            ]
            print(f"| {name} | {' | '.join(text)} |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.blocks")
    for name in ("cifar", "text", "sst2", "weights", "out"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--moments", type=int, nargs="+", default=[0, 100])
    parser.add_argument("--show", action="store_true", help="only print the tables of --out")
    arguments = parser.parse_args()
    if arguments.show:
        print_tables(json.loads(arguments.out.read_text()))
        return
    torch.set_num_threads(1)
    torch.manual_seed(0)
    networks = {
        "ResNet": (*image_job(arguments.cifar), 1e-3),
        "GPT": (*other_job("shakespeare", arguments.text, None), 1e-3),
        "BERT": (*other_job("finetune", arguments.sst2, arguments.weights), 5e-5),
    }
    record = {
        "command": "python -m bench.blocks --cifar DIR --text FILE --sst2 DIR --weights DIR "
        f"--out {arguments.out}",
        "commit": commit(),
        "torch": torch.__version__,
        "moments": arguments.moments,
        "networks": [record_of(n, *job, arguments.moments) for n, job in networks.items()],
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    print_tables(record)


if __name__ == "__main__":
    main()
