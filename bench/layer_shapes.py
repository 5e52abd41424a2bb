"""The shapes of the convolutions and linear layers of some networks, without the networks."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Layer:
    """A convolution, or with size 0 a linear layer whose batch is its rows; it occurs ``count``
    times in its network."""

    inputs: int
    outputs: int
    size: int = 0
    taps: int = 1
    stride: int = 1
    batch: int = 1
    count: int = 1
    groups: int = 1
    dilation: int = 1

    def __str__(self) -> str:
        if not self.size:
            return f"Linear {self.inputs}->{self.outputs}, {self.batch} rows"
        more = f" stride {self.stride}" if self.stride > 1 else ""
        more += f" groups {self.groups}" if self.groups > 1 else ""
        more += f" dilation {self.dilation}" if self.dilation > 1 else ""
        return (
            f"Conv2d {self.inputs}->{self.outputs} {self.taps}x{self.taps}{more}, "
            f"{self.batch} x {self.size}x{self.size}"
        )

    def arguments(self) -> tuple:
        """Stride, padding, dilation and groups, as the ops take them."""
        padding = self.dilation * (self.taps // 2)
        return [self.stride] * 2, [padding] * 2, [self.dilation] * 2, self.groups

    def out(self) -> int:
        """The size of the output, 1 for a linear layer."""
        reach = self.size + 2 * self.dilation * (self.taps // 2) - self.dilation * (self.taps - 1)
        return (reach - 1) // self.stride + 1 if self.size else 1

    def products(self) -> int:
        """Multiply-adds of one dense product."""
        weights = self.outputs * (self.inputs // self.groups) * self.taps**2
        return self.batch * self.out() ** 2 * weights

    def tensors(self, layout: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """grad, x and weight. Gradients have lognormal magnitudes, as those of a ResNet do."""
        if not self.size:
            x, weight = torch.randn(self.batch, self.inputs), torch.randn(self.outputs, self.inputs)
            y = x.new_empty(self.batch, self.outputs)
        else:
            x = torch.randn(self.batch, self.inputs, self.size, self.size)
            weight = torch.randn(self.outputs, self.inputs // self.groups, self.taps, self.taps)
            y = x.new_empty(self.batch, self.outputs, self.out(), self.out())
        grad = torch.randn_like(y).mul_(1.5).exp_() * torch.randn_like(y).sign_()
        tensors = [t.to(dtype) for t in (grad, x, weight)]
        if layout == "channels-last" and self.size:
            tensors = [t.to(memory_format=torch.channels_last) for t in tensors]
        return tuple(tensors)


def _resnet18(batch: int = 32) -> list[Layer]:
    layers = [Layer(3, 64, 32, 3, batch=batch), Layer(64, 64, 32, 3, batch=batch, count=4)]
    for inputs, size in ((64, 32), (128, 16), (256, 8)):
        outputs = 2 * inputs
        layers += [
            Layer(inputs, outputs, size, 3, 2, batch),
            Layer(inputs, outputs, size, 1, 2, batch),
            Layer(outputs, outputs, size // 2, 3, batch=batch, count=3),
        ]
    return layers


def _resnet20(batch: int = 64) -> list[Layer]:
    return [
        Layer(3, 16, 32, 3, batch=batch),
        Layer(16, 16, 32, 3, batch=batch, count=6),
        Layer(16, 32, 32, 3, 2, batch),
        Layer(32, 32, 16, 3, batch=batch, count=5),
        Layer(32, 64, 16, 3, 2, batch),
        Layer(64, 64, 8, 3, batch=batch, count=5),
    ]


def _resnet50(batch: int = 4) -> list[Layer]:
    layers = [
        Layer(3, 64, 224, 7, 2, batch),
        Layer(64, 64, 56, batch=batch),
        Layer(64, 64, 56, 3, batch=batch, count=3),
        Layer(64, 256, 56, batch=batch, count=4),
        Layer(256, 64, 56, batch=batch, count=2),
    ]
    for width, size, blocks in ((128, 56, 4), (256, 28, 6), (512, 14, 3)):
        wide, half = 4 * width, size // 2
        layers += [
            Layer(wide // 2, width, size, batch=batch),
            Layer(width, width, size, 3, 2, batch),
            Layer(width, wide, half, batch=batch, count=blocks),
            Layer(wide // 2, wide, size, 1, 2, batch),
            Layer(wide, width, half, batch=batch, count=blocks - 1),
            Layer(width, width, half, 3, batch=batch, count=blocks - 1),
        ]
    return layers


def _vgg11(batch: int = 8) -> list[Layer]:
    return [
        Layer(3, 64, 112, 3, batch=batch),
        Layer(64, 128, 56, 3, batch=batch),
        Layer(128, 256, 28, 3, batch=batch),
        Layer(256, 256, 28, 3, batch=batch),
        Layer(256, 512, 14, 3, batch=batch),
        Layer(512, 512, 14, 3, batch=batch),
        Layer(512, 512, 7, 3, batch=batch, count=2),
        Layer(4608, 4096, batch=batch),
        Layer(4096, 4096, batch=batch),
    ]


def _transformer(rows: int = 2048, width: int = 512, blocks: int = 4) -> list[Layer]:
    return [
        Layer(width, 3 * width, batch=rows, count=blocks),
        Layer(width, width, batch=rows, count=blocks),
        Layer(width, 4 * width, batch=rows, count=blocks),
        Layer(4 * width, width, batch=rows, count=blocks),
        Layer(width, 8192, batch=rows // 4),
    ]


_ODD = [
    Layer(33, 17, 19, 3, batch=16),
    Layer(32, 48, 20, 5, batch=16),
    Layer(64, 64, 28, 3, batch=8, dilation=2),
    Layer(64, 64, 56, 3, batch=1),
    Layer(96, 24, 28, batch=16),
    Layer(24, 144, 28, batch=16),
    Layer(128, 128, 28, 3, batch=8, groups=8),
    Layer(64, 64, 32, 3, batch=32, groups=64),
    Layer(144, 144, 28, 3, 2, batch=16, groups=144),
    Layer(32, 32, 56, 3, batch=4, groups=32),
    Layer(576, 576, 14, 3, batch=4, groups=576),
    Layer(960, 960, 7, 3, batch=4, groups=960),
    Layer(96, 96, 56, 3, 2, batch=8, groups=96),
    Layer(240, 240, 14, 3, 2, batch=8, groups=240),
    Layer(96, 96, 28, 7, batch=8, groups=96),
    Layer(384, 384, 14, 7, batch=4, groups=384),
    Layer(120, 120, 28, 5, batch=8, groups=120),
    Layer(24, 24, 28, 5, batch=4, groups=24),
    Layer(100, 37, batch=1024),
    Layer(4096, 4096, batch=64),
    Layer(128, 128, batch=8192),
    Layer(256, 10000, batch=256),
]

NETWORKS = {
    "ResNet-18 on 32x32, batch 32": _resnet18(),
    "ResNet-20 on 32x32, batch 64": _resnet20(),
    "ResNet-50 on 224x224, batch 4": _resnet50(),
    "VGG-11 on 112x112, batch 8": _vgg11(),
    "transformer 4 x 512, 2048 tokens": _transformer(),
    "odd shapes": _ODD,
}
