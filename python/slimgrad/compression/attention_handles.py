"""A converted attention, as the controller holds it: one module with a gate, or a sparse backward
pass, for each of its projections."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from .._support import derive_seed
from ..nn.attention import (
    Projections,
    attach_projections,
    detach_projections,
    projection_name,
)
from ..nn.gated import GATE
from ..nn.layers import SPARSE, SparseState
from .gate import GradientGate
from .gradients import Prune
from .handles import SparseProducts


def _own(options: dict[str, Any], which: str) -> dict[str, Any]:
    """The options of one projection, from those of the attention."""
    return options | {"seed": derive_seed(options["seed"], which)}


class GatedAttentionLayer:
    """An attention with gates behind those projections that ``which`` names."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        which: Iterable[str],
        options: dict[str, Any],
        stream: int | None,
    ):
        self.name = name
        self.module = module
        gates = {w: GradientGate(stream=stream, **_own(options, w)) for w in which}
        self._gates = {projection_name(name, w): gate for w, gate in gates.items()}
        self._projections = Projections(gates)
        attach_projections(module, self._projections, sparse=False)

    def names(self) -> list[str]:
        return list(self._gates)

    def states(self) -> dict[str, SparseState]:
        return {}

    def gates(self) -> dict[str, GradientGate]:
        return dict(self._gates)

    def rows(self) -> dict[str, dict]:
        return {name: gate.report() for name, gate in self._gates.items()}

    def set_sparsity(self, sparsity: float, product: str | None) -> None:
        for gate in self._gates.values():
            gate.set_sparsity(sparsity)

    def is_attached(self) -> bool:
        return self.module._modules.get(GATE) is self._projections

    def detach(self) -> None:
        detach_projections(self.module)


class SparseAttentionLayer:
    """An attention with a sparse backward pass of those projections that ``which`` names."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        which: Iterable[str],
        prune: Prune,
        options: dict[str, Any],
        stream: int | None,
    ):
        self.name = name
        self.module = module
        products = {
            w: SparseProducts(projection_name(name, w), prune, _own(options, w), stream)
            for w in which
        }
        self._products = list(products.values())
        self._projections = Projections({w: one.state for w, one in products.items()})
        attach_projections(module, self._projections, sparse=True)

    def names(self) -> list[str]:
        return [one.name for one in self._products]

    def states(self) -> dict[str, SparseState]:
        return {one.name: one.state for one in self._products}

    def gates(self) -> dict[str, GradientGate]:
        return {name: gate for one in self._products for name, gate in one.gates().items()}

    def rows(self) -> dict[str, dict]:
        return {name: row for one in self._products for name, row in one.rows().items()}

    def set_sparsity(self, sparsity: float, product: str | None) -> None:
        for one in self._products:
            one.set_sparsity(sparsity, product)

    def is_attached(self) -> bool:
        return self.module._modules.get(SPARSE) is self._projections

    def detach(self) -> None:
        detach_projections(self.module)
