"""What convert_activations() converted, and what it left and why."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from . import activations as fewbit
from .masks import Dropout, MaxPool2d


@dataclass
class ConversionReport:
    """``converted``: (name, what it was, what it is). ``left``: (name, what it is, why).

    ``saved``: by name, what a converted module keeps for backward.
    """

    converted: list[tuple[str, str, str]] = field(default_factory=list)
    left: list[tuple[str, str, str]] = field(default_factory=list)
    saved: dict[str, str] = field(default_factory=dict)
    # Whether activations were searched for, and whether a forward pass searched for function calls.
    _searched: bool = field(default=False, init=False, repr=False)
    _with_inputs: bool = field(default=False, init=False, repr=False)

    @property
    def nothing(self) -> str:
        """Why nothing was converted; empty if something was, or if nothing was asked for."""
        if self.converted or not self._searched:
            return ""
        if self.left:
            return f"nothing was converted; found and left: {len(self.left)}"
        where = "no module of the model has a few-bit form"
        if self._with_inputs:
            return f"nothing was converted: {where}, and forward calls no activation as a function"
        return f"nothing was converted: {where}; inputs= finds activations called as functions"

    def __str__(self) -> str:
        lines = [self.nothing] if self.nothing else []
        lines += [
            f"converted {name or '(model)'}: {was} -> {now}" for name, was, now in self.converted
        ]
        lines += [f"left {name or '(model)'}: {what}: {why}" for name, what, why in self.left]
        return "\n".join(lines) or "no conversion of activations was asked for"

    def _add(self, name: str, old: nn.Module, new: nn.Module) -> None:
        was = type(old).__name__
        is_wrapped = isinstance(new, fewbit.Stepwise)
        now = f"Stepwise({was}, {new.extra_repr()})" if is_wrapped else repr(new)
        self.converted.append((name, was, now))
        self.saved[name] = saved_by(new)

    def _leave(self, name: str, module: nn.Module, why: str) -> None:
        self.left.append((name, type(module).__name__, why))


def _exact_bits(module: nn.Module) -> int:
    """For a piecewise constant derivative: 2 if it has three pieces and is not even, else 1."""
    is_even = not isinstance(module, nn.Hardtanh) or module.min_val == -module.max_val
    return 1 if is_even else 2  # nn.ReLU6 is a Hardtanh.


def saved_by(module: nn.Module) -> str:
    """What a converted module keeps for backward, in words."""
    if isinstance(module, Dropout):
        return "1 bit instead of the mask"
    if isinstance(module, MaxPool2d):
        return "4 bits per output instead of the input and 64 bits per output"
    if isinstance(module, fewbit.Stepwise):
        return _bits((len(module.table.levels) - 1).bit_length())
    if isinstance(module, fewbit.RReLU):
        return "torch's own in training, 1 bit in evaluation"
    if module.bits == "exact":
        return "the output and 1 bit instead of the input"
    if isinstance(module, fewbit._Approximate):
        return _bits(module.bits)
    return f"{_bits(_exact_bits(module))}, exact"


def _bits(count: int) -> str:
    return f"{count} bit{'' if count == 1 else 's'} instead of the input"
