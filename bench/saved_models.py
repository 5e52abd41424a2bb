"""The networks of the suites `saved` and `compile`, and the ways to train them in less memory.

A network is a module from inputs to its loss, so that what the loss keeps is counted, too. Its
blocks are what a user would checkpoint.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

BUDGETS = (0.2,)  # of what a compiled graph would keep by default

WAYS = [
    "torch",
    "torch.utils.checkpoint",
    *[f"torch.compile, budget {budget}" for budget in BUDGETS],
    "activations=3",
    *[
        f"saved={bits}{more}"
        for bits in ("8", "4", "2", "exact")
        for more in ("", ", activations=3")
    ],
]


# The same in compiled graphs, for the suite `compile`.
COMPILED = "torch.compile"
COMPILED_WAYS = [
    COMPILED,
    *[f"{COMPILED}, budget {budget}" for budget in (0.5, 0.2)],
    f"{COMPILED}, torch.utils.checkpoint",
    *[f"{COMPILED}, saved={bits}" for bits in (8, 4, 2)],
    f"{COMPILED}, saved=4, activations=3",
]


# Gates and sparse layers, against the same without them, eager and compiled.
GRADIENTS = ("gates", "sparse")
GRADIENT_WAYS = [
    ", ".join(way)
    for first in ("torch", COMPILED)
    for way in ((first,), *((first, each) for each in GRADIENTS))
]


class Checkpointed(nn.Module):
    """A block whose inside is computed again in backward."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block = block

    def forward(self, *args, **kwargs):
        return checkpoint(self.block, *args, use_reentrant=False, **kwargs)


class FeedForward(nn.Module):
    """x + Linear(GELU(Linear(LayerNorm(x)))), four times as wide inside."""

    def __init__(self, width: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        return x + self.body(x)


class FeedForwardNet(nn.Module):
    def __init__(self, width: int, depth: int):
        super().__init__()
        self.blocks = nn.Sequential(*[FeedForward(width) for _ in range(depth)])

    def forward(self, x):
        return self.blocks(x).square().mean()


class Attention(nn.Module):
    """x + causal attention over LayerNorm(x)."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class GPT(nn.Module):
    """Pre-norm, learned places, its loss that of the next token."""

    def __init__(self, vocabulary: int, length: int, width: int, depth: int, heads: int):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(
            *[nn.Sequential(Attention(width, heads), FeedForward(width)) for _ in range(depth)]
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def logits(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))

    def forward(self, tokens, targets):
        return nn.functional.cross_entropy(self.logits(tokens).flatten(0, 1), targets.flatten())


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut. ReLUs are modules, so that they can be converted."""

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
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.last = nn.ReLU()

    def forward(self, x):
        return self.last(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Of `depths` blocks in stages of doubling width. The large stem is ImageNet's: a 7x7
    convolution with stride 2 and a pooling; the small one, for images of 32x32, a 3x3 one."""

    def __init__(self, width: int, depths: list[int], classes: int, large_stem: bool):
        super().__init__()
        kernel, stride = (7, 2) if large_stem else (3, 1)
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1) if large_stem else nn.Identity(),
        )
        blocks, inputs = [], width
        for stage, depth in enumerate(depths):
            outputs = width << stage
            for i in range(depth):
                blocks.append(ResidualBlock(inputs, outputs, 2 if stage > 0 and i == 0 else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def logits(self, images):
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))

    def forward(self, images, labels):
        return nn.functional.cross_entropy(self.logits(images), labels)


class Encoder(nn.Module):
    """BertModel of transformers, by default with the dropout of 0.1 that it has."""

    def __init__(self, **config):
        import transformers

        super().__init__()
        self.bert = transformers.BertModel(
            transformers.BertConfig(**config), add_pooling_layer=False
        )

    @property
    def blocks(self):
        return self.bert.encoder.layer

    def forward(self, tokens):
        return self.bert(input_ids=tokens).last_hidden_state.square().mean()


@dataclass(frozen=True)
class Network:
    """title: what it is, for tables. batch: of a step that is measured. make: the module.
    inputs: of so many examples."""

    title: str
    batch: int
    make: Callable[[], nn.Module]
    inputs: Callable[[int], tuple]


def _feed_forward(width: int, depth: int, batch: int) -> Network:
    title = f"{depth} feed-forward blocks {width} wide, {batch} x 64 rows"
    return Network(
        title, batch, lambda: FeedForwardNet(width, depth), lambda n: (torch.randn(64 * n, width),)
    )


def _gpt(length: int, width: int, depth: int, batch: int) -> Network:
    title = f"GPT of {depth} layers {width} wide, {batch} x {length} tokens"
    return Network(
        title,
        batch,
        lambda: GPT(256, length, width, depth, width // 64),
        lambda n: (torch.randint(256, (n, length)), torch.randint(256, (n, length))),
    )


def _resnet(size: int, depths: list[int], width: int, batch: int) -> Network:
    title = f"ResNet-{2 + 2 * sum(depths)} {width} wide, {batch} images of {size}x{size}"
    return Network(
        title,
        batch,
        lambda: ResNet(width, depths, 1000, large_stem=True),
        lambda n: (torch.randn(n, 3, size, size), torch.randint(1000, (n,))),
    )


def _bert(length: int, width: int, depth: int, batch: int, dropout: float = 0.1) -> Network:
    without = "" if dropout else ", no dropout"
    title = f"BertModel of {depth} layers {width} wide{without}, {batch} x {length} tokens"
    config = {
        "vocab_size": 8192,
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": width // 64,
        "intermediate_size": 4 * width,
        "max_position_embeddings": length,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    return Network(
        title, batch, lambda: Encoder(**config), lambda n: (torch.randint(8192, (n, length)),)
    )


NO_DROPOUT = "bert-no-dropout"  # for the suite `compile` alone


def networks(quick: bool) -> dict[str, Network]:
    """By name. Quick ones are only there to see that all runs."""
    if quick:
        found = {
            "feed-forward": _feed_forward(64, 2, 4),
            "gpt": _gpt(64, 64, 2, 4),
            "resnet": _resnet(32, [1, 1], 16, 4),
            "bert": _bert(64, 64, 2, 4),
            NO_DROPOUT: _bert(64, 64, 2, 4, dropout=0.0),
        }
    else:
        found = {
            "feed-forward": _feed_forward(256, 4, 128),
            "gpt": _gpt(512, 384, 6, 4),
            "resnet": _resnet(224, [2, 2, 2, 2], 64, 8),
            "bert": _bert(256, 384, 6, 8),
            NO_DROPOUT: _bert(256, 384, 6, 8, dropout=0.0),
        }
    return _importable(found)


def small_networks() -> dict[str, Network]:
    """Such that some hundred steps of many runs take minutes."""
    return _importable(
        {
            "gpt": _gpt(128, 128, 2, 8),
            "resnet": _resnet(64, [1, 1], 32, 16),
            "bert": _bert(128, 128, 2, 8),
            NO_DROPOUT: _bert(128, 128, 2, 8, dropout=0.0),
        }
    )


def _importable(found: dict[str, Network]) -> dict[str, Network]:
    if importlib.util.find_spec("transformers") is None:
        return {name: network for name, network in found.items() if "bert" not in name}
    return found


def checkpoint_blocks(model: nn.Module) -> None:
    for i, block in enumerate(model.blocks):
        model.blocks[i] = Checkpointed(block)


def _compiled(model: nn.Module, budget: float) -> Callable:
    import torch._functorch.config as config

    compiled = torch.compile(model, fullgraph=True, dynamic=False)

    def run(*inputs):
        with config.patch(activation_memory_budget=budget):
            return compiled(*inputs)

    return run if budget < 1 else compiled


class Training:
    """A network that is trained in one of the WAYS; the same weights in each."""

    def __init__(self, network: Network, way: str):
        import slimgrad as sg

        torch.manual_seed(0)
        self.network = network
        self.way = way
        self.model = network.make()
        self.call: Callable = self.model
        first = COMPILED if way.startswith(COMPILED) else "torch"
        self.inner = way
        if way == first or way.startswith(f"{first}, "):  # what is compiled
            self.inner = way.removeprefix(first).removeprefix(", ")
        budget = 1.0
        if self.inner.startswith("budget"):
            budget = float(self.inner.split()[-1])
        elif self.inner == "torch.utils.checkpoint":
            checkpoint_blocks(self.model)
        elif self.inner not in ("", "torch"):
            sg.compress(self.model, seed=0, **self.options())
        if way.startswith(COMPILED):
            self.call = _compiled(self.model, budget)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.inputs = network.inputs(network.batch)

    def options(self) -> dict:
        """What compress() is given: the way's own words."""
        import slimgrad as sg

        if self.inner in GRADIENTS:
            how = {"gates": sg.Prune(0.8), "sparse": sg.Prune(weight=0.9, input=0.5)}
            return {"gradients": how[self.inner]}
        pairs = (part.split("=") for part in self.inner.split(", "))
        return {name: int(value) if value.isdigit() else value for name, value in pairs}

    def of_batch(self, batch: int) -> None:
        self.inputs = self.network.inputs(batch)

    def loss(self) -> torch.Tensor:
        return self.call(*self.inputs)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def bytes_saved(self) -> int:
        """That autograd keeps after a forward pass, each storage once, without what lives anyway:
        parameters and buffers."""
        import slimgrad as sg
        from bench.fewbit_memory import bytes_saved

        if self.call is self.model:
            return sg.saved_bytes(self.model, self.inputs).total
        self.loss()  # Compiles.
        state = [*self.model.parameters(), *self.model.buffers()]
        return bytes_saved(self.loss, state)
