r"""Gradients for a model of 25 million parameters, with the statistics of real ones.

    python -m bench.distributed_gradients --images DIR --text FILE \
        --out results/gradient_quantiles.json

The model is a list of shapes: the first three stages of a ResNet-50 and a GPT of four blocks, width
512, vocabulary 8,192, with their biases and norms. A small residual network (CIFAR-10's binary
version in DIR) and a small GPT (the characters of FILE) of the same kinds of layers train for 300
steps; quantiles of one gradient of every kind of layer are the record. Every parameter then draws
its gradient from the distribution that its kind of layer had: values at random quantiles, with
straight lines between those recorded. So histogram, extremes and zeros of a layer are real ones.
What is lost is order: neighbours in a real gradient are somewhat alike, these are not; nothing that
is compared here codes a value by its neighbours.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from math import prod
from pathlib import Path

import torch
from torch import nn

from bench.fewbit_convergence import Transformer, text_task

RECORD = Path(__file__).parent.parent / "results" / "gradient_quantiles.json"
Shapes = list[tuple[str, tuple[int, ...], str]]  # name, shape, kind of layer


def _bottleneck(name: str, inputs: int, width: int) -> Shapes:
    wide = 4 * width
    shapes: Shapes = [
        (f"{name}.conv1", (width, inputs, 1, 1), "conv1x1"),
        (f"{name}.conv2", (width, width, 3, 3), "conv3x3"),
        (f"{name}.conv3", (wide, width, 1, 1), "conv1x1"),
    ]
    for i, outputs in enumerate((width, width, wide)):
        shapes += [(f"{name}.norm{i + 1}.{part}", (outputs,), "small") for part in ("w", "b")]
    if inputs != wide:
        shapes.append((f"{name}.shortcut", (wide, inputs, 1, 1), "conv1x1"))
    return shapes


def _gpt_block(name: str, width: int) -> Shapes:
    layers = [("qkv", 3 * width, width), ("out", width, width)]
    layers += [("up", 4 * width, width), ("down", width, 4 * width)]
    shapes: Shapes = []
    for kind, outputs, inputs in layers:
        shapes += [(f"{name}.{kind}", (outputs, inputs), kind)]
        shapes += [(f"{name}.{kind}.bias", (outputs,), "small")]
    return shapes + [(f"{name}.norm{i}", (width,), "small") for i in range(4)]


def parameter_shapes(scale: float = 1.0) -> Shapes:
    """25.9 million values at scale 1; the widths go with its square root."""

    def wide(n: int) -> int:
        return max(8, round(n * scale**0.5 / 8) * 8)

    shapes: Shapes = [("stem", (wide(64), 3, 7, 7), "conv3x3")]
    inputs = wide(64)
    for stage, (width, blocks) in enumerate([(64, 3), (128, 4), (256, 6)]):
        for block in range(blocks):
            shapes += _bottleneck(f"stage{stage}.{block}", inputs, wide(width))
            inputs = 4 * wide(width)
    shapes.append(("tokens", (wide(8192), wide(512)), "tokens"))
    for block in range(4):
        shapes += _gpt_block(f"block{block}", wide(512))
    return shapes


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
        self.shortcut = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def _train(model: nn.Module, batch: Callable, loss_of: Callable, steps: int) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, *batch())
        loss.backward()
        optimizer.step()
    return loss.item()


def _image_gradients(folder: Path, steps: int) -> dict[str, torch.Tensor]:
    from bench.time_to_accuracy import read_batches

    images, labels = read_batches([folder / "data_batch_1.bin"], 10000)
    torch.manual_seed(0)
    stages = [Bottleneck(32, 32, 1), Bottleneck(128, 64, 2), Bottleneck(256, 128, 2)]
    stem = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    model = nn.Sequential(*stem, *stages, *end).to(memory_format=torch.channels_last)

    def batch():
        picked = torch.randint(len(images), (64,))
        return images[picked].contiguous(memory_format=torch.channels_last), labels[picked]

    def loss_of(model, x, y):
        return nn.functional.cross_entropy(model(x), y)

    print(f"images: loss {_train(model, batch, loss_of, steps):.3f}")
    pointwise, wide = stages[1].body[0], stages[1].body[3]
    return {"conv1x1": pointwise.weight.grad, "conv3x3": wide.weight.grad}


def _text_gradients(path: Path, steps: int) -> dict[str, torch.Tensor]:
    text = path.read_text()
    torch.manual_seed(0)
    _, batch, loss_of = text_task(text, 0)
    model = Transformer(len(set(text)), 64, width=256)
    print(f"text: loss {_train(model, batch, loss_of, steps):.3f}")
    block = model.blocks[1]
    return {
        "tokens": model.tokens.weight.grad,
        "qkv": block.qkv.weight.grad,
        "out": block.out.weight.grad,
        "up": block.mlp[0].weight.grad,
        "down": block.mlp[2].weight.grad,
        "small": block.mlp[0].bias.grad,
    }


def _levels(count: int) -> torch.Tensor:
    """Of `count` values: 256 levels in the middle, and towards both ends four an octave, to 1."""
    middle = torch.linspace(0, 1, 257, dtype=torch.float64)[1:-1]
    tail = 2.0 ** torch.arange(-8, -32, -0.25, dtype=torch.float64)
    tail = tail[tail > 1 / (count - 1)]
    ends = torch.tensor([0.0, 1 / (count - 1)], dtype=torch.float64)
    low = torch.cat([ends, tail])
    return torch.cat([low, 1 - low, middle]).unique()


def quantiles(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    ordered = values.double().flatten().sort().values
    levels = _levels(len(ordered))
    place = levels * (len(ordered) - 1)
    below = place.long().clamp_(max=len(ordered) - 2)
    return levels, torch.lerp(ordered[below], ordered[below + 1], place - below)


def recorded(path: Path = RECORD) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Levels and quantiles of every kind of layer."""
    kinds = json.loads(path.read_text())["kinds"]
    return {
        kind: (_levels(row["values"]), torch.tensor(row["quantiles"], dtype=torch.float64))
        for kind, row in kinds.items()
    }


def drawn(
    law: tuple[torch.Tensor, torch.Tensor], count: int, generator: torch.Generator
) -> torch.Tensor:
    levels, values = law
    at = torch.rand(count, generator=generator, dtype=torch.float64)
    above = torch.searchsorted(levels, at).clamp_(1, len(levels) - 1)
    below = above - 1
    slope = (values.diff() / levels.diff())[below]
    return slope.mul_(at.sub_(levels[below])).add_(values[below]).float()


def gradients(shapes: Shapes, seed: int) -> dict[str, torch.Tensor]:
    kinds = recorded()
    generator = torch.Generator().manual_seed(seed)
    return {
        name: drawn(kinds[kind], prod(shape), generator).view(shape) for name, shape, kind in shapes
    }


class _Preset(torch.autograd.Function):
    """A layer whose backward takes no time and finds the gradients that it was given."""

    @staticmethod
    def forward(ctx, x, grads, *parameters):
        ctx.grads = grads
        return x + 0

    @staticmethod
    def backward(ctx, grad):
        # New views: autograd then takes them over instead of copying, and DDP copies them into its
        # buckets, where they are reduced. The values here stay as they are.
        return grad, None, *[g.view_as(g) for g in ctx.grads]


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
            x = _Preset.apply(x, (grad,), weight)
        return x


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.distributed_gradients")
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = _image_gradients(arguments.images, arguments.steps)
    found |= _text_gradients(arguments.text, arguments.steps)
    rows = {}
    for kind, grad in found.items():
        print(
            f"{kind}: {grad.numel()} values, largest {grad.abs().max() / grad.std():.1f} deviations"
        )
        values = [float(f"{v:.6g}") for v in quantiles(grad)[1].tolist()]
        rows[kind] = {"values": grad.numel(), "quantiles": values}
    if arguments.out:
        command = (
            f"python -m bench.distributed_gradients --images CIFAR10 --text {arguments.text.name}"
            f" --steps {arguments.steps} --out {arguments.out}"
        )
        record = {"command": command, "torch": torch.__version__, "kinds": rows}
        arguments.out.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
