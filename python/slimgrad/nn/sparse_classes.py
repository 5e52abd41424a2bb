"""Which layers have a sparse backward pass, and converting them in place: nn.Linear, nn.Conv2d and
the Conv1D of transformers."""

from __future__ import annotations

import torch
from torch import nn

from ..compression.class_change import Made, change_class, class_within, core_class, made_class
from .layers import SPARSE, Conv2d, Linear, SparseState, is_plain_pass
from .sparse_products import sparse_linear


def is_conv1d_class(cls: type) -> bool:
    """Whether ``cls`` is transformers' Conv1D, a linear layer with a weight of shape (in, out), as
    in GPT-2. Compares names, so that transformers need not be installed."""
    return cls.__name__ == "Conv1D" and cls.__module__ == "transformers.pytorch_utils"


class SparseConv1D(Made):
    """A Conv1D with a sparse backward pass. The weight is not copied to transpose it: the products
    read and write it by its strides, which makes them somewhat slower."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # A bound method that was kept may be called after the class was changed back.
        if not isinstance(self, SparseConv1D):
            return type(self).forward(self, x)
        state = self._modules.get(SPARSE)
        if is_plain_pass(state):
            return super().forward(x)
        return sparse_linear(x, self.weight.t(), self.bias, *state.arguments())


_SPARSE_CLASS: dict[type, type] = {nn.Linear: Linear, nn.Conv2d: Conv2d}


def can_be_sparse(module: nn.Module) -> bool:
    """Whether the module is exactly one of the classes that have a sparse one. A subclass may do
    anything in its forward."""
    dense = core_class(module)
    return dense in _SPARSE_CLASS or is_conv1d_class(dense)


def make_sparse(module: nn.Module, state: SparseState) -> None:
    """Converts a layer in place: it stays the same object, with the same parameters and hooks."""
    dense = core_class(module)
    sparse = _SPARSE_CLASS.get(dense) or made_class(SparseConv1D, dense)
    change_class(module, dense, sparse)
    module.add_module(SPARSE, state.train(module.training))


def make_dense(module: nn.Module) -> None:
    """Undoes make_sparse."""
    dense_class = {sparse: dense for dense, sparse in _SPARSE_CLASS.items()}

    def is_ours(cls: type) -> bool:
        return cls in dense_class or vars(cls).get("maker") is SparseConv1D

    sparse = class_within(module, is_ours)
    change_class(module, sparse, dense_class.get(sparse) or sparse.plain_class)
    delattr(module, SPARSE)
