"""The two products of a layer's backward pass: torch's dense one against ours on a pruned gradient.

Ours counts everything that a backward pass does: the sample, the threshold, pruning, compaction and
the product. The ratio is ours / dense, so its inverse is the speed-up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

import slimgrad as sg
from bench.timing import Row, race
from slimgrad.compression.gradients import PRODUCTS
from slimgrad.nn.layers import SparseState

SPARSITIES = (0.7, 0.8, 0.9, 0.95, 0.98)
CURVE = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99)


@dataclass(frozen=True)
class Conv:
    channels: int
    size: int
    outputs: int
    taps: int = 3
    stride: int = 1
    batch: int = 64
    contiguous: bool = False

    def __str__(self) -> str:
        return (
            f"Conv2d {self.channels}->{self.outputs} {self.taps}x{self.taps} stride {self.stride}, "
            f"{self.batch} x {self.size}x{self.size}" + ", contiguous" * self.contiguous
        )

    def tensors(self):
        padding = self.taps // 2
        layout = torch.contiguous_format if self.contiguous else torch.channels_last
        x = torch.randn(self.batch, self.channels, self.size, self.size).to(memory_format=layout)
        weight = torch.randn(self.outputs, self.channels, self.taps, self.taps)
        weight = weight.to(memory_format=layout)
        y = torch.nn.functional.conv2d(x, weight, stride=self.stride, padding=padding)
        return x, weight, gradient_like(y)

    def arguments(self):
        padding = self.taps // 2
        return ([self.stride] * 2, [padding] * 2, [1, 1])

    def dense(self, product, grad, x, weight):
        mask = [product == "input", product == "weight", False]
        return torch.ops.aten.convolution_backward(
            grad, x, weight, None, *self.arguments(), False, [0, 0], 1, mask
        )

    def sparse(self, product, grad, x, weight, state):
        mask = [product == "input", product == "weight", False]
        return torch.ops.slimgrad.sparse_conv2d_backward(
            grad, x, weight, *self.arguments(), 1, mask, state.tensors(), 0
        )


@dataclass(frozen=True)
class Linear:
    rows: int
    inputs: int
    outputs: int

    def __str__(self) -> str:
        return f"Linear {self.inputs}->{self.outputs}, {self.rows} rows"

    def tensors(self):
        x, weight = torch.randn(self.rows, self.inputs), torch.randn(self.outputs, self.inputs)
        return x, weight, gradient_like(x @ weight.t())

    def dense(self, product, grad, x, weight):
        return grad @ weight if product == "input" else grad.t() @ x

    def sparse(self, product, grad, x, weight, state):
        mask = [product == "input", product == "weight", False]
        return torch.ops.slimgrad.sparse_linear_backward(grad, x, weight, mask, state.tensors(), 0)


def gradient_like(y: torch.Tensor) -> torch.Tensor:
    """Lognormal magnitudes with the spread that neural gradients of a ResNet have."""
    return torch.randn_like(y).mul_(1.5).exp_() * torch.randn_like(y).sign_()


SHAPES = [
    Conv(64, 32, 64),
    Conv(128, 16, 128),
    Conv(256, 8, 256),
    Conv(64, 32, 128, stride=2),
    Conv(64, 32, 128, taps=1),
    Conv(16, 32, 16),
    Conv(32, 32, 32),
    Conv(64, 32, 64, contiguous=True),
    Conv(256, 8, 256, contiguous=True),
    Conv(64, 32, 128, taps=1, contiguous=True),
    Linear(4096, 1024, 1024),
    Linear(2048, 3072, 768),
]


def product_state(sparsity: float) -> SparseState:
    prune = sg.Prune(sparsity, sparse_backward="always")
    return SparseState(prune, seed=1)


def product_rows(layer, product: str, sparsities, seconds: float, what: str = "") -> list[Row]:
    x, weight, grad = layer.tensors()
    alternatives = {"dense": lambda: layer.dense(product, grad, x, weight)}
    for sparsity in sparsities:
        state = product_state(sparsity)
        alternatives[f"sparsity {sparsity}"] = lambda state=state: layer.sparse(
            product, grad, x, weight, state
        )
    return race("sparse", f"{what}{product} gradient, {layer}", "dense", alternatives, seconds)


def run(quick: bool) -> list[Row]:
    rows = []
    shapes = [Conv(16, 8, 16, batch=2), Linear(64, 32, 32)] if quick else SHAPES
    for layer in shapes:
        for product in PRODUCTS:
            rows += product_rows(layer, product, SPARSITIES, 0.1 if quick else 2.5)
    for product in PRODUCTS:
        rows += product_rows(shapes[0], product, CURVE, 0.1 if quick else 3.0, "curve: ")
    return rows
