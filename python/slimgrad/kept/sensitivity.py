"""How much the rounding of a saved tensor disturbs the gradients of the parameters.

What is kept meets a gradient g in the backward of a node. In a product, as linear layers and
convolutions have it, rounding errors of variance v add v * fan * |g|^2 to the squared error of the
weight gradient, where every element of g is multiplied with ``fan`` kept values. That is exact.
Elsewhere the error goes into the gradient that flows on, and from there into the weights before:
that is taken to be as much as in a mean product of the pass, times a constant which was compared
with the errors measured on small networks (tests/python/kept/test_kept_sensitivity.py):

    products                      fan
    norms                         mean fan / 8 / variance of what is kept
    ReLU, pooling                 0: which values are zero is exact, and more is not asked
    attention; nodes of C++       mean fan: errors of scores are taken exponentials of
    all others                    mean fan / 4
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

_PRODUCTS = ("AddmmBackward0", "MmBackward0", "BmmBackward0", "BaddbmmBackward0", "LinearBackward0")
_CONVOLUTION = "ConvolutionBackward0"
_UNDISTURBED = (
    "ReluBackward0",
    "ThresholdBackward0",
    "MaxPool2DWithIndicesBackward0",
    "MaxPool3DWithIndicesBackward0",
    "AvgPool2DBackward0",
    "AvgPool3DBackward0",
)
_NORMS = ("NativeLayerNormBackward0", "NativeBatchNormBackward0", "NativeGroupNormBackward0")
_ATTENTION = "ScaledDotProduct"
_NORM_PART = 1 / 8
_OTHER_PART = 1 / 4


@dataclass
class Use:
    """Of a kept tensor by a node. fan: of a product, or None; part: of the mean fan, otherwise.
    squares: the squared norm of the gradient, None where nobody saw it."""

    fan: float | None
    part: float
    squares: float | None


def _fan(node: Any, size: torch.Size, gradient: tuple[torch.Size, ...]) -> float | None:
    """How many of its kept values an element of the gradient meets, where the node tells."""
    if len(gradient) != 1:
        return None
    name, of = node.name(), gradient[0]
    if name == _CONVOLUTION:
        weight = node._saved_weight
        outputs = size if node._saved_transposed else of
        return outputs.numel() * (weight.numel() / weight.shape[0]) / max(1, of.numel())
    if name in _PRODUCTS and len(size) >= 2 and len(of) >= 2:
        is_first = size[-2] == of[-2]
        return float(size[-1] if is_first else size[-2])
    return None


def _use(node: Any, kept: torch.Tensor, seen: tuple[tuple, float] | None) -> Use:
    name = node.name()
    gradient, squares = seen if seen is not None else ((), None)
    if name in _UNDISTURBED:
        return Use(0.0, 0.0, 0.0)
    if name in _NORMS:
        variance = kept.float().var().item()
        return Use(None, _NORM_PART / max(variance, 1e-30), squares)
    fan = _fan(node, kept.size(), gradient)
    is_whole = name.startswith(_ATTENTION) or "::" in name
    return Use(fan, 1.0 if is_whole else _OTHER_PART, squares)


def weights(uses: list[list[Use]]) -> list[float]:
    """For each tensor what multiplies the variance of its rounding, from its uses. A gradient that
    nobody saw, that of the first node of backward, is taken to be as large as the largest."""
    flat = [use for own in uses for use in own]
    fans = [use.fan for use in flat if use.fan]
    mean = sum(fans) / len(fans) if fans else 1.0
    largest = max((use.squares for use in flat if use.squares is not None), default=1.0)

    def weight(use: Use) -> float:
        squares = largest if use.squares is None else use.squares
        return (mean * use.part if use.fan is None else use.fan) * squares

    return [sum(map(weight, own)) for own in uses]


def _norm(gradient: torch.Tensor) -> float:
    is_short = gradient.dtype in (torch.bfloat16, torch.float16)
    return torch.linalg.vector_norm(gradient, dtype=torch.float32 if is_short else None).item()


def _key(node: Any) -> tuple[int, str]:
    return node._sequence_nr(), node.name()


@dataclass
class Met:
    """A tensor that a measured pass saved. steps: by bits, its mean squared step. measurement: None
    since a later pass took its place, before its own backward came."""

    measurement: Measurement | None
    size: int
    width: int
    first: int
    steps: dict[int, float]
    uses: list[Use] = field(default_factory=list)


class Measurement:
    """Watches the backward pass of what was saved in one pass, or in one of each place.

    What forward returns leads to all nodes before it in the graph, and where nobody has that, the
    first node that unpacks anything does; each gets a hook that takes the norm of its gradient.
    Hooks hold no node, so that the graph is freed as always.
    done: called when a backward pass that met some of the tensors has ended.
    """

    def __init__(self, done: Callable[[Measurement], None]):
        self.met: dict[tuple[int, int], Met] = {}
        self.fixed: dict[int, tuple[int, int]] = {}  # by module, bytes without a choice
        self._done = done
        self._known: set[tuple[int, str]] = set()
        self._last = threading.local()  # .seen: key, sizes and squared norm of a node's gradient
        self._ends = False

    def watch(self, result: Any) -> None:
        """Tensors in tuples, lists and dictionaries."""
        if isinstance(result, torch.Tensor):
            if result.grad_fn is not None:
                self._watch(result.grad_fn)
        elif isinstance(result, Mapping | list | tuple):
            for item in result.values() if isinstance(result, Mapping) else result:
                self.watch(item)

    def unpacking(self) -> None:
        """To be called when anything is unpacked: the node at work may be the first."""
        node = torch._C._current_autograd_node()
        if node is not None and _key(node) not in self._known:
            self._watch(node)

    def unpacked(self, met: Met, kept: torch.Tensor) -> None:
        node = torch._C._current_autograd_node()
        if node is None or getattr(self._last, "is_asking", False):
            return
        key, *seen = getattr(self._last, "seen", (None,))
        self._last.is_asking = True  # A convolution is asked for its weight, which may be packed.
        try:
            met.uses.append(_use(node, kept, tuple(seen) if key == _key(node) else None))
        finally:
            self._last.is_asking = False
        if not self._ends:
            self._ends = True
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: self._done(self))

    def _watch(self, node: Any) -> None:
        stack = [node]
        while stack:
            node = stack.pop()
            key = _key(node)
            if key in self._known or key[1] == "torch::autograd::AccumulateGrad":
                continue
            self._known.add(key)
            node.register_prehook(lambda gradients, key=key: self._saw(key, gradients))
            stack += [before for before, _ in node.next_functions if before is not None]

    def _saw(self, key: tuple[int, str], gradients: tuple) -> None:
        there = [g for g in gradients if type(g) is torch.Tensor and g.layout is torch.strided]
        norms = map(_norm, there)
        self._last.seen = (key, tuple(g.size() for g in there), sum(n * n for n in norms))

    def weights(self) -> dict[tuple[int, int], float] | None:
        """Of what this backward pass met; another one, of another loss, may meet the rest. None
        where there is nothing to learn: no gradient, or one that is not finite."""
        uses = {place: met.uses for place, met in self.met.items() if met.uses}
        found = weights(list(uses.values()))
        if not any(found) or not all(map(math.isfinite, found)):
            return None
        return dict(zip(uses, found, strict=True))
