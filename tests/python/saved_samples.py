"""Models and runs for the tests of what backward keeps."""

import torch
import torch.nn.functional as F
from torch import nn

import slimgrad as sg


class Left:
    """Why a tensor was saved as it is, as tallies say it: src/runtime/saved/saving_rules.h."""

    LEAF = "parameters and other leaves of the graph"
    OF_LEAF = "views and casts of leaves"
    NO_GRADIENT = "inputs, buffers and statistics: no gradient goes through them"
    COMPILED = "saved by a graph of torch.compile, which does not say what it needs exactly"
    TRACED = "under a TorchDispatchMode, which may be a trace with tensors without values"
    TYPE = "masks, indices and other types than float32, bfloat16, float16"
    SUBCLASS = "tensor subclasses, sparse tensors, devices without kernels"
    SMALL = "small"
    EXPANDED = "expanded: elements share their memory"
    CHECKPOINT = "inputs of checkpointed parts: recomputing needs every bit"
    NOT_FINITE = "holds NaN or Inf, or numbers too far apart"
    EXCLUDED = "excluded"
    LOGARITHM = "log-softmax of 16 bits: backward takes its exponential"
    DENSE = "no zeros to leave out"
    SOFTMAX = "read by softmax or log-softmax in a compiled backward pass"
    COMPARED = "compared for equality in a compiled backward pass, as by amax"
    EXACT_GRAPH = "in a compiled graph, where exact packing has no size of its own"


class Block(nn.Module):
    def __init__(self, width=64, heads=2):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.act, self.down = (
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in parts
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Learns to continue a text of 32 symbols; returns the loss."""

    def __init__(self, depth=2, width=64):
        super().__init__()
        self.embedding = nn.Embedding(32, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 32)

    def forward(self, tokens):
        x = self.embedding(tokens[:, :-1])
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens[:, 1:].flatten())


def texts(seed, count=8, length=33):
    """Every symbol is seven times the one before plus three, modulo 32, but for some noise."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(32, (count, length), generator=generator)
    for i in range(1, length):
        noise = torch.rand(count, generator=generator) < 0.05
        tokens[:, i] = torch.where(noise, tokens[:, i], (7 * tokens[:, i - 1] + 3) % 32)
    return tokens


def cnn():
    """Convolutions with batch norms, channels last."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 8 * 8, 10),
    ).to(memory_format=torch.channels_last)


def images(seed, count=16):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 10
    base = torch.randn(10, 3, 16, 16, generator=torch.Generator().manual_seed(99))
    x = base[y] + 0.3 * torch.randn(count, 3, 16, 16, generator=generator)
    return x.to(memory_format=torch.channels_last), y


def gpt_step(model, number):
    return model(texts(number))


def cnn_step(model, number):
    x, y = images(number)
    return F.cross_entropy(model(x), y)


def gradients(model, step, number=0):
    model.zero_grad()
    step(model, number).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def run(make, step, steps, first=0, model=None, optimizer=None, controller=None, **how):
    """Trains; returns the losses, the model, the optimizer and the controller."""
    if model is None:
        torch.manual_seed(0)
        model = make()
        controller = sg.compress(model, seed=7, **how) if how else None
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for number in range(first, first + steps):
        optimizer.zero_grad()
        loss = step(model, number)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model, optimizer, controller


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def error(a, b):
    """Relative, of all together."""
    difference = sum((x - y).double().square().sum() for x, y in zip(a, b, strict=True))
    return (difference / sum(y.double().square().sum() for y in b)).sqrt().item()
