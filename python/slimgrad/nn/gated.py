"""Any layer with a gate behind it, converted by changing its class."""

from __future__ import annotations

import torch
from torch import nn

from ..compression.class_change import Made, change_class, class_within, core_class, made_class
from ..compression.gate import GradientGate

GATE = "slimgrad_gate"  # the submodule that a gated layer gets


class Gated(Made):
    def forward(self, *args, **kwargs):
        # A bound method that was kept, as by accelerate's hooks, may be called after ungate_layer.
        if not isinstance(self, Gated):
            return type(self).forward(self, *args, **kwargs)
        output = super().forward(*args, **kwargs)
        gate = self._modules.get(GATE)  # None: made by type(layer)(...), or of a copy that shares
        if gate is None:
            return output
        if not isinstance(output, torch.Tensor):
            raise TypeError(
                f"[compress] expected {self.plain_class.__name__} to return a tensor, got "
                f"{type(output).__name__}: compress with exclude= for this layer"
            )
        return gate(output)


def gate_layer(module: nn.Module, gate: GradientGate) -> None:
    plain = core_class(module)
    change_class(module, plain, made_class(Gated, plain))
    module.add_module(GATE, gate.train(module.training))


def ungate_layer(module: nn.Module) -> None:
    """Undoes gate_layer."""
    gated = class_within(module, lambda cls: vars(cls).get("maker") is Gated)
    change_class(module, gated, gated.plain_class)
    delattr(module, GATE)
