"""Graphs that are recorded for use elsewhere: torch.jit.trace, torch.export."""

from __future__ import annotations

import warnings

import torch


def records_plain_model() -> bool:
    """Whether such a graph is being recorded. It is of the plain model: whoever loads it need not
    have slimgrad, and the state of a run is nothing to freeze into it."""
    if not (torch.jit.is_tracing() or torch.compiler.is_exporting()):
        return False
    warnings.warn(
        "[slimgrad] a traced or exported model is the plain one: its backward compresses nothing",
        stacklevel=3,
    )
    return True
