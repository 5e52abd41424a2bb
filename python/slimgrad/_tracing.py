"""What else may be at work around a forward pass: a recorder of graphs, a transform, a count of
what the plain model saves."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_local = threading.local()  # .plain: whether this thread runs models as if they were plain


@contextmanager
def plain_models() -> Iterator[None]:
    """Forward passes of this thread are meanwhile those of the plain model. What torch.compile has
    compiled stays as it is."""
    _local.plain = True
    try:
        yield
    finally:
        _local.plain = False


def records_plain_model() -> bool:
    """Whether a forward pass is to be that of the plain model: inside plain_models(), or because a
    graph is recorded for use elsewhere, by torch.jit.trace or torch.export. Whoever loads that need
    not have slimgrad, and the state of a run is nothing to freeze into it."""
    if not torch.compiler.is_compiling() and getattr(_local, "plain", False):
        return True
    if not (torch.jit.is_tracing() or torch.compiler.is_exporting()):
        return False
    warnings.warn(
        "[slimgrad] a traced or exported model is the plain one: its backward compresses nothing",
        stacklevel=3,
    )
    return True


def refuse_forward_mode() -> None:
    """The tangents of forward-mode differentiation would be dropped in silence."""
    if torch.autograd.forward_ad._current_level >= 0 and not torch.compiler.is_compiling():
        raise RuntimeError(
            "[slimgrad] expected reverse-mode differentiation, got forward mode (torch.func.jvp, "
            "torch.autograd.forward_ad): use torch's own layers there"
        )


def refuse_transforms() -> None:
    """torch.func has no rule for a backward pass that draws and counts: vmap would skip it in
    silence. functional_call() is no transform."""
    refuse_forward_mode()
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is None:
        return
    raise RuntimeError(
        "[slimgrad] expected plain autograd, got a transform of torch.func (grad, vjp, vmap, ...): "
        "call controller.remove() before, or run it without gradients"
    )
