"""Packed saved tensors in graphs of torch.compile (inductor).

A packer marks the nodes of its module while they are traced (fx.traceback.annotate), and the graph
draws from its state, a tensor that is an input of the graph. Then inductor's partitioner cuts the
graph into forward and backward; what crosses the cut, and may be packed, is packed behind its node
in the one and unpacked before its first reader in the other.

Why here, at ``torch._inductor.config.custom_partitioner_fn``, of what torch 2.13 offers:
- saved-tensor hooks that are inlined see neither who reads a tensor nor a counter;
- a pass over the joint graph (``joint_custom_post_pass``) comes before the cut: it would have to
  guess what will be saved, and to repeat for backward what the partitioner would recompute, from
  what is unpacked. Here the partitioner has chosen already, with all its means;
- like that pass, and unlike ``torch._functorch.config.joint_custom_pass``, a partitioner has a
  uuid(), which is part of the keys of both caches of compiled graphs.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch
from torch import fx

from .graph_rules import KEY

# What modules say that are traced, by the context of the trace.
_traced: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


@torch.compiler.assume_constant_result
def mark_trace(how: str) -> None:
    """Called while torch.compile traces a module that packs, or packs nothing, before its forward,
    and with an empty text after it. Keys of caches have the nodes of a graph without their marks:
    two models may differ in nothing but where these begin and end."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    install()
    tracers = InstructionTranslator.current_tx().output.tracers
    place = (how, *(len(tracer.graph.nodes) for tracer in tracers))
    _traced.setdefault(torch._guards.TracingContext.get(), []).append(place)


def marks_of_trace() -> tuple[tuple[str | int, ...], ...]:
    context = torch._guards.TracingContext.try_get()
    return () if context is None else tuple(_traced.get(context, ()))


def how_under_hooks() -> str | None:
    """How the hooks that are set now pack, if they are ours: those of a packer around a part that
    is compiled."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return getattr(hooks[0], KEY, None) if hooks else None


_PARTITIONER = "custom_partitioner_fn"


def install() -> None:
    """Puts our partitioner into inductor's settings, around the one that is there. The options of a
    call of torch.compile replace the settings later, when inductor begins."""
    import torch._inductor.config as config

    from .partitioner import Partitioner

    options = _options_of_backend()
    if _PARTITIONER in options:
        if not isinstance(options[_PARTITIONER], Partitioner):
            options[_PARTITIONER] = Partitioner(options[_PARTITIONER])
    elif not isinstance(config.custom_partitioner_fn, Partitioner):
        config.custom_partitioner_fn = Partitioner(config.custom_partitioner_fn)


def _options_of_backend() -> dict[str, Any]:
    """torch.compile(options=...) of what is being traced, if its backend is inductor."""
    from torch._dynamo.eval_frame import innermost_backend

    backend = innermost_backend(_output_graph().compiler_fn)
    cuts_graphs = getattr(backend, "__self__", None)  # for DistributedDataParallel
    backend = innermost_backend(getattr(cuts_graphs, "backend_compile_fn", backend))
    is_inductor = isinstance(backend, torch._TorchCompileInductorWrapper)
    return backend.config if is_inductor else {}


def _output_graph() -> Any:
    """dynamo's, of what is being traced. While it is made it is asked for hooks, and then nothing
    but the frames of Python leads to it."""
    from torch._dynamo.output_graph import OutputGraph

    frame = sys._getframe()
    while frame is not None and not isinstance(frame.f_locals.get("self"), OutputGraph):
        frame = frame.f_back
    if frame is not None:
        return frame.f_locals["self"]
    from torch._dynamo.symbolic_convert import InstructionTranslator

    return InstructionTranslator.current_tx().output


def text_of(bits: int, group: int, rounding: str, min_elements: int) -> str:
    """How a packer packs, as nodes have it."""
    return f"{bits} {group} {rounding} {min_elements}"


def parse(how: str) -> tuple[int, int, str, int]:
    bits, group, rounding, min_elements = how.split()
    return int(bits), int(group), rounding, int(min_elements)


# ---- hooks ---------------------------------------------------------------------------------------


def _graph_for_trace(hook: fx.GraphModule) -> fx.Graph:
    """dynamo asks for the graph of a hook when it begins to trace: in time for our partitioner."""
    install()
    return hook._graph


def hooks_for(how: str, pack: Any, unpack: Any) -> torch.autograd.graph.saved_tensors_hooks:
    """Hooks for eager passes, that torch.compile sees around the parts it compiles: graphs guard on
    the identity of hooks that are GraphModules, and on no others. It inlines them, which changes
    nothing, because for it they are the identity, and does not call them when the graph runs."""
    modules = []
    for call in (pack, unpack):
        graph = fx.Graph()
        graph.output(graph.placeholder("x"))
        module = fx.GraphModule(torch.nn.Module(), graph)
        cls = type(module)  # its own
        cls.__call__ = staticmethod(call)
        cls.graph = property(_graph_for_trace)
        setattr(cls, KEY, how)
        modules.append(module)
    return torch.autograd.graph.saved_tensors_hooks(*modules)
