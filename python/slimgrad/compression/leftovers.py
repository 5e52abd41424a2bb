"""Weights that compress() does not reach: modules that own some, and are no layer that it knows."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.nn.utils.parametrize import ParametrizationList

# They have weights of one number a feature, whatever their shape, and no product.
_NORMS = (
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.modules.batchnorm._NormBase,
    nn.LocalResponseNorm,
)

_INSIDE = "its products are inside one call of torch, where no gradient can be reached"
_REASONS: dict[type, str] = {
    nn.RNNBase: _INSIDE,
    nn.RNNCellBase: f"{_INSIDE}; a cell that is made of nn.Linear layers is converted",
    nn.Bilinear: "a product of two inputs with a weight, which has no compressed form",
    nn.Embedding: "no product: its gradient is added to rows of the table",
    nn.EmbeddingBag: "no product: its gradient is added to rows of the table",
}
_KNOWN = "nn.Linear, a convolution or a subclass of them"


def _weights(module: nn.Module) -> Iterator[str]:
    """Names of the parameters that a module owns itself, and that are more than a row of numbers:
    a class token of shape (1, 1, n) is such a row."""
    for name, parameter in module.named_parameters(recurse=False):
        if isinstance(parameter, UninitializedTensorMixin):
            continue
        if sum(size > 1 for size in parameter.shape) >= 2:
            yield name


def _is_quantized(module: nn.Module) -> bool:
    """torch's own: the weight is packed, and no parameter."""
    path = type(module).__module__
    is_theirs = path.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized"))
    return is_theirs and callable(getattr(module, "weight", None))


def _class_of(module: nn.Module) -> str:
    """As its author wrote it, which parametrizing and scripting hide."""
    cls = type(module)
    if isinstance(module, torch.jit.ScriptModule):
        return module.original_name
    is_parametrized = hasattr(module, "parametrizations")
    return f"parametrized {cls.__mro__[1].__name__}" if is_parametrized else cls.__name__


def _reason(module: nn.Module, weights: list[str]) -> str:
    name = _class_of(module)
    if isinstance(module, torch.jit.ScriptModule):
        return f"{name}: TorchScript, whose layers cannot be changed"
    for cls, why in _REASONS.items():
        if isinstance(module, cls):
            return f"nn.{name}: {why}" if _is_torch(module) else f"{name}: {why}"
    if isinstance(module, nn.ParameterList | nn.ParameterDict):
        return (
            f"nn.{name}: weights that a forward uses itself; {_KNOWN} in their place is converted"
        )
    if not _is_torch(module) and any(True for _ in module.children()):
        held = ", ".join(weights)
        return (
            f"{name} holds {held} itself; if it multiplies with it, {_KNOWN} in its place is "
            "converted"
        )
    return f"{name}: not a class that compress() knows; {_KNOWN} in its place is converted"


def _is_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def left_layers(model: nn.Module, known: Collection[str]) -> dict[str, str]:
    """By name, the modules that own weights and that nobody has spoken of yet, with the reason why
    they are not compressed.

    known: names of the modules that are converted, or left for a reason that has been given.

    A weight is a parameter of two dimensions or more. Norm layers, biases and activations with a
    parameter have none. nn.MultiheadAttention is not listed: it is a layer of its own kind. A
    parametrized module is listed once, by its own name, and not by that of its parametrizations.
    """
    left: dict[str, str] = {}
    for name, module in model.named_modules():
        if name in known or isinstance(module, (nn.MultiheadAttention, *_NORMS)):
            continue
        if isinstance(module, ParametrizationList) or _within_parametrization(name):
            continue
        weights = list(_weights(module))
        if hasattr(module, "parametrizations"):
            lists = module.parametrizations.items()
            weights += [weight for weight, each in lists if list(_weights(each))]
        if _is_quantized(module):
            left[name] = f"quantized {_class_of(module)}: its weight does not learn"
        elif weights:
            left[name] = _reason(module, weights)
    return left


def _within_parametrization(name: str) -> bool:
    return "parametrizations" in name.split(".")
