"""A converted layer, as the controller holds it: one with a gate behind it, or one with a sparse
backward pass; of an attention one for each of its projections."""

from __future__ import annotations

from typing import Any

from torch import nn

from .._support import derive_seed
from ..nn.attention import Projections, attach_projections, detach_projections, projection_name
from ..nn.gated import GATE, gate_layer, ungate_layer
from ..nn.layers import SPARSE, SparseState
from ..nn.sparse_classes import make_dense, make_sparse
from .gate import GradientGate
from .gradients import Prune


def is_compressed(module: nn.Module) -> bool:
    return GATE in module._modules or SPARSE in module._modules


class LayerHandle:
    """Converts a layer, and gives it back as it was.

    prune: with a sparse backward pass. options: of a gate. which: of an attention, the projections.
    parts: what the layer was given, by its name, or by those of its projections.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        which: list[str],
        prune: Prune | None,
        options: dict[str, Any],
        stream: int | None,
    ):
        self.name = name
        self.module = module
        self._held = GATE if prune is None else SPARSE
        self.parts: dict[str, GradientGate | SparseState]

        def part(own: dict[str, Any]) -> GradientGate | SparseState:
            if prune is None:
                return GradientGate(stream=stream, **own)
            return SparseState(prune, stream=stream, **own)

        if isinstance(module, nn.MultiheadAttention):
            seeds = {w: derive_seed(options["seed"], w) for w in which}
            each = {w: part(options | {"seed": seed}) for w, seed in seeds.items()}
            self.parts = {projection_name(name, w): one for w, one in each.items()}
            attach_projections(module, Projections(each), sparse=prune is not None)
        else:
            self.parts = {name: part(options)}
            (gate_layer if prune is None else make_sparse)(module, self.parts[name])  # type: ignore
        self._given = module._modules[self._held]

    def gates(self) -> dict[str, GradientGate]:
        """All of them, by the name of their row in reports."""
        return {k: gate for name, part in self.parts.items() for k, gate in part.gates(name)}

    def states(self) -> dict[str, SparseState]:
        """Of a sparse backward pass."""
        return {k: part for k, part in self.parts.items() if isinstance(part, SparseState)}

    def is_attached(self) -> bool:
        """Whether the layer still has what it was given."""
        return self.module._modules.get(self._held) is self._given

    def detach(self) -> None:
        if isinstance(self.module, nn.MultiheadAttention):
            detach_projections(self.module)
        else:
            (ungate_layer if self._held == GATE else make_dense)(self.module)
