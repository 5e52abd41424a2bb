"""Any layer with a gate behind it, converted by changing its class."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..class_change import change_class, core_class
from ..gate import GradientGate

GATE = "slimgrad_gate"  # the submodule that a gated layer gets


class Gated:
    """What a gated class has before the class of the layer."""

    plain_class: type  # that of the layer

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        # It may be gone, and somebody still hold this bound method, as accelerate's hooks do.
        gate = self._modules.get(GATE)
        return output if gate is None else gate(output)

    def __reduce_ex__(self, protocol):
        # pickle could not import a class that is made here: its plain one travels instead.
        _, (_, *arguments), *state = super().__reduce_ex__(max(protocol, 2))
        return _new_of_gated_class, (self.plain_class, *arguments), *state


_classes: dict[type, type] = {}


def _gated_class(plain: type) -> type:
    if plain not in _classes:
        body = {"plain_class": plain, "__module__": plain.__module__, "__doc__": plain.__doc__}
        _classes[plain] = type(f"Gated{plain.__name__}", (Gated, plain), body)
    return _classes[plain]


def _new_of_gated_class(plain: type, *arguments: Any) -> nn.Module:
    cls = _gated_class(plain)
    return cls.__new__(cls, *arguments)


def gate_layer(module: nn.Module, gate: GradientGate) -> None:
    plain = core_class(module)
    change_class(module, plain, _gated_class(plain))
    module.add_module(GATE, gate)


def ungate_layer(module: nn.Module) -> None:
    """Undoes gate_layer."""
    delattr(module, GATE)
    gated = core_class(module)
    change_class(module, gated, gated.plain_class)
