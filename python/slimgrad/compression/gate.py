"""The gate as a module: the identity whose backward compresses the gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .._library import classes, ops
from .._support import current_stream, records_plain_model, refuse_transforms
from ..tensors.stats import TensorStats
from .gradients import LossScale, Prune

if TYPE_CHECKING:
    from .gates import Gates


def new_group(
    prune: Prune | None = None,
    scale: LossScale | None = None,
    others: Mapping[str, float] | None = None,
) -> Any:
    """A slimgrad::GateGroup without gates (<slimgrad/gate_group.h>).

    prune: of an allocation. scale: a dynamic one. others: settings of others that a state names.
    """
    allocation: tuple[Any, ...] = ("uniform", "empirical", Prune.cap, {})
    if prune is not None:
        targets = {name: float(cosine) for name, cosine in (prune.targets or {}).items()}
        allocation = (prune.allocation, prune.method, float(prune.cap), targets)
    growth_interval = 0 if scale is None else scale.growth_interval
    return classes.GateGroup(*allocation, growth_interval, dict(others or {}))


class StateHolder(nn.Module):
    """A module whose tensors are state of the compression, not of the model.

    They are plain attributes: a model's state_dict(), buffers(), averaged copies and what
    DistributedDataParallel sends around know nothing of them, .half() does not round them, and
    .to() does not move them: they are float64 on the CPU, or move beside the gradients by
    themselves where a device plans by itself. Copies and pickles carry them; slimgrad.state_dict()
    names them, on the CPU.
    """

    def add_to(self, group: Any, name: str) -> None:
        """Adds what it holds to a GateGroup."""
        raise NotImplementedError

    def gates(self, name: str) -> Iterator[tuple[str, GradientGate]]:
        """What it adds under that name."""
        raise NotImplementedError

    def alone(self) -> Any:
        """A group with nothing else, under the name ""."""
        group = new_group()
        self.add_to(group, "")
        return group

    def _replicate_for_data_parallel(self):
        raise RuntimeError(
            "[compress] expected one process for each device (DistributedDataParallel), got "
            "nn.DataParallel: its replicas would write one state at the same time"
        )


class _GateInGraph(torch.autograd.Function):
    """ops.gradient_gate for graphs of torch.compile, in which backward may write a plan that
    another forward pass has kept: two passes before one backward, as siamese networks have them.
    What is saved as an attribute has no version to compare."""

    @staticmethod
    def forward(ctx, x, plan, stats, stream):
        ctx.plan, ctx.stats, ctx.stream = plan, stats, stream
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return ops.compress_gradient(grad, ctx.plan, ctx.stats, ctx.stream), None, None, None


class GradientGate(StateHolder):
    """The identity whose backward compresses the gradient. Its tensors hold all its state; the
    library alone knows their layout.

    stream: which random numbers it draws; by default those of this process's rank.
    options: those of GateOptions in <slimgrad/gate.h>, by name; others have their defaults.
    """

    plan: torch.Tensor
    stats: torch.Tensor

    def __init__(self, *, stream: int | None = None, **options: Any):
        super().__init__()
        self.plan = ops.new_gate_plan(**options)
        self.stats = ops.new_gate_stats()
        self.stream = stream
        self.is_input = False  # whether it is that of an input's product
        self.name = ""  # in:
        self.between_steps: Gates | None = None
        self.handle: torch.Tensor | None = None  # by which a graph of torch.compile enters it

    def enter(self) -> None:
        """Called in every forward pass of the layer, whether there will be a gradient or not."""
        if self.between_steps is not None:
            self.between_steps.enter(self)

    @torch.compiler.assume_constant_result
    def prepare_trace(self) -> bool:
        """Called while torch.compile traces, not by its graphs."""
        assert self.between_steps is not None
        self.between_steps.give_handles()
        return True

    @torch.compiler.assume_constant_result
    def bring(self, device: str) -> bool:
        """Moves its state to where gradients on a device want it. Called while torch.compile
        traces, not by its graphs, in which no tensor moves."""
        classes.GateGroup.bring_state(self.plan, self.stats, device)
        return True

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"handle": None}  # Copies are in another group.

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if records_plain_model():
            return x
        self.enter()
        if not torch.is_grad_enabled():
            return x
        refuse_transforms()
        if not x.requires_grad:
            return x
        if hasattr(x, "to_local"):  # A DTensor: of tensor parallelism each rank has its part.
            local = self._gate(x.to_local())
            shape = {"shape": x.size(), "stride": x.stride(), "run_check": False}
            whole: Any = x
            return type(whole).from_local(local, whole.device_mesh, whole.placements, **shape)
        return self._gate(x)

    def _gate(self, x: torch.Tensor) -> torch.Tensor:
        stream = current_stream(self.stream)
        if torch.compiler.is_compiling():
            if x.device.type != "cpu":
                self.bring(str(x.device))
            return _GateInGraph.apply(x, self.plan, self.stats, stream)
        return ops.gradient_gate(x, self.plan, self.stats, stream)

    def add_to(self, group: Any, name: str) -> None:
        group.add_gate(name, self.plan, self.stats)

    def gates(self, name: str) -> Iterator[tuple[str, GradientGate]]:
        yield name, self

    def report(self) -> dict:
        """What the last backward pass saw and did, as plain numbers."""
        return self.alone().report(True)[""]

    def seen(self) -> TensorStats:
        """The statistics of the last gradient's sample, with the counts of the whole gradient."""
        return TensorStats(classes.GateGroup.statistics(self.stats))

    def fields(self) -> dict[str, float]:
        """All of the plan, by name."""
        return classes.GateGroup.fields(self.plan)

    def refresh(self) -> None:
        """Chooses anew in the next backward pass."""
        self.alone().refresh()

    def set_sparsity(self, sparsity: float) -> None:
        """Another sparsity from now on, instead of what was set, scheduled or allocated."""
        self.alone().set_sparsity(sparsity, "")

    def extra_repr(self) -> str:
        return f"calls={self.report()['calls']}"
