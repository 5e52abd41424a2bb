"""The activation modules: subclasses of torch.nn's, so that isinstance and state_dict stay.

Each takes torch's arguments and by keyword ``bits`` (1 to 4; "exact" for GELU, SiLU and Mish), and
where the table is an approximation ``interval`` and ``weight``. An activation whose derivative is
piecewise constant is exact and keeps the 1 or 2 bits that takes. What a table does in its tails,
and which losses must not follow, is in docs/activations.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import nn

from .. import functional as F
from .._support import records_plain_model
from ..tensors.step_tables import StepTable
from .step_tables import WEIGHT, check_bits, check_no_table, check_stepwise

_INVERTIBLE = (nn.GELU, nn.SiLU, nn.Mish)


def _or_plain(cls: type, forward: Callable) -> Callable:
    """``forward``, and that of torch's class where the plain model is recorded."""

    @functools.wraps(forward)
    def either(self, input):
        return super(cls, self).forward(input) if records_plain_model() else forward(self, input)

    return either


class _Fewbit:
    """What the modules share: ``bits``, checked when the module is made, and shown."""

    def __init_subclass__(cls):
        if "forward" in vars(cls):
            cls.forward = _or_plain(cls, cls.forward)

    def __init__(self, *args, bits: int | str = 3, **kwargs):
        super().__init__(*args, **kwargs)
        self.bits = bits
        if bits == "exact" and isinstance(self, _INVERTIBLE):
            if getattr(self, "inplace", False):
                raise ValueError(
                    f'[{type(self).__name__}] expected inplace=False with bits="exact", got True'
                )
        else:
            check_bits(type(self).__name__, bits, or_exact=True)

    def extra_repr(self) -> str:
        return ", ".join(part for part in (super().extra_repr(), f"bits={self.bits!r}") if part)


class _Approximate(_Fewbit):
    """An activation with a table that approximates: which one is the user's choice."""

    def __init__(
        self,
        *args,
        bits: int | str = 3,
        interval: tuple[float, float] | None = None,
        weight: str = WEIGHT,
        **kwargs,
    ):
        super().__init__(*args, bits=bits, **kwargs)
        if bits == "exact":
            check_no_table(type(self).__name__, interval, weight)
        self.interval = interval
        self.weight = weight

    @property
    def _table(self) -> dict:
        return {"bits": self.bits, "interval": self.interval, "weight": self.weight}


class ReLU(_Fewbit, nn.ReLU):
    def forward(self, input):
        return F.relu(input, self.inplace, bits=self.bits)


class LeakyReLU(_Fewbit, nn.LeakyReLU):
    def forward(self, input):
        return F.leaky_relu(input, self.negative_slope, self.inplace, bits=self.bits)


class RReLU(_Fewbit, nn.RReLU):
    """One bit in evaluation; in training torch's own, whose slope is random for each element."""

    def forward(self, input):
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace, bits=self.bits)


class PReLU(_Fewbit, nn.PReLU):
    """One bit while the weight is frozen. The gradient of a weight that learns needs the input
    where it is negative, and then this is torch's own."""

    def forward(self, input):
        if self.weight.requires_grad and torch.is_grad_enabled():
            return super().forward(input)
        return F.prelu(input, self.weight)


class Threshold(_Fewbit, nn.Threshold):
    def forward(self, input):
        return F.threshold(input, self.threshold, self.value, self.inplace, bits=self.bits)


class ReLU6(_Fewbit, nn.ReLU6):
    def forward(self, input):
        return F.relu6(input, self.inplace, bits=self.bits)


class Hardtanh(_Fewbit, nn.Hardtanh):
    def forward(self, input):
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace, bits=self.bits)


class Hardsigmoid(_Fewbit, nn.Hardsigmoid):
    def forward(self, input):
        return F.hardsigmoid(input, self.inplace, bits=self.bits)


class Hardshrink(_Fewbit, nn.Hardshrink):
    def forward(self, input):
        return F.hardshrink(input, self.lambd, bits=self.bits)


class Softshrink(_Fewbit, nn.Softshrink):
    def forward(self, input):
        return F.softshrink(input, self.lambd, bits=self.bits)


class GELU(_Approximate, nn.GELU):
    def forward(self, input):
        return F.gelu(input, self.approximate, **self._table)


class SiLU(_Approximate, nn.SiLU):
    def forward(self, input):
        return F.silu(input, self.inplace, **self._table)


class Mish(_Approximate, nn.Mish):
    def forward(self, input):
        return F.mish(input, self.inplace, **self._table)


class Hardswish(_Approximate, nn.Hardswish):
    def forward(self, input):
        return F.hardswish(input, self.inplace, **self._table)


class Sigmoid(_Approximate, nn.Sigmoid):
    def forward(self, input):
        return F.sigmoid(input, **self._table)


class LogSigmoid(_Approximate, nn.LogSigmoid):
    def forward(self, input):
        return F.logsigmoid(input, **self._table)


class Tanh(_Approximate, nn.Tanh):
    def forward(self, input):
        return F.tanh(input, **self._table)


class Tanhshrink(_Approximate, nn.Tanhshrink):
    def forward(self, input):
        return F.tanhshrink(input, **self._table)


class Softsign(_Approximate, nn.Softsign):
    def forward(self, input):
        return F.softsign(input, **self._table)


class Softplus(_Approximate, nn.Softplus):
    def forward(self, input):
        return F.softplus(input, self.beta, self.threshold, **self._table)


class ELU(_Approximate, nn.ELU):
    def forward(self, input):
        return F.elu(input, self.alpha, self.inplace, **self._table)


class CELU(_Approximate, nn.CELU):
    def forward(self, input):
        return F.celu(input, self.alpha, self.inplace, **self._table)


class SELU(_Approximate, nn.SELU):
    def forward(self, input):
        return F.selu(input, self.inplace, **self._table)


class Stepwise(nn.Module):
    """Any pointwise function or module with the gradient of a step table."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], table: StepTable):
        super().__init__()
        check_stepwise(function, table, "Stepwise")
        self.function = function
        self.table = table

    def forward(self, input):
        if not (torch.is_grad_enabled() and input.requires_grad) or records_plain_model():
            return self.function(input)
        return F.stepwise(input, self.function, self.table)

    def extra_repr(self) -> str:
        return f"levels={len(self.table.levels)}"
