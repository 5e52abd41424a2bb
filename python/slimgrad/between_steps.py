"""What looks at all gates of a model between two steps: allocation, dynamic loss scale, and whether
a resumed run has its state."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ._library import ops
from .gate import GradientGate
from .gradients import LossScale, Prune
from .resumption import WeightsLoaded


class BetweenSteps:
    """Looks at gates between the backward pass of one step and that of the next.

    The gates themselves say when: one that is entered and has had a backward pass since the last
    look. So nobody need call the model's forward for it, as a LightningModule's training_step does
    not, and what happens follows from the state, also where layers take turns. It is an object
    that holds gates, not a closure: copies and pickles of the model have one that holds the gates
    of theirs.
    """

    def __init__(
        self,
        gates: Mapping[str, GradientGate],
        prune: Prune | None,
        scale: LossScale | None,
        loaded: WeightsLoaded | None,
    ):
        self.gates = list(gates.values())
        self.prune = prune  # if it allocates
        self.scale = scale  # if it is dynamic
        self.loaded = loaded
        self.targets = {} if prune is None else prune.targets_of(gates)
        self.is_needed = prune is not None or scale is not None
        for gate in self.gates:
            gate.between_steps, gate.leads = self, False

    def enter(self, gate: GradientGate) -> None:
        if torch.compiler.is_compiling():
            if self.loaded is not None and self.loaded.without_state:
                self.loaded.warn_while_tracing()
            if self.is_needed and (torch.is_grad_enabled() or gate.training):
                gate.stand_for_leader()
                if gate.leads:
                    self.look()
            return
        # Inside backward a layer is entered again if its pass is recomputed (checkpointing).
        if torch._C._current_graph_task_id() != -1:
            return
        # The first pass of reentrant checkpointing is without gradients, but training.
        if not (torch.is_grad_enabled() or gate.training):
            return
        if self.loaded is not None:
            self.loaded.warn_once()
        if self.is_needed and ops.gate_has_news(gate.plan):
            self.look()

    def needs_leader(self) -> bool:
        """Whether no graph looks, or none that has run since the last backward pass.

        A graph cannot ask, so that one of those that make up a pass must always look, and only one:
        a plan that another one has kept for backward must not change behind it. The first that is
        traced is nearly always the first that runs; where it is not, torch refuses the backward
        pass.
        """
        return not any(gate.leads for gate in self.gates) or any(
            ops.gate_has_news(gate.plan) for gate in self.gates
        )

    def look(self) -> None:
        # .data: a graph may have kept a plan for backward, and a layer outside of it look again.
        plans = [gate.plan.data for gate in self.gates]
        stats = [gate.stats for gate in self.gates]
        prune, scale = self.prune, self.scale
        if scale is not None:  # It asks for news, which the other would have seen.
            ops.update_loss_scale_(plans, stats, scale.growth_interval)
        if prune is not None:
            targets = list(self.targets), list(self.targets.values())
            ops.allocate_plans_(plans, stats, prune.allocation, prune.method, prune.cap, *targets)

    def forget(self) -> None:
        for gate in self.gates:
            gate.between_steps = None
