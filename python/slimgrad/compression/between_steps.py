"""What looks at all gates of a model between two steps: allocation, dynamic loss scale."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

import torch

from .._library import ops
from .gate import GradientGate
from .gradients import LossScale, Prune

# The groups that a graph which is being traced looks at already.
_led: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


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
    ):
        self.gates = list(gates.values())
        self.prune = prune  # if it allocates
        self.scale = scale  # if it is dynamic
        self.targets = {} if prune is None else prune._targets_of(gates)
        for gate in self.gates:
            gate.between_steps, gate.leads = self, False

    def enter(self, gate: GradientGate) -> None:
        if torch.compiler.is_compiling():
            if torch.is_grad_enabled() or gate.training:
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
        if ops.gate_has_news(gate.plan):
            self.look()

    def elects(self, gate: GradientGate) -> bool:
        """Whether a graph that is being traced, and has come to ``gate``, looks at all gates there.

        A graph cannot ask for news, so that one of those that make up a pass must always look, and
        only one, and that once: a plan that another one has kept for backward must not change
        behind it. So a gate leads if none does, or if those that do have not run since the last
        backward pass. The first graph that is traced is nearly always the first that runs; where
        it is not, torch refuses the backward pass.
        """
        groups = _led.setdefault(torch._guards.TracingContext.get(), set())
        leads = gate.leads or (
            id(self) not in groups
            and (
                not any(other.leads for other in self.gates)
                or any(ops.gate_has_news(other.plan) for other in self.gates)
            )
        )
        if leads:
            groups.add(id(self))
        return leads

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
