"""inductor's partitioner, and behind it what packs the tensors that cross the cut.

Its own module, because inductor takes long to import: graphs.py imports it when a model that packs
is traced.
"""

from __future__ import annotations

import operator
from collections import Counter
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
    REASONS,
    Forward,
    Reader,
    num_bytes,
    of_gradients,
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
        self._readers = {
            node.name: node
            for node in self._backward.find_nodes(op="placeholder")
            if "tangents" not in node.name
        }
        self._tally: Counter = Counter()

    def run(self) -> None:
        outputs = list(self._output.args[0])
        gradients = of_gradients(self._backward, set(self._readers.values()))
        seed = self._seed()
        packed: dict[fx.Node, fx.Node] = {}
        for i in range(self._num_outputs, len(outputs)):
            node = outputs[i]
            is_read = isinstance(node, fx.Node) and node.name in self._readers
            if not is_read or not isinstance(node.meta["val"], torch.Tensor):
                continue
            reader = Reader(self._readers[node.name], gradients)
            how = self._under_hooks or reader.how()
            if how is None:
                continue
            why = self._reason(node, reader, how)
            if why:
                self._count("left", why, num_bytes(node.meta["val"]), num_bytes(node.meta["val"]))
                continue
            outputs[i] = self._pack(node, how, seed, len(packed))
            packed[node] = outputs[i]
        self._output.args = (tuple(outputs),)
        self._tell(seed)
        for node, words in packed.items():
            self._unpack(node, words)
        for module in self._modules:
            module.graph.lint()
            module.recompile()

    def _reason(self, node: fx.Node, reader: Reader, how: str) -> str:
        if how == EXCLUDED:
            return REASONS["excluded"]
        bits, _, _, min_elements = parse(how)
        why = self._rules.reason(node) or reason_by_value(node.meta["val"], min_elements)
        return why or reader.reason() or ("" if bits else REASONS["exact"])

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
        like = next(node for node in inputs if isinstance(node.meta["val"], torch.Tensor))
        with graph.inserting_after(inputs[-1]):
            seed = graph.call_function(ops.draw_saved.default, (like, ""))
        with torch.no_grad():
            seed.meta["val"] = ops.draw_saved(like.meta["val"], "")
        return seed

    def _pack(self, node: fx.Node, how: str, seed: fx.Node, number: int) -> fx.Node:
        graph = self._forward
        bits, group, rounding, _ = parse(how)
        after = max(node, seed)  # in the order of the graph
        while after.op == "placeholder" and after.next.op == "placeholder":
            after = after.next
        arguments = (node, seed, number, bits, group, rounding)
        with graph.inserting_after(after):
            words = graph.call_function(ops.pack_saved_in_graph.default, arguments)
        values = (each.meta["val"] if isinstance(each, fx.Node) else each for each in arguments)
        with torch.no_grad():
            words.meta["val"] = ops.pack_saved_in_graph(*values)
        words.meta["how"] = how
        plain, now = num_bytes(node.meta["val"]), num_bytes(words.meta["val"])
        self._count("packed", f"{bits} bits", plain, now)
        return words

    def _count(self, what: str, name: str, plain: int, now: int) -> None:
        if name in (REASONS["leaf"], REASONS["of leaf"]):
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

    def _unpack(self, node: fx.Node, words: fx.Node) -> None:
        graph = self._backward
        old = self._readers[node.name]
        with graph.inserting_before(old):
            new = graph.placeholder(words.name)
        new.meta = {k: v for k, v in old.meta.items() if k not in ("val", "tensor_meta")}
        new.meta["val"] = words.meta["val"]
        value = old.meta["val"]
        bits, group, _, _ = parse(words.meta.pop("how"))
        # Without holes, if it had some.
        mode = torch._subclasses.fake_tensor.maybe_get_fake_mode(value)
        with mode, torch.no_grad():
            value = torch.empty_like(value)
        first = min(old.users)
        with graph.inserting_before(first):
            sizes = [[self._size(n) for n in each] for each in (value.shape, value.stride())]
            unpacked = graph.call_function(
                ops.unpack_saved.default, (new, *sizes, value.dtype, bits, group)
            )
        unpacked.meta["val"] = value
        old.replace_all_uses_with(unpacked)
        graph.erase_node(old)

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
