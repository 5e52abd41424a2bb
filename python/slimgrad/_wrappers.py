"""Models inside wrappers that change neither their layers nor what those are called."""

from __future__ import annotations

from torch import nn

_INNER = {"OptimizedModule": "_orig_mod", "DistributedDataParallel": "module"}


def inner_model(model: nn.Module) -> nn.Module:
    """The model that torch.compile or DistributedDataParallel wraps: names of layers, and with them
    seeds and states, are those of the model, wherever in the program it is converted."""
    while type(model).__name__ in _INNER and type(model).__module__.startswith("torch."):
        model = getattr(model, _INNER[type(model).__name__])
    return model
