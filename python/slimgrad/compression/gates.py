"""The gates of a model: what looks at all of them between two steps, their reports and state."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from .._library import ops
from .gate import GradientGate, new_group
from .gradients import LossScale, Prune

if TYPE_CHECKING:
    from ..nn.layers import SparseState

# The budgets that a graph which is being traced looks at already.
_led: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


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
        # By whether gates are those of inputs: the gates that share a budget, and their targets.
        self.budgets: dict[bool, list[GradientGate]] = {}
        self.targets: dict[bool, dict[int, float]] = {}

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
        self.budgets = {False: [], True: []}
        for name, gate in self.by_name().items():
            self.budgets[gate.is_input].append(gate)
            gate.between_steps, gate.name, gate.leads = self, name, False
        self.targets = {which: self.group.targets(which) for which in self.budgets}

    def detach(self) -> None:
        for budget in self.budgets.values():
            for gate in budget:
                gate.between_steps = None

    def enter(self, gate: GradientGate) -> None:
        if torch.compiler.is_compiling():
            if torch.is_grad_enabled() or gate.training:
                gate.stand_for_leader()
                if gate.leads:
                    self._look(gate.is_input)
            return
        # Inside backward a layer is entered again if its pass is recomputed (checkpointing).
        if torch._C._current_graph_task_id() != -1:
            return
        # The first pass of reentrant checkpointing is without gradients, but training.
        if torch.is_grad_enabled() or gate.training:
            self.group.enter(gate.name)

    def elects(self, gate: GradientGate) -> bool:
        """Whether a graph that is being traced, and has come to ``gate``, looks at its budget.

        A graph cannot ask for news, so that one of those that make up a pass must always look, and
        only one, and that once: a plan that another one has kept for backward must not change
        behind it. So a gate leads if none does, or if those that do have not run since the last
        backward pass. The first graph that is traced is nearly always the first that runs; where
        it is not, torch refuses the backward pass.
        """
        led = _led.setdefault(torch._guards.TracingContext.get(), set())
        budget = (id(self), gate.is_input)
        leads = gate.leads or (
            budget not in led
            and (
                not any(other.leads for other in self.budgets[gate.is_input])
                or self.group.has_news(gate.is_input)
            )
        )
        if leads:
            led.add(budget)
        return leads

    def _look(self, at_inputs: bool) -> None:
        """What GateGroup::enter() does, for a graph, in which no method of it can be called."""
        # .data: a graph may have kept a plan for backward, and a layer outside of it look again.
        plans = [gate.plan.data for gate in self.budgets[at_inputs]]
        stats = [gate.stats for gate in self.budgets[at_inputs]]
        prune, scale = self.prune, self.scale
        if scale is not None:  # It asks for news, which the other would have seen.
            ops.update_loss_scale_(plans, stats, scale.growth_interval)
        if prune is not None:
            targets = self.targets[at_inputs]
            where = list(targets), list(targets.values())
            ops.allocate_plans_(plans, stats, prune.allocation, prune.method, prune.cap, *where)
