"""How much longer do compressed gradients make the gradient of the weights? For clipping by norm.

    python -m bench.gradient_norms --out results/gradient_norms.json

A small CNN on generated images and a small GPT on generated text are trained in full precision. At
every step each setting is put on the same weights and the same batch, through compress() with its
defaults, and its global gradient norm is compared with the plain one: mean, smallest and largest
ratio over steps and seeds. Compression is unbiased, so what it adds is variance: the square of the
norm is that of the plain gradient and the noise on top. Beside it stand the share of steps whose
norm is above a threshold that clips a tenth of the plain steps, the same with the threshold
multiplied by the mean ratio, and the parameter whose norm grows most. Nothing is timed.
"""

import argparse
import copy
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from bench.fewbit_convergence import generated_text, image_task, text_task

TASKS = {"cnn": image_task, "gpt": text_task}
PRUNED = (0.5, 0.85, 0.9, 0.95)
SEEDS = 3
WARMUP = 20  # steps that are not counted: norms fall fast there, and would hide the threshold
STEPS = 100  # that are
CLIPPED = 0.1  # of the plain steps


def settings() -> dict[str, Callable[[nn.Module, int], object]]:
    """By name: what compresses a model. The one with a sparse backward pass does all its products
    so; by itself it would do those of small layers densely, which is exact."""
    import slimgrad as sg

    def gates(gradients):
        return lambda model, seed: sg.compress(model, gradients, seed=seed)

    def sparse(model, seed):
        sg.compress(model, sg.Prune(weight=0.9, input=0), seed=seed).set_way("sparse")

    result = {name: gates(name) for name in ("fp8", "fp6", "fp4")}
    result |= {f"Prune({sparsity})": gates(sg.Prune(sparsity)) for sparsity in PRUNED}
    return result | {"Prune(weight=0.9, input=0)": sparse}


def norms_of(model: nn.Module, loss_of, inputs, targets) -> dict[str, float]:
    """The norm of every parameter's gradient, which stays in .grad."""
    model.zero_grad()
    loss_of(model, inputs, targets).backward()
    return {name: p.grad.double().norm().item() for name, p in model.named_parameters()}


def run(task: str, seed: int) -> dict[str, list[dict[str, float]]]:
    """By setting, the norms at every step that counts."""
    torch.manual_seed(seed)
    plain, batch, loss_of = TASKS[task](generated_text() if task == "gpt" else "", seed)
    models = {"plain": plain}
    for name, compress in settings().items():
        models[name] = copy.deepcopy(plain)
        compress(models[name], seed)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=2e-3)
    rows = defaultdict(list)
    for step in range(WARMUP + STEPS):
        data = batch()
        for name, model in models.items():
            if model is not plain:
                with torch.no_grad():
                    pairs = zip(model.parameters(), plain.parameters(), strict=True)
                    for mine, theirs in pairs:
                        mine.copy_(theirs)
            # Gates draw and plan from the first step on, as in a run of their own.
            norms = norms_of(model, loss_of, *data)
            if step >= WARMUP:
                rows[name].append(norms)
        optimizer.step()
    return rows


def global_norm(norms: dict[str, float]) -> float:
    return math.sqrt(sum(norm**2 for norm in norms.values()))


def clipped(norms: list[float], threshold: float) -> float:
    return sum(norm > threshold for norm in norms) / len(norms)


def summarize(runs: list[dict[str, list[dict[str, float]]]], setting: str) -> dict:
    ratios, per_parameter = [], defaultdict(list)
    norms, thresholds = [], []
    for rows in runs:
        plain = [global_norm(row) for row in rows["plain"]]
        ours = [global_norm(row) for row in rows[setting]]
        # The threshold of a run is above all but a tenth of its plain norms.
        thresholds.append(sorted(plain)[round(len(plain) * (1 - CLIPPED)) - 1])
        norms.append(ours)
        ratios += [a / b for a, b in zip(ours, plain, strict=True)]
        for a, b in zip(rows[setting], rows["plain"], strict=True):
            for name in a:
                if b[name] > 1e-4 * global_norm(b):  # biases before a norm layer have none
                    per_parameter[name].append(a[name] / b[name])
    ratio = statistics.mean(ratios)
    means = {name: statistics.mean(values) for name, values in per_parameter.items()}
    largest = max(means, key=means.get)

    def share(factor: float) -> float:
        pairs = zip(norms, thresholds, strict=True)
        return statistics.mean(clipped(ours, factor * threshold) for ours, threshold in pairs)

    return {
        "setting": setting,
        "ratio": ratio,
        "ratio_range": [min(ratios), max(ratios)],
        "clipped": share(1),
        "clipped_at_ratio": share(ratio),
        "largest_parameter": [largest, means[largest]],
        "median_parameter": statistics.median(means.values()),
    }


def print_table(record: dict) -> None:
    head = "| | norm / plain (range) | clipped | clipped, threshold times ratio "
    print(head + "| norm of a parameter: median | largest |\n|" + "---|" * 6)
    for row in record["rows"]:
        low, high = row["ratio_range"]
        name, largest = row["largest_parameter"]
        print(
            f"| {row['task']}, {row['setting']} | {row['ratio']:.2f} ({low:.2f} to {high:.2f}) "
            f"| {row['clipped']:.0%} | {row['clipped_at_ratio']:.0%} "
            f"| {row['median_parameter']:.2f} | {largest:.2f} ({name}) |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gradient_norms")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", action="store_true", help="only print the table of --out")
    arguments = parser.parse_args()
    if arguments.show:
        print_table(json.loads(arguments.out.read_text()))
        return
    torch.set_num_threads(1)
    rows = []
    for task in TASKS:
        runs = [run(task, seed) for seed in range(SEEDS)]
        rows += [{"task": task, **summarize(runs, name)} for name in ["plain", *settings()]]
    record = {
        "command": f"python -m bench.gradient_norms --out {arguments.out}",
        "torch": torch.__version__,
        "seeds": SEEDS,
        "steps": STEPS,
        "rows": rows,
    }
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    print_table(record)


if __name__ == "__main__":
    main()
