"""The gates of a model: what looks at all of them between two steps, their reports and state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from .._library import ops
from .gate import GradientGate, new_group
from .gradients import LossScale, Prune

if TYPE_CHECKING:
    from ..nn.layers import SparseState


class Gates:
    """Gates and sparse layers by name, with what they are told together.

    ``group`` is a slimgrad::GateGroup of theirs, which does the work. Copies and pickles of a model
    have Gates with the gates of theirs, and make a group of their own.

    An attached one looks at gates between the backward pass of one step and that of the next. The
    gates themselves say when: one that is entered and has had a backward pass since the last look.
    So nobody need call the model's forward for it, as a LightningModule's training_step does not,
    and what happens follows from the state, also where layers take turns.
    """

    def __init__(
        self,
        parts: Mapping[str, GradientGate | SparseState],
        prune: Prune | None = None,
        scale: LossScale | None = None,
        others: Mapping[str, float] | None = None,
    ):
        self.parts = dict(parts)
        self.prune = prune  # if it allocates
        self.scale = scale  # if it is dynamic
        self.others = dict(others or {})  # settings of others that a state names
        self._group: Any = None
        self._attached: list[GradientGate] = []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_group": None}

    @property
    def group(self) -> Any:
        if self._group is None:
            self._group = new_group(self.prune, self.scale, self.others)
            for name, part in self.parts.items():
                part.add_to(self._group, name)
        return self._group

    def by_name(self) -> dict[str, GradientGate]:
        """The gates; of sparse layers those of the products that are to be pruned."""
        every = {k: gate for name, part in self.parts.items() for k, gate in part.gates(name)}
        return {name: every[name] for name in self.group.names()}

    def attach(self) -> None:
        if self.prune is None and self.scale is None:
            return
        for name, gate in self.by_name().items():
            self._attached.append(gate)
            gate.between_steps, gate.name, gate.handle = self, name, None

    def give_handles(self) -> None:
        """To all gates at once: a graph that layers share is guarded on theirs."""
        for gate in self._attached:
            if gate.handle is None:
                gate.handle = self.group.handle(gate.name)

    def detach(self) -> None:
        for gate in self._attached:
            gate.between_steps = gate.handle = None

    def enter(self, gate: GradientGate) -> None:
        if torch.compiler.is_compiling():
            if torch.is_grad_enabled() or gate.training:
                gate.prepare_trace()
                ops.enter_gate_(gate.handle)
            return
        # Inside backward a layer is entered again if its pass is recomputed (checkpointing).
        if torch._C._current_graph_task_id() != -1:
            return
        # The first pass of reentrant checkpointing is without gradients, but training.
        if torch.is_grad_enabled() or gate.training:
            self.group.enter(gate.name)
