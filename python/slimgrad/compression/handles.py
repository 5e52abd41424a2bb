"""A converted layer, as the controller holds it: one with a gate behind it, or one with a sparse
backward pass. Both attach themselves to the layer, and let go of it."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn

from ..nn.gated import GATE, gate_layer, ungate_layer
from ..nn.layers import SPARSE, SparseState
from ..nn.sparse_classes import make_dense, make_sparse
from .gate import GradientGate
from .gradients import PRODUCTS, Prune


class LayerHandle(Protocol):
    """What the controller asks of a converted layer."""

    module: nn.Module

    def names(self) -> list[str]:
        """The layer's own, or those of its projections."""

    def states(self) -> dict[str, SparseState]:
        """Of a sparse backward pass, by names()."""

    def gates(self) -> dict[str, GradientGate]:
        """By the name of their row in the report."""

    def rows(self) -> dict[str, dict]:
        """What the last backward pass saw and did, by the names of gates()."""

    def set_sparsity(self, sparsity: float, product: str | None) -> None: ...

    def is_attached(self) -> bool:
        """Whether the layer still has what it was given."""

    def detach(self) -> None:
        """Gives the layer back as it was."""


def is_compressed(module: nn.Module) -> bool:
    return GATE in module._modules or SPARSE in module._modules


class GatedLayer:
    """A layer whose output goes through a gate."""

    def __init__(self, name: str, module: nn.Module, options: dict[str, Any], stream: int | None):
        self.name = name
        self.module = module
        self.gate = GradientGate(stream=stream, **options)
        gate_layer(module, self.gate)

    def names(self) -> list[str]:
        return [self.name]

    def states(self) -> dict[str, SparseState]:
        return {}

    def gates(self) -> dict[str, GradientGate]:
        return {self.name: self.gate}

    def rows(self) -> dict[str, dict]:
        return {self.name: self.gate.report()}

    def set_sparsity(self, sparsity: float, product: str | None) -> None:
        self.gate.set_sparsity(sparsity)

    def is_attached(self) -> bool:
        return self.module._modules.get(GATE) is self.gate

    def detach(self) -> None:
        ungate_layer(self.module)


class SparseProducts:
    """The products of a sparse backward pass. Those that are not pruned are in no report."""

    def __init__(self, name: str, prune: Prune, options: dict[str, Any], stream: int | None):
        self.name = name
        self.state = SparseState(prune, stream=stream, **options)
        self._pruned = [product for product in PRODUCTS if prune.products[product] > 0]

    def gates(self) -> dict[str, GradientGate]:
        return {f"{self.name}.{product}": getattr(self.state, product) for product in self._pruned}

    def rows(self) -> dict[str, dict]:
        choices = self.state.choices()
        return {
            f"{self.name}.{product}": getattr(self.state, product).report() | choices[product]
            for product in self._pruned
        }

    def set_sparsity(self, sparsity: float, product: str | None) -> None:
        products = PRODUCTS if product is None else (product,)
        for changed in products:
            getattr(self.state, changed).set_sparsity(sparsity)
        others = [p for p in self._pruned if p not in products]
        self._pruned = [p for p in PRODUCTS if p in others or (p in products and sparsity > 0)]


class SparseLayer(SparseProducts):
    """A layer with a sparse backward pass."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        prune: Prune,
        options: dict[str, Any],
        stream: int | None,
    ):
        super().__init__(name, prune, options, stream)
        self.module = module
        make_sparse(module, self.state)

    def names(self) -> list[str]:
        return [self.name]

    def states(self) -> dict[str, SparseState]:
        return {self.name: self.state}

    def is_attached(self) -> bool:
        return self.module._modules.get(SPARSE) is self.state

    def detach(self) -> None:
        make_dense(self.module)
