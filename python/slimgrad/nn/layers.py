"""nn.Linear and nn.Conv2d whose backward pass multiplies only what a sparse gradient holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .._library import ops
from .._support import (
    check_stream,
    current_stream,
    derive_seed,
    fresh_seed,
    records_plain_model,
    refuse_transforms,
)
from ..compression.gate import GradientGate, StateHolder
from ..compression.gradients import PRODUCTS, Prune
from .sparse_products import sparse_conv2d, sparse_linear

SPARSE = "slimgrad_sparse"  # the submodule that holds a layer's state

WAYS = ("auto", "dense", "sparse")


class SparseState(StateHolder):
    """The plans and statistics of both products, and how each is done.

    choice: the way that was set and the break-even sparsity of each product. Only the library
    reads its layout. It is part of the state: a resumed run chooses as the interrupted one did.
    """

    weight: GradientGate
    input: GradientGate
    choice: torch.Tensor

    def __init__(self, prune: Prune | None = None, *, stream: int | None = None, **options: Any):
        """``prune`` has a sparsity for each product; without it they take the gradient as it comes.
        ``stream`` and ``options`` are those of both gates."""
        super().__init__()
        for product in PRODUCTS:
            own = options | ({} if prune is None else prune._options(product))
            if prune is not None and prune.products[product] == 0:
                own = {name: own[name] for name in own if not name.startswith("schedule")}
            if "seed" in own:
                own["seed"] = derive_seed(own["seed"], product)
            self.add_module(product, GradientGate(**own))
        self.input.is_input = True
        always = prune is not None and prune.sparse_backward == "always"
        self.choice = ops.new_sparse_choice(always)
        self.stream = stream

    def tensors(self) -> list[torch.Tensor]:
        """Those of SparseLayerState in <slimgrad/sparse_layers.h>."""
        weight, input = self.weight, self.input
        return [weight.plan, weight.stats, input.plan, input.stats, self.choice]

    def arguments(self) -> tuple[list[torch.Tensor], int]:
        """What the ops of sparse layers take."""
        return self.tensors(), current_stream(self.stream)

    def enter(self) -> None:
        """Called in every forward pass of the layer."""
        self.weight.enter()
        self.input.enter()

    def add_to(self, group: Any, name: str) -> None:
        group.add_layer(name, self.tensors())

    def gates(self, name: str) -> Iterator[tuple[str, GradientGate]]:
        for product in PRODUCTS:
            yield ".".join(filter(None, (name, product))), getattr(self, product)

    def choices(self) -> dict[str, dict]:
        """By product: what the last backward pass did (``way``), the sparsity from which on the
        product is sparse (``break_even``: 1 if none pays, None before it is known), how it was
        chosen (``chosen_by``: "model", "tune" or "user", None before), and what is set
        (``setting``); with the best seconds of both ways if they were timed."""
        return self.alone().ways()

    def set_way(self, way: str, product: str | None = None) -> None:
        """How a product, by default both, is done: "sparse", "dense", or "auto", by the break-even
        sparsity."""
        self.alone().set_ways(way, product or "")


def new_state(
    gradients: Prune | None, seed: int | None, stream: int | None, op: str
) -> SparseState:
    if gradients is not None and not (isinstance(gradients, Prune) and gradients.is_sparse):
        raise ValueError(
            f"[{op}] expected gradients to be a slimgrad.Prune with sparse_backward=True, or None, "
            f"got {gradients!r}"
        )
    if gradients is not None and gradients.allocation != "uniform":
        raise ValueError(
            f"[{op}] expected allocation='uniform' for a single layer, got "
            f"{gradients.allocation!r}: compress() spreads a sparsity over layers"
        )
    stream = check_stream(stream, op)
    return SparseState(gradients, stream=stream, seed=fresh_seed(seed, op))


def is_plain_pass(state: SparseState | None) -> bool:
    """Whether this forward pass is that of the plain layer. There is no state if a bound method
    that was kept, as by accelerate's hooks, is called after the layer was converted back."""
    if state is None or records_plain_model():
        return True
    state.enter()
    if not torch.is_grad_enabled():
        return True
    refuse_transforms()
    return False


class _Sparse(nn.Module):
    """What Linear and Conv2d share."""

    def __init__(
        self,
        *args,
        gradients: Prune | None = None,
        seed: int | None = None,
        stream: int | None = None,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.add_module(SPARSE, new_state(gradients, seed, stream, type(self).__name__))


class Linear(_Sparse, nn.Linear):
    """torch.nn.Linear with a sparse backward pass.

    gradients: a Prune with a sparsity for each product. Without one the gradient is taken as it
        comes, and its zeros (of a gate, or of a ReLU behind the layer) are not multiplied.
    seed: of the random draws; by default from torch's generator.
    stream: which random numbers this process draws with it; by default those of its rank.

    A product is sparse where the gradient is at least as sparse as the product's break-even
    sparsity, which a model of the costs gives for the shapes of the first backward pass; a product
    that is dense is exact. The model's constants come with the library: on another machine it may
    take the slower way. ``layer.slimgrad_sparse.choices()`` returns what it chose and ``set_way()``
    overrides it; the controller of compress() can also time both ways. The layer's own
    state_dict() is that of torch's layer; slimgrad.state_dict() is the rest.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        state = self._modules.get(SPARSE)
        if is_plain_pass(state):
            return nn.Linear.forward(self, input)
        return sparse_linear(input, self.weight, self.bias, *state.arguments())


class Conv2d(_Sparse, nn.Conv2d):
    """torch.nn.Conv2d with a sparse backward pass; see Linear. Fastest in channels-last."""

    def _conv_forward(self, x, weight, bias):
        state = self._modules.get(SPARSE)
        if is_plain_pass(state) or x.dim() != 4:
            return super()._conv_forward(x, weight, bias)
        padding = self.padding
        # torch's list of both sides, last dimension first; strings are in it too.
        around = self._reversed_padding_repeated_twice
        if self.padding_mode != "zeros":
            x = F.pad(x, around, mode=self.padding_mode)
            padding = (0, 0)
        elif isinstance(padding, str):
            x = F.pad(x, around)
            padding = (0, 0)
        shape = self.stride, padding, self.dilation, self.groups
        return sparse_conv2d(x, weight, bias, *shape, *state.arguments())
