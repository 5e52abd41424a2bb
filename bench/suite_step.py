"""What compressing the gradients of every layer costs a whole training step.

Plain and compressed steps of one and the same network alternate: its gates are put in before a step
and taken out after it, outside the timing, so that all steps work on the same memory, whose place
alone can make a difference of some percent. The ratio is of the best times.
"""

from __future__ import annotations

import torch
from torch import nn

import slimgrad as sg
from bench.timing import Row, race


class Block(nn.Module):
    """The residual block of the CIFAR ResNets."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet20() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    width = 16
    for outputs in (16, 32, 64):
        for i in range(3):
            layers.append(Block(width, outputs, 2 if i == 0 and outputs > 16 else 1))
            width = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Transformer(nn.Module):
    """Four pre-norm encoder layers, 256 wide, with projections that are called as modules."""

    def __init__(self, width: int = 256, heads: int = 4, depth: int = 4):
        super().__init__()
        self.heads = heads
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "norm2": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        batch, length, width = x.shape
        for block in self.blocks:
            qkv = block["qkv"](block["norm1"](x)).view(batch, length, 3, self.heads, -1)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + block["out"](mixed.transpose(1, 2).reshape(batch, length, width))
            x = x + block["down"](nn.functional.gelu(block["up"](block["norm2"](x))))
        return self.head(x.mean(1))


SETTINGS = {
    "plain": None,
    "FP6": "fp6",
    "pruned to 0.85": sg.Prune(0.85),
    "pruned to 0.85 and FP6": [sg.Prune(0.85), "fp6"],
}


class Training:
    """A network, and how its gradients are treated at the moment."""

    def __init__(self, model: nn.Module, inputs: torch.Tensor):
        self.model = model
        self.inputs = inputs
        self.labels = torch.randint(10, (len(inputs),))
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self.controller: sg.Controller | None = None

    def choose(self, setting: str) -> None:
        if self.controller is not None:
            self.controller.remove()
        gradients = SETTINGS[setting]
        self.controller = None if gradients is None else sg.compress(self.model, gradients)

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(self.model(self.inputs), self.labels).backward()
        self.optimizer.step()


def run(quick: bool) -> list[Row]:
    torch.manual_seed(0)
    batch = 16 if quick else 64
    networks = {
        f"ResNet-20 on 32x32, batch {batch}": Training(resnet20(), torch.randn(batch, 3, 32, 32)),
        f"transformer 4 x 256, 128 tokens, batch {batch // 4}": Training(
            Transformer(), torch.randn(batch // 4, 128, 256)
        ),
    }
    rows = []
    for title, training in networks.items():
        rows += race(
            "step",
            title,
            "plain",
            dict.fromkeys(SETTINGS, training.step),
            seconds=1.0 if quick else 40.0,
            before_each=training.choose,
        )
    return rows
