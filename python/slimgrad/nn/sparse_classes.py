"""Which layers have a sparse backward pass, and converting them in place."""

from __future__ import annotations

from torch import nn

from ..compression.class_change import change_class, class_within, core_class, made_class
from . import conv1d
from .layers import SPARSE, Conv2d, Linear, SparseState

_SPARSE_CLASS: dict[type, type] = {nn.Linear: Linear, nn.Conv2d: Conv2d}


def can_be_sparse(module: nn.Module) -> bool:
    """Whether the module is exactly one of the classes that have a sparse one. A subclass may do
    anything in its forward."""
    dense = core_class(module)
    return dense in _SPARSE_CLASS or conv1d.is_conv1d_class(dense)


def make_sparse(module: nn.Module, state: SparseState) -> None:
    """Converts a layer in place: it stays the same object, with the same parameters and hooks."""
    dense = core_class(module)
    sparse = _SPARSE_CLASS.get(dense) or made_class(conv1d.Sparse, dense)
    change_class(module, dense, sparse)
    module.add_module(SPARSE, state.train(module.training))


def make_dense(module: nn.Module) -> None:
    """Undoes make_sparse."""
    dense_class = {sparse: dense for dense, sparse in _SPARSE_CLASS.items()}

    def is_ours(cls: type) -> bool:
        return cls in dense_class or vars(cls).get("maker") is conv1d.Sparse

    sparse = class_within(module, is_ours)
    change_class(module, sparse, dense_class.get(sparse) or sparse.plain_class)
    delattr(module, SPARSE)
