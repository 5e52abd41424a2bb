"""What stays exact of what a graph of torch.compile saves: what only the graph tells. Type, size
and strides are judged by reason_by_form() of the library, as in eager passes."""

from __future__ import annotations

import operator
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from .._library import classes

# Under this name a node's metadata has how it is packed: the text of a packer, or EXCLUDED.
KEY = "slimgrad_saved"
EXCLUDED = "excluded"

REASONS = classes.SavedTensors.reasons()
LIVE_ANYWAY = (REASONS["leaf"], REASONS["of leaf"])

_CASTS = (torch.ops.prims.convert_element_type.default, torch.ops.aten._to_copy.default)
# A graph knows of an operation that was decomposed where its parts come from. Of what these read,
# exponentials are taken again in backward: a step of 4 bits would be most of a probability.
_LOG_SOFTMAX = "_log_softmax"
_EXPONENTIALS = ("_softmax", "_safe_softmax", "exp", _LOG_SOFTMAX)
# What is reduced by less is no statistic, but a result that goes on, as of a pooling.
_LEAST_REDUCTION = 16


def hint(size: int | torch.SymInt) -> int:
    """A size, or what it is in the pass that is compiled; no guard comes of it. What follows from
    values is not known then: it counts as 4,096, as in inductor's partitioner."""
    if isinstance(size, int):
        return int(size)
    if size.node.hint is None:
        return size.node.shape_env.optimization_hint(size.node.expr, fallback=4096)
    return int(size.node.hint)


def num_bytes(value: torch.Tensor) -> int:
    return hint(value.numel()) * value.element_size()


def _value(node: fx.Node) -> Any:
    return node.meta.get("val")


def _size(node: fx.Node) -> int:
    """The number of elements; that of the largest, if the node has several results."""
    value = _value(node)
    values = value if isinstance(value, tuple | list) else [value]
    return max((hint(v.numel()) for v in values if isinstance(v, torch.Tensor)), default=0)


def _decomposed(node: fx.Node) -> str:
    """The name of the operation that it is, or is a part of."""
    return getattr(node.meta.get("original_aten"), "_opname", "")


_PRODUCTS = (torch.ops.aten.mul.Tensor, torch.ops.aten.clone.default, *_CASTS)


def is_view_or_product(node: fx.Node) -> bool:
    is_view = getattr(node.target, "is_view", False)
    return node.op == "call_function" and (is_view or node.target in _PRODUCTS)


def is_logarithm(node: fx.Node) -> bool:
    """Whether it is the result of log-softmax."""
    return _decomposed(node) == _LOG_SOFTMAX


def _has_tag(node: fx.Node, tag: torch.Tag) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and tag in node.target.tags


class Forward:
    """The forward graph. static: its parameters and buffers; wanted: the inputs that a gradient is
    computed for; packs_inputs: whether they are what other parts of a model computed."""

    def __init__(self, static: set[fx.Node], wanted: set[fx.Node], packs_inputs: bool):
        self._static, self._wanted, self._packs_inputs = static, wanted, packs_inputs
        self._needs_gradient: dict[fx.Node, bool] = {}
        self._statistic: dict[fx.Node, bool] = {}

    def read(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            inputs = node.all_input_nodes
            self._needs_gradient[node] = node in self._wanted or any(
                self._needs_gradient[each] for each in inputs
            )
            self._statistic[node] = self._is_statistic(node, inputs)

    def reason(self, node: fx.Node) -> str:
        """Why it is saved as it is, as the library says it; empty if it may be packed."""
        if node in self._static:
            return REASONS["leaf"]
        if self._comes_from_leaf(node):
            return REASONS["of leaf"]
        is_own = node.op == "placeholder" and not self._packs_inputs
        if is_own or not self._needs_gradient[node] or self._statistic[node]:
            return REASONS["no gradient"]
        return ""

    def _comes_from_leaf(self, node: fx.Node) -> bool:
        while node.op == "call_function" and node.all_input_nodes:
            is_view = getattr(node.target, "is_view", False) or node.target is operator.getitem
            if not is_view and node.target not in _CASTS:
                return False
            node = node.all_input_nodes[0]
        return node in self._static

    def _is_statistic(self, node: fx.Node, inputs: list[fx.Node]) -> bool:
        """Means and deviations, maxima and sums of a softmax, log-sum-exp: in eager passes what an
        operation saves beside its result, where no gradient goes through."""
        if node.op != "call_function" or not inputs:
            return False
        if node.target is operator.getitem:
            parent = inputs[0]
            returns = getattr(getattr(parent.target, "_schema", None), "returns", ())
            is_beside = len(returns) > 1 and node.args[1] != 0  # split() returns one: a list
            return self._statistic[parent] or (
                is_beside and not _has_tag(parent, torch.Tag.reduction)
            )
        if _has_tag(node, torch.Tag.reduction):
            return _LEAST_REDUCTION * _size(node) <= _size(inputs[0])
        if _has_tag(node, torch.Tag.pointwise) or getattr(node.target, "is_view", False):
            large = [each for each in inputs if _size(each) >= _size(node)]
            return bool(large) and all(self._statistic[each] for each in large)
        return False


class Reader:
    """What backward does with one of its inputs, before a gradient comes in."""

    def __init__(self, saved: fx.Node, of_gradients: set[fx.Node]):
        self.saved, self._of_gradients = saved, of_gradients

    @cached_property
    def _cone(self) -> list[fx.Node]:
        """The readers, and those of what is recomputed from it alone."""
        found: dict[fx.Node, None] = {}
        waiting = [self.saved]
        while waiting:
            for user in waiting.pop().users:
                if user.op == "call_function" and user not in found:
                    found[user] = None
                    if user not in self._of_gradients:
                        waiting.append(user)
        return list(found)

    def how(self) -> str | None:
        """How its readers are packed, if all say the same: the text of a packer; EXCLUDED if one
        is. What is in no module that packs says nothing."""
        texts = set()
        waiting = [self.saved]
        while waiting:
            for user in waiting.pop().users:
                if user.target is torch.ops.higher_order.invoke_subgraph:
                    return None  # The graph of a nested region packs what it saves, and tells.
                if getattr(user.target, "is_view", False) and user not in self._of_gradients:
                    waiting.append(user)  # It is the maker's, or the reader's.
                elif user.op == "call_function":
                    texts.add(user.meta.get("custom", {}).get(KEY))
        if EXCLUDED in texts:
            return EXCLUDED
        return texts.pop() if len(texts) == 1 else None

    def reason(self) -> str:
        for node in self._cone:
            name = _decomposed(node)
            is_recomputed = node not in self._of_gradients
            if name == f"{_LOG_SOFTMAX}_backward_data" or (is_recomputed and name in _EXPONENTIALS):
                return REASONS["softmax"]
            if node.meta.get("recompute") in (
                CheckpointPolicy.MUST_RECOMPUTE,
                CheckpointPolicy.PREFER_RECOMPUTE,
            ):
                return REASONS["checkpoint"]
            if node.target is torch.ops.aten.as_strided.default:
                return REASONS["layout"]
            # amax, of which no rounded value is the largest: the gradient would be divided by 0.
            if node.target is torch.ops.aten.eq.Tensor:
                return REASONS["compared"]
        return ""

    def result(self) -> fx.Node | None:
        """What is computed again from it by a softmax, a log-softmax or exp, if backward reads it
        through that alone: this may be saved in its place. It may be the tensor itself."""
        recomputed = (node for node in self._cone if node not in self._of_gradients)
        for node in sorted([self.saved, *recomputed], reverse=True):  # in the order of the graph
            if _decomposed(node) in _EXPONENTIALS and self._is_read_through(node):
                return node
        return None

    def _is_read_through(self, result: fx.Node) -> bool:
        found = {result}
        waiting = [self.saved]
        while waiting:
            node = waiting.pop()
            if node in found:
                continue
            found.add(node)
            if node.op == "output" or node in self._of_gradients:
                return False
            waiting += node.users
        return True


def owns_memory(node: fx.Node) -> bool:
    """Whether it is no view of an input."""
    while node.op == "call_function" and getattr(node.target, "is_view", False):
        node = node.all_input_nodes[0]
    return node.op == "call_function"


def reason_by_value(
    value: torch.Tensor, min_elements: int, dtype: torch.dtype | None = None
) -> str:
    """What type, device, size and strides say. dtype: as if it were that of the tensor."""
    key = torch._C._dispatch_key_for_device(value.device.type)
    if not torch._C._dispatch_has_kernel_for_dispatch_key("slimgrad::pack_saved_in_graph", key):
        return REASONS["device"]
    sizes, strides = ([hint(n) for n in each] for each in (value.shape, value.stride()))
    form = torch.empty_strided(sizes, strides, dtype=dtype or value.dtype, device="meta")
    return classes.SavedTensors.reason_by_form(form, min_elements)


def of_gradients(graph: fx.Graph, saved: set[fx.Node]) -> set[fx.Node]:
    """The nodes of a backward graph that depend on more than what was saved."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        is_gradient = node.op == "placeholder" and node not in saved
        if is_gradient or any(each in found for each in node.all_input_nodes):
            found.add(node)
    return found
