r"""Gradients of a model of 25 million parameters, as its own training had them.

    python -m bench.distributed_gradients --images DIR --text FILE \
        --out results/gradient_quantiles.json

The model has two halves: the first three stages of a ResNet-50, which learn CIFAR-10 (its binary
version in DIR), and a GPT of four blocks, width 512, whose 8,192 words are those of FILE, with its
output tied to them. Both train for 25 steps; the record has quantiles of every large parameter's
gradient in the last one, and of one small one's. A benchmark then draws every gradient from the
distribution that it had: values at random quantiles, with straight lines between those recorded. So
histogram, extremes and zeros of a layer are real ones. What is lost is order: neighbours in a real
gradient are somewhat alike, these are not; nothing that is compared looks at a value's neighbours.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path

import torch
from torch import nn

from bench.fewbit_convergence import Transformer

RECORD = Path(__file__).parent.parent / "results" / "gradient_quantiles.json"
SMALL = 4096  # values: fewer share one law

Law = tuple[torch.Tensor, torch.Tensor]  # levels from 0 to 1, and the values there


# ---- the model -------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        layers: list[nn.Module] = []
        sizes = [(inputs, width, 1), (width, width, 3), (width, 4 * width, 1)]
        for i, (before, after, taps) in enumerate(sizes):
            moved = stride if i == 1 else 1
            layers.append(nn.Conv2d(before, after, taps, moved, taps // 2, bias=False))
            layers += [nn.BatchNorm2d(after), nn.ReLU()]
        self.body = nn.Sequential(*layers[:-1])
        self.shortcut = nn.Identity()
        if inputs != 4 * width:
            self.shortcut = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def image_half() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for stage, (width, blocks) in enumerate([(64, 3), (128, 4), (256, 6)]):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            layers.append(Bottleneck(inputs, width, stride))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def text_half() -> Transformer:
    model = Transformer(8192, 64, width=512, layers=4)
    nn.init.normal_(model.tokens.weight, std=0.02)
    model.head.weight = model.tokens.weight
    return model


# ---- its training ----------------------------------------------------------------------------


def _train(model: nn.Module, batch: Callable, loss_of: Callable, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, *batch())
        loss.backward()
        optimizer.step()
        if step % 5 == 4:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)


def train_images(folder: Path, steps: int) -> nn.Module:
    from bench.time_to_accuracy import read_batches

    images, labels = read_batches([folder / "data_batch_1.bin"], 10000)
    torch.manual_seed(0)
    model = image_half().to(memory_format=torch.channels_last)

    def batch():
        picked = torch.randint(len(images), (16,))
        return images[picked].contiguous(memory_format=torch.channels_last), labels[picked]

    _train(model, batch, lambda m, x, y: nn.functional.cross_entropy(m(x), y), steps)
    return model


def train_text(path: Path, steps: int) -> nn.Module:
    words = re.findall(r"\w+|\S|\n", path.read_text())
    common = {word: i for i, (word, _) in enumerate(Counter(words).most_common(8191))}
    data = torch.tensor([common.get(word, 8191) for word in words])
    torch.manual_seed(0)
    model = text_half()

    def batch():
        starts = torch.randint(len(data) - 65, (6,))
        rows = torch.stack([data[start : start + 65] for start in starts])
        return rows[:, :-1], rows[:, 1:]

    def loss_of(m, x, y):
        return nn.functional.cross_entropy(m(x).flatten(0, 1), y.flatten())

    _train(model, batch, loss_of, steps)
    return model


# ---- the record ------------------------------------------------------------------------------


def _levels(count: int) -> torch.Tensor:
    """Of `count` values: 128 levels in the middle, and towards both ends three an octave, to 1."""
    middle = torch.linspace(0, 1, 129, dtype=torch.float64)[1:-1]
    tail = 2.0 ** (torch.arange(-21, -96, -1, dtype=torch.float64) / 3)
    ends = torch.tensor([0.0, 1 / (count - 1)], dtype=torch.float64)
    low = torch.cat([ends, tail[tail > 1 / (count - 1)]])
    return torch.cat([low, 1 - low, middle]).unique()


def quantiles(values: torch.Tensor) -> Law:
    ordered = values.double().flatten().sort().values
    levels = _levels(len(ordered))
    place = levels * (len(ordered) - 1)
    below = place.long().clamp_(max=len(ordered) - 2)
    return levels, torch.lerp(ordered[below], ordered[below + 1], place - below)


def recorded(path: Path = RECORD) -> dict[str, tuple[tuple[int, ...], Law]]:
    """Shape and law of every parameter's gradient."""
    record = json.loads(path.read_text())
    laws = {
        name: (_levels(row["values"]), torch.tensor(row["quantiles"], dtype=torch.float64))
        for name, row in record["laws"].items()
    }
    return {
        name: (tuple(shape), laws[name if name in laws else "small"])
        for name, shape in record["shapes"].items()
    }


def drawn(law: Law, count: int, generator: torch.Generator) -> torch.Tensor:
    levels, values = law
    at = torch.rand(count, generator=generator, dtype=torch.float64)
    above = torch.searchsorted(levels, at).clamp_(1, len(levels) - 1)
    below = above - 1
    slope = (values.diff() / levels.diff())[below]
    return slope.mul_(at.sub_(levels[below])).add_(values[below]).float()


def scaled(shape: tuple[int, ...], scale: float) -> tuple[int, ...]:
    return max(1, round(scale * shape[0])), *shape[1:]


def gradients(seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    """By name, in the order of the model; with `scale` so much of every parameter's first side."""
    generator = torch.Generator().manual_seed(seed)
    grads = {}
    for name, (shape, law) in recorded().items():
        cut = scaled(shape, scale)
        grads[name] = drawn(law, prod(cut), generator).view(cut)
    return grads


class _Preset(torch.autograd.Function):
    """A layer whose backward takes no time and finds the gradient that it was given."""

    @staticmethod
    def forward(ctx, x, grad, weight):
        ctx.given = grad
        return x + 0

    @staticmethod
    def backward(ctx, grad):
        # A new view: autograd then takes it over instead of copying, and DDP copies it into its
        # bucket, where it is reduced. The values here stay as they are.
        return grad, None, ctx.given.view_as(ctx.given)


class PresetModel(nn.Module):
    """Has the parameters; its backward yields the gradients, last layer first, as networks do."""

    def __init__(self, grads: dict[str, torch.Tensor], values: torch.Tensor):
        """`values`: memory of the parameters, which several models may share; nobody reads it."""
        super().__init__()
        self.weights, self.grads, start = nn.ParameterList(), list(grads.values()), 0
        for grad in self.grads:
            view = values[start : start + grad.numel()].view(grad.shape)
            self.weights.append(nn.Parameter(view))
            start += grad.numel()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight, grad in zip(self.weights, self.grads, strict=True):
            x = _Preset.apply(x, grad, weight)
        return x


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.distributed_gradients")
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--out", type=Path, default=RECORD)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    halves = {
        "images": train_images(arguments.images, arguments.steps),
        "text": train_text(arguments.text, arguments.steps),
    }
    shapes, laws, small = {}, {}, None
    for half, model in halves.items():
        for name, parameter in model.named_parameters():
            grad = parameter.grad
            shapes[f"{half}.{name}"] = list(grad.shape)
            if grad.numel() >= SMALL:
                values = [float(f"{v:.5g}") for v in quantiles(grad)[1].tolist()]
                laws[f"{half}.{name}"] = {"values": grad.numel(), "quantiles": values}
                print(f"{name}: largest of {grad.numel()}: {grad.abs().max() / grad.std():.1f} std")
            else:
                small = grad
    values = [float(f"{v:.5g}") for v in quantiles(small)[1].tolist()]
    laws["small"] = {"values": small.numel(), "quantiles": values}
    command = (
        f"python -m bench.distributed_gradients --images CIFAR10 --text {arguments.text.name}"
        f" --steps {arguments.steps} --out {arguments.out}"
    )
    head = {"command": command, "torch": torch.__version__, "shapes": shapes}
    lines = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in laws.items())
    text = json.dumps(head).removesuffix("}")
    arguments.out.write_text(f'{text},\n "laws": {{\n  {lines}\n }}}}\n')


if __name__ == "__main__":
    main()
