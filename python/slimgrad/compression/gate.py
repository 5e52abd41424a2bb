"""The gate as a module: the identity whose backward compresses the gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .._library import ops
from .._support import current_stream, records_plain_model, refuse_transforms
from ..tensors.stats import TensorStats

if TYPE_CHECKING:
    from .between_steps import BetweenSteps


class StateHolder(nn.Module):
    """A module whose tensors are state of the compression, not of the model.

    They are plain attributes: a model's state_dict(), buffers(), averaged copies and what
    DistributedDataParallel sends around know nothing of them, .half() does not round them, and
    they stay on the CPU in float64 whatever device the model is on. Copies and pickles carry them;
    slimgrad.state_dict() names them.
    """

    def tensors_by_name(self) -> dict[str, torch.Tensor]:
        raise NotImplementedError

    def _replicate_for_data_parallel(self):
        raise RuntimeError(
            "[compress] expected one process for each device (DistributedDataParallel), got "
            "nn.DataParallel: its replicas would write one state at the same time"
        )


class _GateInGraph(torch.autograd.Function):
    """ops.gradient_gate for graphs of torch.compile, in which backward may write a plan that
    another forward pass has kept: two passes before one backward, as siamese networks have them.
    What is saved as an attribute has no version to compare. Not for graphs that look at all plans,
    whose own new ones would be kept: there torch refuses the second pass."""

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
        self.between_steps: BetweenSteps | None = None
        self.leads = False  # whether a graph of torch.compile that it is in looks at all gates

    def enter(self) -> None:
        """Called in every forward pass of the layer, whether there will be a gradient or not."""
        if self.between_steps is not None:
            self.between_steps.enter(self)

    @torch.compiler.assume_constant_result
    def stand_for_leader(self) -> bool:
        """Called while torch.compile traces, not by its graphs, which guard on ``leads``."""
        assert self.between_steps is not None
        self.leads = self.between_steps.elects(self)
        return self.leads

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
        looks = self.between_steps is not None
        if torch.compiler.is_compiling() and not looks:
            return _GateInGraph.apply(x, self.plan, self.stats, stream)
        return ops.gradient_gate(x, self.plan, self.stats, stream)

    def tensors_by_name(self) -> dict[str, torch.Tensor]:
        return {"plan": self.plan, "stats": self.stats}

    def report(self) -> dict:
        """What the last backward pass saw and did, as plain numbers."""
        counts, whole, switches, flags, names, numbers, format = ops.gate_report(
            self.plan, self.stats
        )
        report = dict(zip(counts + switches + names, whole + flags + numbers, strict=True))
        report["format"] = format or None
        report["scale"] = report["scale"] or None
        return report

    def seen(self) -> TensorStats:
        """The statistics of the last gradient's sample, with the counts of the whole gradient."""
        return TensorStats(ops.gate_statistics(self.stats))

    def fields(self) -> dict[str, float]:
        """All of the plan, by name."""
        return dict(zip(*ops.gate_fields(self.plan), strict=True))

    def refresh(self) -> None:
        """Chooses anew in the next backward pass."""
        ops.refresh_gate_(self.plan)

    def set_sparsity(self, sparsity: float) -> None:
        """Another sparsity from now on, instead of what was set, scheduled or allocated."""
        ops.set_gate_sparsity_(self.plan, sparsity)

    def extra_repr(self) -> str:
        return f"calls={self.report()['calls']}"
