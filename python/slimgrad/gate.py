"""The gate as a module: the identity whose backward compresses the gradient."""

from __future__ import annotations

import torch
from torch import nn

from ._library import ops
from .plan import Plan, new_layer_stats


class StateModule(nn.Module):
    """Buffers that hold counters and seeds: .half() and .bfloat16() on a model must not round them.
    They follow the model to a device, never to another type."""

    def _apply(self, fn, recurse=True):
        return super()._apply(lambda t: t.to(fn(t).device), recurse)


class GradientGate(StateModule):
    """The identity whose backward compresses the gradient. Its buffers hold all its state."""

    plan: torch.Tensor
    stats: torch.Tensor

    def __init__(self, plan: torch.Tensor):
        super().__init__()
        self.register_buffer("plan", plan)
        self.register_buffer("stats", new_layer_stats())
        # Ranks of a distributed job draw their own random numbers: errors then average out.
        self.stream = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return x
        return ops.gradient_gate(x, self.plan, self.stats, self.stream)

    def extra_repr(self) -> str:
        return f"calls={int(self.plan[Plan.CALLS])}"
