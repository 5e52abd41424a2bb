"""A whole training step with a sparse backward pass, beside torch's dense one.

The layers choose sparse or dense for each product by the model of the costs that ships with the
library (bench/cost_model.py). The ratio is ours / dense.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

import slimgrad as sg
from bench.suite_step import Block, Training, Transformer, resnet20
from bench.timing import Row, race

SETTINGS = {
    "weight 0.95, input 0.8": sg.Prune(weight=0.95, input=0.8),
    "weight 0.9, input dense": sg.Prune(weight=0.9, input=0),
    # Seldom worth it.
    "weight 0.4, input 0.4": sg.Prune(weight=0.4, input=0.4),
}


def resnet18(width: int = 64) -> nn.Module:
    """The CIFAR variant: a 3x3 stem without pooling, four stages of two blocks."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    inputs = width
    for outputs in (width, 2 * width, 4 * width, 8 * width):
        for i in range(2):
            layers.append(Block(inputs, outputs, 2 if i == 0 and outputs > width else 1))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def run(quick: bool) -> list[Row]:
    torch.manual_seed(0)
    batch = 4 if quick else 64
    images = torch.randn(batch, 3, 32, 32)
    layouts = {"channels-last": torch.channels_last, "contiguous": torch.contiguous_format}
    residual = {"ResNet-18": resnet18(8 if quick else 64), "ResNet-20": resnet20()}
    tokens = torch.randn(2 if quick else 16, 128, 512)
    networks = {
        f"{name} on 32x32, {layout}, batch {batch}": (
            copy.deepcopy(network).to(memory_format=memory_format),
            images.to(memory_format=memory_format),
        )
        for name, network in residual.items()
        for layout, memory_format in layouts.items()
    }
    networks |= {
        f"transformer 4 x 512, 128 tokens, batch {len(tokens)}": (
            Transformer(512, 8, 1 if quick else 4),
            tokens,
        ),
    }
    rows = []
    for title, (network, inputs) in networks.items():
        alternatives = {"dense": Training(copy.deepcopy(network), inputs).step}
        for name, gradients in SETTINGS.items():
            model = copy.deepcopy(network)
            sg.compress(model, gradients)
            alternatives[name] = Training(model, inputs).step
        rows += race("sparse_step", title, "dense", alternatives, seconds=1.0 if quick else 20.0)
    return rows
