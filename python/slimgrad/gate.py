"""The gate as a module: the identity whose backward compresses the gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ._library import ops
from .stats import TensorStats


class StateModule(nn.Module):
    """Buffers that hold counters and seeds: .half() and .bfloat16() on a model must not round them.
    They follow the model to a device, never to another type."""

    def _apply(self, fn, recurse=True):
        return super()._apply(lambda t: t.to(fn(t).device), recurse)


class GradientGate(StateModule):
    """The identity whose backward compresses the gradient. Its buffers hold all its state; the
    library alone knows their layout.

    options: those of GateOptions in <slimgrad/gate.h>, by name; others have their defaults.
    """

    plan: torch.Tensor
    stats: torch.Tensor

    def __init__(self, **options: Any):
        super().__init__()
        self.register_buffer("plan", ops.new_gate_plan(**options))
        self.register_buffer("stats", ops.new_gate_stats())
        # Ranks of a distributed job draw their own random numbers: errors then average out.
        self.stream = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return x
        return ops.gradient_gate(x, self.plan, self.stats, self.stream)

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
