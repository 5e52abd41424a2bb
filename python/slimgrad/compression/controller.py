"""What compress() returns: looks after the converted layers of a model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from .._support import number
from ..nn.conversion_report import ConversionReport
from ..nn.layers import WAYS, SparseState
from ..nn.tuning import timed_ways
from ..saved.modules import SAVED, SavedModules
from .gate import GradientGate
from .gates import Gates
from .gradients import PRODUCTS, LossScale, Prune, Quantize
from .handles import LayerHandle
from .run_log import RunLog, log_controller
from .selection import Selector, names_in, selects
from .state import Holders, holders_in, load_into, name_of_layer, state_of
from .summary import summary_lines


class Replaced(NamedTuple):
    """A module that another one was put in the place of."""

    parent: nn.Module
    name: str
    original: nn.Module
    new: nn.Module


class Controller:
    """The converted layers of a model, their state and their reports.

    layers: by name, the layers whose gradient is compressed.
    left: names of layers that are not, each with the reason.
    activations: the report of the activations that were converted and of those that were not.
    saved: the modules that pack what they save; its ``tally`` is what the last pass saved.
    """

    def __init__(self, model: nn.Module, prune: Prune | None, quantize: Quantize | None):
        self.model = model
        self.prune = prune
        self.quantize = quantize
        self.layers: dict[str, LayerHandle] = {}
        self.left: dict[str, str] = {}
        self.activations = ConversionReport()
        self.saved: SavedModules | None = None
        self._gates = Gates({})
        self._replaced: list[Replaced] = []
        self._log = RunLog()
        self._settings: dict[str, Any] = {}  # as a log has them, beside prune and quantize
        self._is_removed = False

    @property
    def converted(self) -> list[str]:
        """Names of all that was converted: layers whose gradient is compressed (of an attention
        its projections), activations, and the modules that pack what they save, of which "" is the
        whole model."""
        names = [name for layer in self.layers.values() for name in layer.parts]
        names += [name for name, _, _ in self.activations.converted]
        names += [] if self.saved is None else self.saved.packing
        return list(dict.fromkeys(names))

    @property
    def gates(self) -> dict[str, GradientGate]:
        """By layer, or by layer and pruned product."""
        return self._gates.by_name()

    @property
    def sparse(self) -> dict[str, SparseState]:
        """The state of layers with a sparse backward pass."""
        return {k: state for layer in self.layers.values() for k, state in layer.states().items()}

    # ---- what the layers do -----------------------------------------------------------------

    def report(self) -> dict[str, dict]:
        """By layer, what its last backward pass saw and did.

        A layer with a sparse backward pass has an entry for each pruned product, ``layer.weight``
        and ``layer.input``, which also says how it was done (``way``), from which sparsity on it is
        sparse (``break_even``) and who found that (``chosen_by``: "model", "tune" or "user").
        """
        return self._gates.group.report(False)

    def warnings(self) -> list[str]:
        """Where the last backward pass harmed a layer, in words, with what helps."""
        return self._gates.group.warnings()

    def summary(self, width: int | None = None, worst_first: bool = False) -> str:
        """A table of every layer: calls, sparsity achieved and wanted, errors, format, ...; what
        was left and why; the activations; the warnings.

        width: no line is longer; by default that of the terminal, or 80. Narrow tables have fewer
            columns, and a name that is too long for its column stands on a line of its own. At
            least 60.
        worst_first: the layers of the lowest cosine first, those that were not compressed last.
        """
        if self._is_removed:
            return "removed: the model is as it was before compress()"
        lines = summary_lines(
            self.report(),
            self.left,
            self.activations,
            self.warnings(),
            saved=self.saved,
            prunes=self.prune is not None,
            width=width,
            worst_first=worst_first,
        )
        return "\n".join(lines)

    def log(self, to, step: int | None = None, *, histograms: bool = False, **metrics) -> None:
        """Writes what the last backward pass did: lines of JSON to a path or file, as docs/runs.md
        has them, which ``python -m slimgrad report`` draws; or scalars to a SummaryWriter.

        step: numbers the entry; by default the largest number of backward passes of a layer. To be
            given where no gradient is compressed, and nothing counts passes.
        histograms: also write those of the gradients, and the laws that fit them.
        metrics: what you know of the training at this step: loss, accuracy, test_loss,
            test_accuracy, seconds (since the last such line), epoch, rate.

        A file begins with a line about the run: what compress() was told. One that is there already
        is appended to; other settings, or a step that is not beyond its last, begin another run.
        log_run() writes about a run without compression.
        """
        self._check_not_removed("log")
        log_controller(self, to, step, histograms, metrics)

    # ---- changing one's mind ----------------------------------------------------------------

    def refresh(self) -> None:
        """Plans anew in the next backward pass: for statistics once an epoch, as in the paper."""
        self._check_not_removed("refresh")
        self._gates.group.refresh()

    def set_sparsity(self, sparsity: float, product: str | None = None) -> None:
        """Another sparsity from now on; ends a schedule. ``product``: "weight" or "input" of layers
        with a sparse backward pass, whose other product keeps its sparsity; by default both."""
        self._check_not_removed("set_sparsity")
        if self.prune is None:
            raise ValueError("[set_sparsity] expected a model compressed with Prune")
        if not 0 <= number(sparsity, "set_sparsity", "sparsity") < 1:
            raise ValueError(f"[set_sparsity] expected 0 <= sparsity < 1, got {sparsity}")
        if product is not None and (product not in PRODUCTS or not self.prune.is_sparse):
            raise ValueError(
                "[set_sparsity] expected product to be 'weight' or 'input' of a model compressed "
                f"with sparse_backward, got {product!r}"
            )
        if self.prune.is_sparse:
            changed = dict.fromkeys(PRODUCTS if product is None else (product,), sparsity)
            products: dict[str, Any] = self.prune.products | changed
            self.prune = replace(self.prune, sparsity=None, **products)
        else:
            self.prune = replace(self.prune, sparsity=sparsity)
        before = self._gates.group.names()
        self._gates.group.set_sparsity(sparsity, product or "")
        # What is between steps knows gates, not sparsities; a new one is compiled again each time.
        if self._gates.group.names() != before:
            self._gather_gates()

    def set_way(self, way: str, layers: Selector = None, product: str | None = None) -> None:
        """How products of layers with a sparse backward pass are done from now on: "sparse",
        "dense" (and exact), or "auto", by their break-even sparsity.

        layers: a name or names (with all below them), or a predicate (name, module), as for
            compress(include=); by default all.
        product: "weight" or "input"; by default both.
        """
        if not self.sparse:
            raise ValueError("[set_way] expected a model compressed with sparse_backward")
        if way not in WAYS:
            raise ValueError(f"[set_way] expected way to be one of {', '.join(WAYS)}, got {way!r}")
        if product is not None and product not in PRODUCTS:
            raise ValueError(f"[set_way] expected product 'weight' or 'input', got {product!r}")
        for state in self._sparse_layers(layers):
            state.set_way(way, product)

    def _sparse_layers(self, layers: Selector) -> list[SparseState]:
        if layers is None:
            return list(self.sparse.values())
        modules = {name: layer.module for layer in self.layers.values() for name in layer.states()}
        for prefix in names_in(layers):
            if not any(selects(prefix, name, module) for name, module in modules.items()):
                raise ValueError(
                    "[set_way] expected names of layers with a sparse backward pass in layers, got "
                    f"{prefix!r}"
                )
        return [s for name, s in self.sparse.items() if selects(layers, name, modules[name])]

    def tune(self, step: Callable[[], Any], rounds: int = 3) -> dict[str, dict]:
        """Asks the clock, on this machine as it is now, which way of every product is the faster,
        and pins the answer: from then on its break-even sparsity is the measured one.

        step: does one forward and backward pass, and changes no parameter; it is called ``rounds``
            times, in which every product that is set to "auto" runs both ways, and the best times
            count. Parameters' gradients, the model's buffers and torch's generator on the CPU are
            put back afterwards, so that a run draws the same numbers with and without tuning.

        Two calls may choose differently: a run is reproduced by loading its state, not by tuning
        again. Returns, by product, what report() says of it, with the best seconds of both ways. A
        product that ``step`` does not reach, or whose gradient is nothing but zeros, stays as it
        was and is not in it. Ranks of a distributed job tune each for themselves.
        """
        if not self.sparse:
            raise ValueError("[tune] expected a model compressed with sparse_backward")
        if not callable(step):
            raise ValueError(f"[tune] expected a callable that does a step, got {step!r}")
        if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
            raise ValueError(f"[tune] expected rounds >= 1, got {rounds!r}")
        with timed_ways(self.model, list(self.sparse.values())):
            for _ in range(rounds):
                step()
        ways = self._gates.group.ways()
        rows = {name: row for name, row in ways.items() if "trials" in row}
        if not rows:
            raise ValueError(
                "[tune] expected a step whose backward pass reaches a product that could be sparse "
                "and is set to 'auto', got none"
            )
        return rows

    # ---- saving and restoring ---------------------------------------------------------------

    def _holders(self) -> Holders:
        saved = {} if self.saved is None else {SAVED: self.saved.packer}
        return saved | {
            name_of_layer(".".join(filter(None, (name, part)))): holder
            for name, layer in self.layers.items()
            if layer.is_attached()
            for part, holder in holders_in(layer.module).items()
        }

    def _told(self) -> dict[str, Any]:
        """What layers are told together."""
        others = {} if self.saved is None else self.saved.told()
        return {"prune": self._allocating, "scale": self._dynamic_scale, "others": others}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What the model's own state_dict() does not hold: seeds, counters, plans in force, what
        was measured last, pinned ways. Tensors by name, on the CPU, for safetensors, torch.save
        and torch.distributed.checkpoint. Each rank of a distributed job has its own."""
        self._check_not_removed("state_dict")
        return state_of(self._holders(), self._told())

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Goes on where state_dict() was taken, to the bit.

        What was set in compress() or by set_sparsity() is not part of a state: where the state was
        saved under other settings, or for other layers, a StateWarning names both, and what is set
        now holds. A state that is damaged raises ValueError, and nothing has changed.
        """
        self._check_not_removed("load_state_dict")
        load_into(self._holders(), state, self._told())

    def remove(self) -> list[str]:
        """Restores the model: no gates, no hooks, no state. Layers that were replaced since, or
        taken out of the model, are left as they are; a warning and the result name them. Afterwards
        summary() says so, and there is nothing to log, to save or to load."""
        self._is_removed = True
        self._gates.detach()
        there = set(self.model.modules())
        gone = [] if self.saved is None else self.saved.detach()
        self.saved = None
        for name, layer in self.layers.items():
            if layer.module not in there or not layer.is_attached():
                gone.append(name or "(model)")
            if layer.is_attached():
                layer.detach()
        self.layers.clear()
        self._gates = Gates({})
        for parent, name, original, new in self._replaced:
            if parent._modules.get(name) is not new:
                gone.append(f"{name} of a {type(parent).__name__}")
                continue
            original.train(new.training)
            setattr(parent, name, original)
        self._replaced.clear()
        self.activations = ConversionReport()
        self.left.clear()
        if gone:
            warnings.warn(
                f"[remove] replaced since, or no longer in the model: {', '.join(gone)}",
                stacklevel=2,
            )
        return gone

    def _check_not_removed(self, op: str) -> None:
        if self._is_removed:
            raise ValueError(f"[{op}] expected a compressed model, got one after remove()")

    # ---- what looks at all layers -----------------------------------------------------------

    @property
    def _allocating(self) -> Prune | None:
        return self.prune if self.prune is not None and self.prune.allocation != "uniform" else None

    @property
    def _dynamic_scale(self) -> LossScale | None:
        scale = self.quantize.scale if self.quantize else None
        return scale if isinstance(scale, LossScale) and scale.dynamic else None

    def _gather_gates(self) -> None:
        """Puts gates together that are looked at together."""
        self._gates.detach()
        parts = {k: part for layer in self.layers.values() for k, part in layer.parts.items()}
        self._gates = Gates(parts, self._allocating, self._dynamic_scale)
        self._gates.attach()
