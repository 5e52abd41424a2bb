"""Any layer with a gate behind it, converted by changing its class."""

from __future__ import annotations

from torch import nn

from ..class_change import Made, change_class, core_class, made_class
from ..gate import GradientGate

GATE = "slimgrad_gate"  # the submodule that a gated layer gets


class Gated(Made):
    def forward(self, *args, **kwargs):
        # The class may be gone, and somebody still hold the bound method, as accelerate's hooks do.
        if not isinstance(self, Gated):
            return type(self).forward(self, *args, **kwargs)
        return self._modules[GATE](super().forward(*args, **kwargs))


def gate_layer(module: nn.Module, gate: GradientGate) -> None:
    plain = core_class(module)
    change_class(module, plain, made_class(Gated, plain))
    module.add_module(GATE, gate)


def ungate_layer(module: nn.Module) -> None:
    """Undoes gate_layer."""
    delattr(module, GATE)
    gated = core_class(module)
    change_class(module, gated, gated.plain_class)
