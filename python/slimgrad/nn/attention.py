"""nn.MultiheadAttention with gates behind its projections, or with a sparse backward pass."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._support import derive_seed, fresh_seed
from ..compression.class_change import change_class, class_within, core_class
from ..compression.gate import GradientGate
from ..compression.gradients import Prune
from .gated import GATE
from .layers import SPARSE, SparseState, new_state
from .projected_attention import PROJECTIONS, ProjectedAttention, once_each
from .sparse_products import sparse_linear


class Projections(nn.Module):
    """The gates or sparse states of an attention's projections, by name; some may be missing."""

    def __init__(self, parts: Mapping[str, GradientGate | SparseState]):
        super().__init__()
        for which, part in parts.items():
            self.add_module(which, part)

    def of(self, which: str) -> GradientGate | SparseState | None:
        return self._modules.get(which)

    def enter(self) -> None:
        """Called in forward passes without gradients; in others each projection calls its own."""
        for part in self._modules.values():
            part.enter()


def projection_name(name: str, which: str) -> str:
    """The name of a projection of the attention called ``name``."""
    return f"{name}.{which}" if name else which


class GatedAttention(ProjectedAttention):
    """nn.MultiheadAttention with gates behind its projections. Results are torch's, to the bit."""

    _holder = GATE

    def _behind(self, which: str, y: Tensor) -> Tensor:
        gates = self._modules.get(GATE)
        gate = None if gates is None else gates.of(which)
        return y if gate is None else gate(y)

    def _project_in(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        q, k, v = super()._project_in(query, key, value)
        return self._behind("q", q), self._behind("k", k), self._behind("v", v)

    def _project_out(self, x: Tensor) -> Tensor:
        return self._behind("out_proj", super()._project_out(x))


class MultiheadAttention(ProjectedAttention):
    """torch.nn.MultiheadAttention whose projections have a sparse backward pass; see Linear.

    q, k and v are three products even of one input, so that results are torch's but for rounding.
    The two products inside the attention itself are dense and exact.
    ``attention.slimgrad_sparse.q``, ``.k``, ``.v`` and ``.out_proj`` correspond to the
    ``slimgrad_sparse`` of a Linear.
    """

    _holder = SPARSE

    def __init__(
        self,
        *args,
        gradients: Prune | None = None,
        seed: int | None = None,
        stream: int | None = None,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        seed = fresh_seed(seed, "MultiheadAttention")
        states = {
            which: new_state(gradients, derive_seed(seed, which), stream, "MultiheadAttention")
            for which in PROJECTIONS
        }
        self.add_module(SPARSE, Projections(states))

    def _project(self, which: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        states = self._modules.get(SPARSE)
        state = None if states is None else states.of(which)
        if state is None:
            return F.linear(x, weight, bias)
        state.enter()
        return sparse_linear(x, weight, bias, *state.arguments())

    def _project_in(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        # With batch_first: one copy for all, instead of one for each product, forward and backward.
        inputs = once_each(torch.Tensor.contiguous, query, key, value)
        each = zip(PROJECTIONS, inputs, self._in_weights(), self._in_biases(), strict=False)
        return tuple(self._project(*one) for one in each)

    def _project_out(self, x: Tensor) -> Tensor:
        return self._project("out_proj", x, self.out_proj.weight, self.out_proj.bias)


def can_be_projected(module: nn.Module) -> bool:
    """Whether the module is exactly nn.MultiheadAttention: a subclass may do anything in its
    forward."""
    return core_class(module) is nn.MultiheadAttention


def attach_projections(module: nn.Module, projections: Projections, *, sparse: bool) -> None:
    """Converts an attention in place."""
    new = MultiheadAttention if sparse else GatedAttention
    change_class(module, nn.MultiheadAttention, new)
    module.add_module(SPARSE if sparse else GATE, projections.train(module.training))


def detach_projections(module: nn.Module) -> None:
    """Undoes attach_projections."""
    ours = class_within(module, lambda cls: cls in (MultiheadAttention, GatedAttention))
    change_class(module, ours, nn.MultiheadAttention)
    delattr(module, SPARSE if SPARSE in module._modules else GATE)
