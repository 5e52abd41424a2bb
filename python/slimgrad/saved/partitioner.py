"""inductor's partitioner, and behind it what packs the tensors that cross the cut.

Its own module, because inductor takes long to import: graphs.py imports it when a model that packs
is traced.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import CustomPartitionerFn, get_hash_for_files

from .._library import ops
from . import graph_rules, graphs
from .graph_rules import (
    EXCLUDED,
    KEY,
    LIVE_ANYWAY,
    REASONS,
    Forward,
    Reader,
    hint,
    is_logarithm,
    is_view_or_product,
    num_bytes,
    of_gradients,
    owns_memory,
    reason_by_value,
)
from .graphs import how_under_hooks, marks_of_trace, parse


class Partitioner(CustomPartitionerFn):
    """before: the one that was set; None for inductor's own."""

    def __init__(self, before: CustomPartitionerFn | None):
        self._before = before

    def __call__(self, gm, joint_inputs, **kwargs):
        partition = self._before or min_cut_rematerialization_partition
        forward, backward = partition(gm, joint_inputs, **kwargs)
        under_hooks = how_under_hooks()
        marks = {node.meta.get("custom", {}).get(KEY) for node in forward.graph.nodes} - {None}
        if marks - {EXCLUDED} or under_hooks not in (None, EXCLUDED):
            static = kwargs.get("static_lifetime_input_indices") or ()
            Packing(forward, backward, kwargs["num_fwd_outputs"], static, under_hooks).run()
        return forward, backward

    def uuid(self):
        """All that decides on a graph and is not in its nodes: a plain model must not get the graph
        of one that packs, nor the other way round."""
        code = get_hash_for_files((__file__, graphs.__file__, graph_rules.__file__))
        before = None if self._before is None else self._before.uuid()
        return code, marks_of_trace(), how_under_hooks(), before


# What becomes of tensors, as tallies say it; and "8 bits" and the like.
MASKS, SMALLER = "bits of masks", "smaller type"

_CAST = torch.ops.prims.convert_element_type.default
_MOST_STEPS = 8


@dataclass(frozen=True)
class As:
    """What crosses the cut in the place of a tensor: the packed result of the node of forward,
    which backward reads where it read the result of the node `back`. kind: as a tally has it."""

    kind: str
    node: fx.Node
    back: fx.Node


def _set_value(node: fx.Node) -> None:
    """Gives a node that was made its fake tensor, and its inputs the strides that they have here:
    without "eager_input_vals" inductor hands over the result of a convolution in another order of
    memory, and the words are of that order."""
    values = tuple(each.meta["val"] if isinstance(each, fx.Node) else each for each in node.args)
    node.meta["eager_input_vals"] = (values, {})
    with torch.no_grad():
        node.meta["val"] = node.target(*values)


class Packing:
    """Packs what a forward graph hands to its backward graph.

    under_hooks: how, where the packer is around the graph and not in it.
    """

    def __init__(
        self,
        forward: fx.GraphModule,
        backward: fx.GraphModule,
        num_outputs: int,
        static: Any,
        under_hooks: str | None,
    ):
        self._modules = forward, backward
        self._forward, self._backward = forward.graph, backward.graph
        self._begins = _begins(self._forward)
        self._under_hooks = None if self._begins else under_hooks
        self._output = self._forward.output_node()
        self._num_outputs = num_outputs
        inputs = self._forward.find_nodes(op="placeholder")
        gradients = self._backward.output_node().args[0]
        wanted = {node for node, to in zip(inputs, gradients, strict=False) if to is not None}
        # Without the state of a packer as its input it is a block, or a piece that DDP cut off.
        self._rules = Forward({inputs[i] for i in static}, wanted, not self._begins)
        self._rules.read(self._forward)
        self._named = {node.name: node for node in self._forward.nodes}
        self._readers = {
            node.name: node
            for node in self._backward.find_nodes(op="placeholder")
            if "tangents" not in node.name
        }
        self._of_gradients = of_gradients(self._backward, set(self._readers.values()))
        # By nodes of forward those of backward: masks, and results of softmax.
        self._unpacked: dict[fx.Node, fx.Node] = {}
        self._numbers = itertools.count()
        self._tally: Counter = Counter()

    def run(self) -> None:
        outputs = list(self._output.args[0])
        saved_outputs = outputs[self._num_outputs :]
        read = [node for node in saved_outputs if self._is_read(node)]
        seed = self._seed()
        left: dict[fx.Node, str] = {}
        words: dict[fx.Node, fx.Node] = {}
        # What comes first may spare others: a softmax's result what it is computed from, and with a
        # mask its copy after dropout.
        for is_first in (True, False):
            for node in [node for node in read if node not in words and self._is_read(node)]:
                reader = Reader(self._readers[node.name], self._of_gradients)
                how = self._under_hooks or reader.how()
                if how is None:
                    continue
                saved = self._as_what(node, reader, how)
                if isinstance(saved, str):
                    left[node] = saved
                    continue
                goes_first = saved.kind == MASKS or saved.back is not reader.saved
                if is_first == goes_first and (is_first or not self._compute_again(node)):
                    words[node] = self._pack(saved, how, seed, num_bytes(node.meta["val"]))
                    self._unpack(saved, reader.saved, words[node])
        unread = [node for node in read if node not in words and not self._is_read(node)]
        kept = [words.get(node, node) for node in saved_outputs if node not in unread]
        self._output.args = ((*outputs[: self._num_outputs], *kept),)
        for node in unread:
            self._backward.erase_node(self._readers[node.name])
            if self._rules.reason(node) not in LIVE_ANYWAY:
                self._count("packed", "not saved", num_bytes(node.meta["val"]), 0)
        for node, why in left.items():
            if node not in unread:
                size = num_bytes(node.meta["val"])
                self._count("left", why, size, size)
        self._tell(seed)
        for module in self._modules:
            module.graph.lint()
            module.recompile()

    def _is_read(self, node: Any) -> bool:
        """Whether it is a tensor that backward reads."""
        return (
            isinstance(node, fx.Node)
            and node.name in self._readers
            and bool(self._readers[node.name].users)
            and isinstance(node.meta["val"], torch.Tensor)
        )

    def _as_what(self, node: fx.Node, reader: Reader, how: str) -> As | str:
        """Or why it is saved as it is."""
        if how == EXCLUDED:
            why = self._rules.reason(node)
            return why if why in LIVE_ANYWAY else REASONS["excluded"]
        bits, _, _, min_elements = parse(how)
        value = node.meta["val"]
        if value.dtype == torch.bool and owns_memory(node):
            # As if it were of a type that is packed: the rest of its form decides.
            why = reason_by_value(value, min_elements, torch.float32)
            return why or As(MASKS, node, reader.saved)
        why = self._rules.reason(node) or reason_by_value(value, min_elements)
        if not why and not bits:
            return REASONS["exact"]
        why = why or reader.reason()
        if not why:
            return As(f"{bits} bits", node, reader.saved)
        if why == REASONS["softmax"] and (result := reader.result()) is not None:
            return self._as_result(result, num_bytes(value), bits, min_elements) or why
        return why

    def _as_result(self, back: fx.Node, size: int, bits: int, min_elements: int) -> As | None:
        """The result of a softmax in the place of what it reads, `size` bytes: what an eager pass
        saves. The logarithm of one with 16 bits, if that is less."""
        node = self._named.get(back.name)
        if node is None or back.op == "call_function" != node.op:
            return None
        value = node.meta["val"]
        if is_logarithm(node):
            is_less = hint(value.numel()) * torch.bfloat16.itemsize < size
            return As(SMALLER, node, back) if is_less else None
        why = self._rules.reason(node) or reason_by_value(value, min_elements)
        why = why or Reader(back, self._of_gradients).reason()
        return None if why else As(f"{bits} bits", node, back)

    # ---- forward ----------------------------------------------------------------------------

    def _seed(self) -> fx.Node:
        """The seed of this run, in the forward graph."""
        graph = self._forward
        if self._begins:
            begin = self._begins[0]
            if begin.target is ops.begin_saved_.default:
                return begin
            with graph.inserting_after(begin):
                seed = graph.call_function(operator.getitem, (begin, 0))
            seed.meta["val"] = begin.meta["val"][0]
            return seed
        inputs = graph.find_nodes(op="placeholder")
        tensors = [node for node in inputs if isinstance(node.meta["val"], torch.Tensor)]
        like = min(tensors, key=lambda node: not node.meta["val"].is_cpu)  # as the seed is
        with graph.inserting_after(inputs[-1]):
            seed = graph.call_function(ops.draw_saved.default, (like, ""))
        with torch.no_grad():
            seed.meta["val"] = ops.draw_saved(like.meta["val"], "")
        return seed

    def _pack(self, saved: As, how: str, seed: fx.Node, plain: int) -> fx.Node:
        graph = self._forward
        bits, group, rounding, _ = parse(how)
        after = max(saved.node, seed)  # in the order of the graph
        while after.op == "placeholder" and after.next.op == "placeholder":
            after = after.next
        if saved.kind == MASKS:
            target, arguments = ops.pack_bools.default, (saved.node,)
        elif saved.kind == SMALLER:
            target, arguments = _CAST, (saved.node, torch.bfloat16)
        else:
            target = ops.pack_saved_in_graph.default
            arguments = (saved.node, seed, next(self._numbers), bits, group, rounding)
        with graph.inserting_after(after):
            words = graph.call_function(target, arguments)
        _set_value(words)
        words.meta["how"] = how
        self._count("packed", saved.kind, plain, num_bytes(words.meta["val"]))
        return words

    def _count(self, what: str, name: str, plain: int, now: int) -> None:
        if name in LIVE_ANYWAY:
            return
        for field, number in (("tensors", 1), ("plain", plain), ("now", now)):
            self._tally[what, name, field] += number

    def _tell(self, seed: fx.Node) -> None:
        """What the graph saves is said by the graph, which may come from a cache."""
        lines = []
        for what, name in dict.fromkeys(key[:2] for key in self._tally):
            counts = [self._tally[what, name, field] for field in ("tensors", "plain", "now")]
            lines.append("\t".join([what, name, *map(str, counts)]))
        text = "\n".join(lines)
        if not self._begins:
            seed.args = (seed.args[0], text)
        else:
            self._begins[0].kwargs = self._begins[0].kwargs | {"saved": text}

    # ---- backward ---------------------------------------------------------------------------

    def _unpack(self, saved: As, old: fx.Node, words: fx.Node) -> None:
        """Puts the words in the place of the input `old`, and what they are unpacked to in that of
        saved.back."""
        graph = self._backward
        with graph.inserting_before(old):
            new = graph.placeholder(words.name)
        new.meta = {k: v for k, v in old.meta.items() if k not in ("val", "tensor_meta")}
        new.meta["val"] = words.meta["val"]
        value = saved.back.meta["val"]
        bits, group, _, _ = parse(words.meta.pop("how"))
        # Without holes, if it had some.
        mode = torch._subclasses.fake_tensor.maybe_get_fake_mode(value)
        with mode, torch.no_grad():
            value = torch.empty_like(value)
        with graph.inserting_before(min(saved.back.users)):
            if saved.kind == SMALLER:
                unpacked = graph.call_function(_CAST, (new, value.dtype))
            else:
                sizes = [[self._size(n) for n in each] for each in (value.shape, value.stride())]
                if saved.kind == MASKS:
                    unpacked = graph.call_function(ops.unpack_bools.default, (new, *sizes))
                else:
                    unpacked = graph.call_function(
                        ops.unpack_saved.default, (new, *sizes, value.dtype, bits, group)
                    )
        unpacked.meta["val"] = value
        saved.back.replace_all_uses_with(unpacked)
        if saved.back is not old:
            graph.eliminate_dead_code()
        graph.erase_node(old)
        if saved.kind == MASKS or saved.back is not old:
            self._unpacked[saved.node] = unpacked

    def _compute_again(self, node: fx.Node) -> bool:
        """Has backward compute it from a softmax's result that it unpacks anyway, if that takes a
        few products with masks and constants: the copy that dropout made. What is linear in the one
        is linear in the other, so that unbiased gradients stay so."""
        steps: set[fx.Node] = set()
        waiting = [node]
        while waiting:
            each = waiting.pop()
            if each in self._unpacked or each in steps:
                continue
            if len(steps) == _MOST_STEPS or not is_view_or_product(each):
                return False
            steps.add(each)
            waiting += each.all_input_nodes
        sources = {each for step in steps for each in step.all_input_nodes} - steps
        rounded = {each for each in sources if each.meta["val"].dtype != torch.bool}
        for step in sorted(steps):
            num_rounded = sum(isinstance(each, fx.Node) and each in rounded for each in step.args)
            if num_rounded > 1:
                return False
            if num_rounded == 1:
                rounded.add(step)
        if not rounded:
            return False
        old = self._readers[node.name]
        first = min(old.users)
        back = {each: self._unpacked[each] for each in sources}
        for each in sorted(back.values()):
            if first < each:
                if any(argument.op != "placeholder" for argument in each.all_input_nodes):
                    return False  # a size that is computed
                first.prepend(each)
        with self._backward.inserting_before(first):
            for step in sorted(steps):
                back[step] = self._backward.node_copy(step, back.__getitem__)
        old.replace_all_uses_with(back[node])
        return True

    def _size(self, size: int | torch.SymInt) -> Any:
        """A size in the backward graph; a symbol is one of its inputs, or is computed of them."""
        if isinstance(size, int):
            return size
        from torch.utils._sympy.interp import sympy_interp
        from torch.utils._sympy.reference import PythonReferenceAnalysis

        symbols = {
            node.meta["val"].node.expr: fx.Proxy(node)
            for node in self._backward.find_nodes(op="placeholder")
            if isinstance(node.meta["val"], torch.SymInt)
        }
        expression = size.node.expr
        result = symbols.get(expression)
        if result is None:
            result = sympy_interp(PythonReferenceAnalysis, symbols, expression)
        if not isinstance(result, fx.Proxy):
            return int(result)
        result.node.meta.setdefault("val", size)
        return result.node


def _begins(graph: fx.Graph) -> list[fx.Node]:
    """Where the graph draws from the state of a packer; functionalization has wrapped it."""
    begin = ops.begin_saved_.default
    return [
        node
        for node in graph.nodes
        if node.op == "call_function" and begin in (node.target, *node.args[:1])
    ]
