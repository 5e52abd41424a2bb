"""transformers' Conv1D, a linear layer whose weight is (in, out): all of GPT-2 is made of it."""

from __future__ import annotations

import torch

from .._library import ops
from ..compression.class_change import Made
from .layers import SPARSE, is_plain_pass


def is_conv1d_class(cls: type) -> bool:
    """By its name, so that transformers need not be there."""
    return cls.__name__ == "Conv1D" and cls.__module__ == "transformers.pytorch_utils"


class Sparse(Made):
    """A Conv1D with a sparse backward pass. Nothing is copied to turn the weight round: the
    products read and write it by its strides, which costs them some speed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # The class may be gone, and somebody still hold this bound method.
        if not isinstance(self, Sparse):
            return type(self).forward(self, x)
        state = self._modules.get(SPARSE)
        if is_plain_pass(state):
            return super().forward(x)
        return ops.sparse_linear(x, self.weight.t(), self.bias, *state.arguments())
