"""Timing both ways of sparse layers without leaving a trace in the training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from .layers import SparseState


@contextmanager
def timed_ways(model: nn.Module, states: list[SparseState]) -> Iterator[None]:
    """Backward passes inside time both ways of products; afterwards the faster is pinned and all
    else is as it was: gradients, buffers, torch's generator. If the inside fails, nothing is
    pinned."""
    parameters = dict(model.named_parameters())
    versions = {name: p._version for name, p in parameters.items()}
    gradients = {name: p.grad for name, p in parameters.items()}
    ours = [tensor for state in states for tensor in state.tensors()]
    buffers = [(buffer, buffer.clone()) for buffer in [*model.buffers(), *ours]]
    choices = [state.choice.clone() for state in states]
    for parameter in parameters.values():
        parameter.grad = None
    try:
        for state in states:
            state.alone().time_ways(True)
        with torch.random.fork_rng(devices=[]):
            yield
        changed = [name for name, p in parameters.items() if p._version != versions[name]]
        if changed:
            raise ValueError(
                "[tune] expected a step that does a forward and a backward pass only, got one that "
                f"changed the parameter {changed[0]!r}"
            )
        for state in states:
            state.alone().time_ways(False)
        choices = [state.choice.clone() for state in states]
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
            for state, choice in zip(states, choices, strict=True):
                state.choice.copy_(choice)
        for name, parameter in parameters.items():
            parameter.grad = gradients[name]
