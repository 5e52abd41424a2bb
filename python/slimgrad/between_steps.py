"""What looks at all gates of a model between two steps: allocation, dynamic loss scale, and whether
a resumed run has its state."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping

import torch

from ._library import ops
from .gate import GradientGate
from .gradients import LossScale, Prune
from .resumption import WeightsLoaded


_keys = itertools.count()
_last_graph: dict[int, weakref.ref] = {}  # in which a group was met, by its key


@torch.compiler.assume_constant_result
def _is_first_in_graph(key: int) -> bool:
    """Asked while torch.compile traces: whether this graph has met no gate of the group so far."""
    context = torch._guards.TracingContext.try_get()
    known = _last_graph.get(key)
    if context is not None and known is not None and known() is context:
        return False
    if context is not None:
        _last_graph[key] = weakref.ref(context)
    return True


class BetweenSteps:
    """Looks at gates between the backward pass of one step and that of the next.

    The gates themselves say when: the first that is entered again begins another forward pass.
    Nobody need call the model's forward for it, as a LightningModule's training_step does not.
    Looking twice at the same statistics changes nothing, so that a layer used twice in a pass is no
    matter. It is an object that holds gates, not a closure: copies and pickles of the model have
    one that holds the gates of theirs.
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
        self.key = next(_keys)
        self._entered: set[int] | None = None  # since the last look
        for place, gate in enumerate(self.gates):
            gate.between_steps, gate.place = self, place

    def enter(self, gate: GradientGate) -> None:
        if torch.compiler.is_compiling():
            # A graph is of one forward pass: once in it is enough, and no set to guard on.
            if _is_first_in_graph(self.key):
                self.look()
            return
        # Inside backward a layer is entered again if its pass is recomputed (checkpointing).
        if torch._C._current_graph_task_id() != -1:
            return
        # The first pass of reentrant checkpointing is without gradients, but training.
        if not (torch.is_grad_enabled() or gate.training):
            return
        if self._entered is None or gate.place in self._entered:
            self._entered = set()
            self.look()
            if self.loaded is not None:
                self.loaded.warn_once()
        self._entered.add(gate.place)

    def look(self) -> None:
        plans = [gate.plan for gate in self.gates]
        stats = [gate.stats for gate in self.gates]
        prune, scale = self.prune, self.scale
        if prune is not None:
            targets = list(self.targets), list(self.targets.values())
            ops.allocate_plans_(plans, stats, prune.allocation, prune.method, prune.cap, *targets)
        if scale is not None:
            ops.update_loss_scale_(plans, stats, scale.growth_interval)

    def forget(self) -> None:
        for gate in self.gates:
            gate.between_steps = None
