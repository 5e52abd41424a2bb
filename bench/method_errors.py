"""How much error does each way to choose a low-bit format leave in real gradients?

    python -m bench.method_errors --out results/method_errors.json

Networks are trained in full precision for some steps; at three moments the gradient of every
layer's output is taken, with the layer's input. Then Quantize with each method, width and rounding
is put behind a copy of the layer, through compress() as a user would, and the layer's backward pass
runs on what the gate makes of the gradient. Recorded: the split, the mean relative error of the
gradient, the relative error of the weight's gradient computed from it, and the bias of sums (of the
bias gradient, that is). Stochastic rounding is averaged over draws. Nothing is timed.
"""

import argparse
import copy
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from bench.fewbit_convergence import generated_text, image_task, text_task

METHODS = ("empirical", "lognormal", "normal")
BITS = (4, 6, 8)
# With rounding goes what happens below the grid: both are unbiased, or neither.
ROUNDINGS = {"stochastic": "stochastic", "nearest": "zero"}
DRAWS = 48  # of stochastic rounding, at least, over the samples of a kind of layer
CLASSES = 1000


@dataclass
class Sample:
    """A layer at some moment of training: its input, and the gradient of its output."""

    kind: str
    layer: nn.Module
    inputs: torch.Tensor
    gradient: torch.Tensor


def bert_task(_: str, seed: int):
    """A small BERT that classifies sentences into 1,000 classes: its head is Linear(64, 1000)."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=CLASSES,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=32,
        num_labels=CLASSES,
    )
    generator = torch.Generator().manual_seed(seed)

    def batch():
        labels = torch.randint(CLASSES, (64,), generator=generator)
        words = torch.randint(CLASSES, (64, 16), generator=generator)
        words[:, :4] = labels[:, None]  # so that there is something to learn
        return words, labels

    def loss(model, words, labels):
        return nn.functional.cross_entropy(model(words).logits, labels)

    return transformers.BertForSequenceClassification(config), batch, loss


def head_task(_: str, seed: int):
    """Such a head by itself, before training: 1,000 softmax terms a row, all of them small but the
    target's, which is a thousand times as large."""
    generator = torch.Generator().manual_seed(seed)

    def batch():
        inputs = torch.randn(256, 64, generator=generator)
        return inputs, torch.randint(CLASSES, (256,), generator=generator)

    def loss(model, inputs, labels):
        return nn.functional.cross_entropy(model(inputs), labels)

    return nn.Sequential(nn.Linear(64, CLASSES)), batch, loss


# By task: how it is made, when samples are taken, and the kind of a layer by a part of its name.
TASKS = {
    "cnn": (image_task, (0, 20, 100), {"11": "CNN: head, 10 classes", "": "CNN: convolution"}),
    "transformer": (
        text_task,
        (0, 20, 100),
        {
            "head": "transformer: head, 17 symbols",
            "mlp": "transformer: mlp",
            "": "transformer: attention",
        },
    ),
    "bert": (
        bert_task,
        (0, 20, 100),
        {
            "classifier": "BERT: head, 1,000 classes",
            "pooler": "BERT: pooler",
            "attention": "BERT: attention",
            "": "BERT: mlp",
        },
    ),
    "head": (head_task, (0,), {"": "Linear(64, 1000), untrained"}),
}


def capture(model: nn.Module, kind_of: Callable[[str], str], run: Callable[[], None]):
    """Samples of every convolution and linear layer in one forward and backward pass."""
    samples: list[Sample] = []
    handles = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear | nn.Conv2d):
            continue

        def keep(layer, inputs, output, name=name):
            def on_gradient(gradient):
                copied = copy.deepcopy(layer)
                copied._forward_hooks.clear()
                at = inputs[0].detach().clone()
                samples.append(Sample(kind_of(name), copied, at, gradient.detach().clone()))

            output.register_hook(on_gradient)

        handles.append(module.register_forward_hook(keep))
    run()
    for handle in handles:
        handle.remove()
    return samples


def samples_of(task: str, seed: int = 0) -> Iterator[Sample]:
    make, moments, kinds = TASKS[task]
    torch.manual_seed(seed)
    model, batch, loss_of = make(generated_text() if task == "transformer" else "", seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def kind_of(name: str) -> str:
        return next(kind for part, kind in kinds.items() if part in name)

    for step in range(max(moments) + 1):
        optimizer.zero_grad()
        inputs, targets = batch()
        loss = loss_of(model, inputs, targets)
        if step in moments:

            def again(inputs=inputs, targets=targets):
                loss_of(model, inputs, targets).backward()

            yield from capture(model, kind_of, again)
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def backward(sample: Sample, gradients, seed: int):
    """The weight's gradient, and what a gate made of the output's. Without one, both exact."""
    import slimgrad as sg

    layer = copy.deepcopy(sample.layer)
    seen = []
    # Before the gate's own hook, so that what arrives has passed the gate.
    layer.register_forward_hook(lambda _m, _i, output: output.register_hook(seen.append) and None)
    model = nn.Sequential(layer)
    controller = None
    if gradients is not None:
        controller = sg.compress(model, gradients, min_elements=1, seed=seed)
    layer.zero_grad()
    model(sample.inputs).backward(sample.gradient.clone())
    format = controller.report()["0"]["format"] if controller else None
    return layer.weight.grad, seen[0], format


def errors_of(sample: Sample, bits: int, method: str, rounding: str, draws: int) -> dict:
    import slimgrad as sg

    gradients = sg.Quantize(bits, method=method, rounding=rounding, underflow=ROUNDINGS[rounding])
    exact, _, _ = backward(sample, None, 0)
    x = sample.gradient.double()
    nonzero = x != 0
    rows = []
    for seed in range(draws if rounding == "stochastic" else 1):
        weight, rounded, format = backward(sample, gradients, seed)
        difference = rounded.double() - x
        rows.append(
            {
                "format": format,
                "relative": (difference[nonzero] / x[nonzero]).abs().mean().item(),
                "weight": ((weight - exact).norm() / exact.norm()).item(),
                "bias": (difference.sum() / x.abs().sum()).item(),
                "sum": rounded.double().sum().item(),
            }
        )
    result = {key: statistics.mean(row[key] for row in rows) for key in rows[0] if key != "format"}
    result["weight"] = math.sqrt(statistics.mean(row["weight"] ** 2 for row in rows))
    return result | {"format": rows[0]["format"], "exact_sum": x.sum().item()}


def measure_kind(samples: list[Sample]) -> list[dict]:
    """One row for each width, rounding and method, over all samples of a kind of layer."""
    rows = []
    draws = max(4, DRAWS // len(samples))
    for bits in BITS:
        for rounding in ROUNDINGS:
            for method in METHODS:
                found = [errors_of(sample, bits, method, rounding, draws) for sample in samples]
                row = {
                    key: statistics.mean(e[key] for e in found) for key in ("relative", "weight")
                }
                row["largest_bias"] = max((e["bias"] for e in found), key=abs)
                row["sums"] = [e["sum"] for e in found]
                row["splits"] = dict(Counter(e["format"] for e in found).most_common())
                rows.append({"bits": bits, "rounding": rounding, "method": method, **row})
    return rows


def spread_of(samples: list[Sample]) -> dict:
    import slimgrad as sg

    stats = [sg.measure(sample.gradient) for sample in samples]
    above = [s.max_abs / math.exp(s.log_mean) for s in stats]
    spread = [s.log_std / math.log(2) for s in stats]
    return {
        "samples": len(samples),
        "log2_std": [min(spread), max(spread)],
        "largest_over_typical": [min(above), max(above)],
        "exact_sums": [sample.gradient.double().sum().item() for sample in samples],
    }


# ---- tables ----------------------------------------------------------------------------------


def by_setting(kind: dict) -> dict[tuple, dict[str, dict]]:
    table = defaultdict(dict)
    for row in kind["rows"]:
        table[row["rounding"], row["bits"]][row["method"]] = row
    return table


def cell(row: dict, best: dict[str, float]) -> str:
    def number(key: str) -> str:
        text = f"{row[key]:.2g}" if row[key] < 0.0995 else f"{row[key]:.2f}"
        return f"**{text}**" if row[key] <= best[key] * 1.0005 else text

    (split, _), *others = row["splits"].items()
    return f"{split}{'*' if others else ''} {number('relative')} / {number('weight')}"


def print_tables(record: dict) -> None:
    """Markdown: mean relative error of the gradient / relative error of the weight's gradient."""
    print("| layers | log2 deviation | largest / typical |\n|---|---|---|")
    for kind in record["kinds"]:
        low, high = kind["log2_std"]
        least, most = kind["largest_over_typical"]
        print(
            f"| {kind['kind']} ({kind['samples']}) | {low:.1f} to {high:.1f} "
            f"| {least:,.0f} to {most:,.0f} |"
        )
    for rounding in ROUNDINGS:
        print(
            f"\n{rounding}:\n\n| layers | bits | {' | '.join(METHODS)} | bias of sums, by method |"
        )
        print("|---|---|" + "---|" * (len(METHODS) + 1))
        for kind in record["kinds"]:
            for bits in BITS:
                rows = by_setting(kind)[rounding, bits]
                best = {key: min(r[key] for r in rows.values()) for key in ("relative", "weight")}
                texts = [cell(rows[method], best) for method in METHODS]
                cells = " | ".join(t if t != texts[0] else "same" for t in texts[1:])
                bias = ", ".join(f"{rows[method]['largest_bias']:+.3f}" for method in METHODS)
                print(f"| {kind['kind']} | {bits} | {texts[0]} | {cells} | {bias} |")
    print_exceptions(record)


def print_exceptions(record: dict) -> None:
    print("\nWhere the empirical method is not the best, and by how much:")
    for key in ("relative", "weight"):
        for kind in record["kinds"]:
            for (rounding, bits), rows in by_setting(kind).items():
                errors = {method: row[key] for method, row in rows.items()}
                method = min(errors, key=errors.get)
                ratio = errors["empirical"] / errors[method]
                if ratio > 1.02:
                    where = f"{kind['kind']}, {bits} bits, {rounding}"
                    print(f"  {key}: {where}: {method}, {ratio:.2f} times")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.method_errors")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", action="store_true", help="only print the tables of --out")
    arguments = parser.parse_args()
    if arguments.show:
        print_tables(json.loads(arguments.out.read_text()))
        return
    torch.set_num_threads(1)
    record = {
        "command": f"python -m bench.method_errors --out {arguments.out}",
        "torch": torch.__version__,
        "draws": DRAWS,
        "kinds": [],
    }
    for task in TASKS:
        kinds = defaultdict(list)
        for sample in samples_of(task):
            kinds[sample.kind].append(sample)
        for kind, samples in kinds.items():
            row = {"kind": kind, **spread_of(samples), "rows": measure_kind(samples)}
            record["kinds"].append(row)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    print_tables(record)


if __name__ == "__main__":
    main()
