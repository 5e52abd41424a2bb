"""compress(model): puts gates behind the layers of a model, converts its activations, and looks
after both."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from ._library import ops
from .advice import advice, model_advice
from .gate import GradientGate
from .gradients import LossScale, Prune, Quantize, parse_gradients
from .nn.convert import ConversionReport, convert_activations
from .nn.layers import (
    PRODUCTS,
    SPARSE,
    WAYS,
    SparseState,
    can_be_sparse,
    make_dense,
    make_sparse,
    new_product_plan,
)
from .nn.tuning import timed_ways
from .plan import SCHEDULE, SCHEDULE_ROWS, Plan, layer_report, new_plan

GATE = "slimgrad_gate"  # the name of the submodule that a compressed layer gets

_LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)

Selector = str | Sequence[str] | Callable[[str, nn.Module], bool] | None


def _reason(row: dict) -> str:
    """Why a product is done as it is."""
    if row["chosen_by"] == "user":
        return "as was set"
    if row["break_even"] is None:
        return "not chosen yet"
    pays = "never" if row["break_even"] == 1 else f"from {row['break_even']:.2f}"
    return f"sparse pays {pays} ({row['chosen_by']})"


def _note(row: dict) -> str:
    """What a line of the summary says besides its numbers."""
    if not row["calls"]:
        return ""
    if "way" in row:
        return f"  {row['way']}, {_reason(row)}"
    return "" if row["compressed"] else "  (left alone: small or warm-up)"


def _gate_output(module: nn.Module, _inputs, output: torch.Tensor) -> torch.Tensor:
    return getattr(module, GATE)(output)


def _check_names(model: nn.Module, selector: Selector, what: str) -> None:
    """A name that no module has is a mistake, most likely in its spelling."""
    known = {name for name, _ in model.named_modules(remove_duplicate=False)}
    for name in _names(selector):
        if name not in known:
            raise ValueError(f"[compress] expected names of modules in {what}, got {name!r}")


def _names(selector: Selector) -> list[str]:
    if selector is None or callable(selector):
        return []
    return [selector] if isinstance(selector, str) else list(selector)


def _selected(name: str, module: nn.Module, selector: Selector) -> bool:
    if callable(selector):
        return bool(selector(name, module))
    return any(name == prefix or name.startswith(prefix + ".") for prefix in _names(selector))


class _AcrossLayers:
    """The hook before a model's forward that looks at all layers: allocation, dynamic loss scale.

    An object that holds the gates, not a closure: copies and pickles of the model then have one
    that holds the gates of theirs.
    """

    def __init__(
        self, gates: dict[str, GradientGate], prune: Prune | None, scale: LossScale | None
    ):
        self.gates = list(gates.values())
        self.prune = prune
        self.scale = scale
        self.targets = {} if prune is None else prune.targets_of(gates)

    def __call__(self, _module, _inputs) -> None:
        if not torch.is_grad_enabled():
            return
        plans = [gate.plan for gate in self.gates]
        stats = [gate.stats for gate in self.gates]
        prune, scale = self.prune, self.scale
        if prune is not None:
            targets = list(self.targets), list(self.targets.values())
            ops.allocate_plans_(plans, stats, prune.allocation, prune.method, prune.cap, *targets)
        if scale is not None:
            ops.update_loss_scale_(plans, stats, scale.growth_interval)


class Controller:
    """What compress() returns: the gates of a model, their state and their reports.

    converted: names of the layers whose gradient is compressed.
    left: names of layers that are not, each with the reason.
    activations: the report of the activations that were converted and of those that were not.
    """

    def __init__(self, model: nn.Module, prune: Prune | None, quantize: Quantize | None):
        self.model = model
        self.prune = prune
        self.quantize = quantize
        self.gates: dict[str, GradientGate] = {}  # by layer, or by layer and product
        self.sparse: dict[str, SparseState] = {}  # by layer
        self.left: dict[str, str] = {}
        self._hooks: list[Any] = []  # of the layers
        self._across_hooks: list[Any] = []  # of the model
        self.activations = ConversionReport()
        self._replaced: list[tuple[nn.Module, str, nn.Module]] = []  # parent, name, original

    @property
    def converted(self) -> list[str]:
        return list(self.sparse or self.gates)

    # ---- what the layers do -----------------------------------------------------------------

    def report(self) -> dict[str, dict]:
        """By layer, what its last backward pass saw and did.

        A layer with a sparse backward pass has an entry for each pruned product, ``layer.weight``
        and ``layer.input``, which also says how it was done (``way``), from which sparsity on it is
        sparse (``break_even``) and who found that (``chosen_by``: "model", "tune" or "user").
        """
        report = {name: layer_report(gate.plan, gate.stats) for name, gate in self.gates.items()}
        for name, state in self.sparse.items():
            for product, choice in state.choices().items():
                if f"{name}.{product}" in report:
                    report[f"{name}.{product}"] |= choice
        return report

    def warnings(self) -> list[str]:
        """Where the last backward pass harmed a layer, in words, with what helps."""
        report = self.report()
        return model_advice(report, self.prune) + [
            sentence
            for name, row in report.items()
            for sentence in advice(name, row, self.prune, self.quantize)
        ]

    def summary(self) -> str:
        """A table of every layer: spread, sparsity wanted and achieved, errors, format, scale."""
        head = (
            f"{'layer':28} {'calls':>6} {'values':>9} {'log2std':>7} {'wanted':>7} {'zeros':>7} "
            f"{'cosine':>7} {'rel.err':>7} {'format':>6} {'scale':>9}"
        )
        lines = [head]
        for name, row in self.report().items():
            wanted = f"{row['sparsity_wanted']:.4f}" if self.prune else "-"
            format = row["format"] or "-"
            scale = f"{row['scale']:.2e}" if row["scale"] else "-"
            note = _note(row)
            lines.append(
                f"{name[-28:]:28} {row['calls']:6d} {row['elements']:9d} "
                f"{row['log_std'] / math.log(2):7.2f} {wanted:>7} {row['sparsity']:7.4f} "
                f"{row['cosine']:7.4f} {row['relative_error']:7.4f} {format:>6} {scale:>9}{note}"
            )
        lines += [f"{name[-28:]:28} not converted: {why}" for name, why in self.left.items()]
        if self.activations.converted or self.activations.left:
            lines.append(str(self.activations))
        lines += [f"warning: {sentence}" for sentence in self.warnings()]
        return "\n".join(lines)

    def log(self, to, step: int | None = None) -> None:
        """Writes the report: one JSON line to a path or file, or scalars to a SummaryWriter.

        ``step`` numbers the entry; by default the largest number of backward passes of a layer.
        """
        report = self.report()
        if step is None:
            step = max((row["calls"] for row in report.values()), default=0)
        if hasattr(to, "add_scalar"):
            for name, row in report.items():
                for key in ("sparsity", "sparsity_wanted", "cosine", "relative_error", "log_std"):
                    to.add_scalar(f"slimgrad/{key}/{name}", row[key], step)
                if row["scale"]:
                    to.add_scalar(f"slimgrad/scale/{name}", row["scale"], step)
            return
        line = json.dumps({"step": step, "layers": report}) + "\n"
        if hasattr(to, "write"):
            to.write(line)
        else:
            with Path(to).open("a") as file:
                file.write(line)

    # ---- changing one's mind ----------------------------------------------------------------

    def refresh(self) -> None:
        """Plans anew in the next backward pass: for statistics once an epoch, as in the paper."""
        for gate in self.gates.values():
            gate.plan[Plan.DUE] = 1

    def set_sparsity(self, sparsity: float, product: str | None = None) -> None:
        """Another sparsity from now on; ends a schedule. ``product``: "weight" or "input" of layers
        with a sparse backward pass, whose other product keeps its sparsity; by default both."""
        if self.prune is None:
            raise ValueError("[set_sparsity] expected a model compressed with Prune")
        if not 0 <= sparsity < 1:
            raise ValueError(f"[set_sparsity] expected 0 <= sparsity < 1, got {sparsity}")
        if product is not None and (product not in PRODUCTS or not self.sparse):
            raise ValueError(
                "[set_sparsity] expected product to be 'weight' or 'input' of a model compressed "
                f"with sparse_backward, got {product!r}"
            )
        if self.sparse:
            products = PRODUCTS if product is None else (product,)
            self.prune = replace(self.prune, sparsity=None, **dict.fromkeys(products, sparsity))
            gates = [getattr(state, p) for state in self.sparse.values() for p in products]
            for name, state in self.sparse.items():
                self._list_products(name, state)
            self._plan_across_layers()
        else:
            self.prune = replace(self.prune, sparsity=sparsity)
            gates = list(self.gates.values())
        for gate in gates:
            gate.plan[SCHEDULE] = -1
            gate.plan[Plan.SPARSITY] = gate.plan[Plan.TARGET] = sparsity
            gate.plan[Plan.DUE] = 1

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
        modules = dict(self.model.named_modules())
        for prefix in _names(layers):
            if not any(_selected(name, modules[name], prefix) for name in self.sparse):
                raise ValueError(
                    "[set_way] expected names of layers with a sparse backward pass in layers, got "
                    f"{prefix!r}"
                )
        return [s for name, s in self.sparse.items() if _selected(name, modules[name], layers)]

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
        rows = {
            f"{name}.{product}": row
            for name, state in self.sparse.items()
            for product, row in state.choices().items()
            if "trials" in row
        }
        if not rows:
            raise ValueError(
                "[tune] expected a step whose backward pass reaches a product that could be sparse "
                "and is set to 'auto', got none"
            )
        return rows

    def remove(self) -> None:
        """Restores the model: no gates, no hooks, no buffers."""
        for hook in [*self._hooks, *self._across_hooks]:
            hook.remove()
        self._hooks.clear()
        self._across_hooks.clear()
        modules = dict(self.model.named_modules())
        for name in self.sparse:
            make_dense(modules[name])
        for name in () if self.sparse else self.gates:
            delattr(modules[name], GATE)
        self.gates.clear()
        self.sparse.clear()
        for parent, name, original in self._replaced:
            original.train(parent._modules[name].training)
            setattr(parent, name, original)
        self._replaced.clear()

    # ---- building ---------------------------------------------------------------------------

    def _add(self, name: str, module: nn.Module, plan: torch.Tensor) -> None:
        gate = GradientGate(plan)
        module.add_module(GATE, gate)
        self.gates[name] = gate
        self._hooks.append(module.register_forward_hook(_gate_output))

    def _add_sparse(self, name: str, module: nn.Module, state: SparseState) -> None:
        make_sparse(module, state)
        self.sparse[name] = state
        self._list_products(name, state)

    def _list_products(self, name: str, state: SparseState) -> None:
        for product in PRODUCTS:
            if getattr(self.prune, product) > 0:
                self.gates[f"{name}.{product}"] = getattr(state, product)

    def _convert_activations(
        self, bits: int | str, inputs: Any, chosen: Callable, named: Sequence[str]
    ) -> None:
        before = [
            (parent, name, child)
            for parent in self.model.modules()
            for name, child in parent._modules.items()
        ]
        self.activations = convert_activations(
            self.model, bits, include=chosen, named=named, inputs=inputs
        )
        self._replaced = [row for row in before if row[0]._modules[row[1]] is not row[2]]

    def _plan_across_layers(self) -> None:
        """Hooks the ops that look at all layers, if one is needed, before the model's forward."""
        for hook in self._across_hooks:
            hook.remove()
        self._across_hooks.clear()
        allocation = self.prune is not None and self.prune.allocation != "uniform"
        scale = self.quantize.scale if self.quantize else None
        dynamic = isinstance(scale, LossScale) and scale.dynamic
        if not (allocation or dynamic):
            return
        groups = [self.gates]
        if self.sparse:  # Each product has a budget of its own.
            groups = [
                {name: g for name, g in self.gates.items() if name.endswith(f".{p}")}
                for p in PRODUCTS
            ]
        for gates in filter(None, groups):
            across = _AcrossLayers(
                gates, self.prune if allocation else None, scale if dynamic else None
            )
            self._across_hooks.append(self.model.register_forward_pre_hook(across))


def _schedule_rows(schedule: Mapping[int, float]) -> list[float]:
    rows = sorted(schedule.items())
    if len(rows) > SCHEDULE_ROWS:
        raise ValueError(f"[compress] expected at most {SCHEDULE_ROWS} points, got {len(rows)}")
    for call, sparsity in rows:
        if not (call >= 0 and 0 <= sparsity < 1):
            raise ValueError(f"[compress] expected {{call: sparsity}}, got {{{call}: {sparsity}}}")
    return [value for row in rows for value in row]


def _refusal(
    name: str, module: nn.Module, include: Selector, exclude: Selector, sparse: bool
) -> str | None:
    """Why a layer is not converted; None if it is."""
    if include is not None and not _selected(name, module, include):
        return "not included"
    if _selected(name, module, exclude):
        return "excluded"
    if GATE in module._modules or SPARSE in module._modules:
        return "compressed already"
    if isinstance(module, NonDynamicallyQuantizableLinear):
        return "nn.MultiheadAttention uses its weight without calling it"
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        return "its parameters are not initialised yet"
    if sparse and not can_be_sparse(module):
        return "only nn.Linear and nn.Conv2d, and not subclasses, have a sparse backward pass"
    return None


def _names_of_gates(
    model: nn.Module, prune: Prune, include: Selector, exclude: Selector
) -> list[str]:
    """Of the layers that compress() will convert, or of their pruned products."""
    sparse = bool(prune.sparse_backward)
    layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, _LAYERS) and _refusal(name, module, include, exclude, sparse) is None
    ]
    if not sparse:
        return layers
    return [f"{name}.{p}" for name in layers for p in PRODUCTS if getattr(prune, p) > 0]


def compress(
    model: nn.Module,
    gradients: str | Prune | Quantize | Iterable = (),
    activations: int | str | None = None,
    *,
    inputs: Any = None,
    include: Selector = None,
    exclude: Selector = None,
    refresh: int = 1,
    warmup: int = 0,
    schedule: Mapping[int, float] | None = None,
    sample: int = 1 << 16,
    min_elements: int = 4096,
    seed: int | None = None,
) -> Controller:
    """Compresses what backward handles, in place: the neural gradients of a model's convolutions
    and linear layers, and what its activations keep.

    gradients: "fp4" to "fp8", a Prune, a Quantize, or a list with one of each.
    activations: 1 to 4 bits an element, or "exact"; see slimgrad.nn.convert_activations. Sigmoid
        and Tanh stay as they are unless ``include`` names them.
    inputs: sample inputs; one forward pass then finds activations that are called as functions,
        which cannot be converted, and the report names them.
    include, exclude: a name or names (with all below them), or a predicate (name, module).
    refresh: plan anew every so many backward passes of a layer, from a fresh sample; 0: only when
        controller.refresh() asks for it.
    warmup: so many backward passes of a layer are measured only.
    schedule: sparsity by backward pass, {0: 0.5, 1000: 0.85}, linear in between.
    sample: how many values of a gradient are measured.
    min_elements: smaller gradients are left alone.
    seed: of the random draws; by default from torch's generator, so that torch.manual_seed
        reproduces a run.
    """
    prune, quantize = parse_gradients(gradients)
    for name, value, least in [
        ("refresh", refresh, 0),
        ("warmup", warmup, 0),
        ("sample", sample, 1),
        ("min_elements", min_elements, 0),
    ]:
        if not isinstance(value, int) or value < least:
            raise ValueError(f"[compress] expected {name} >= {least}, got {value!r}")
    if schedule is not None and (prune is None or prune.allocation != "uniform"):
        raise ValueError("[compress] expected a schedule with Prune and allocation='uniform'")
    _check_names(model, include, "include")
    _check_names(model, exclude, "exclude")
    if prune is not None and prune.targets:
        prune.check_targets(_names_of_gates(model, prune, include, exclude))
    rows = _schedule_rows(schedule or {})
    if seed is None:
        seed = int(torch.randint(1 << 62, ()).item())

    controller = Controller(model, prune, quantize)
    if activations is not None:
        controller._convert_activations(
            activations,
            inputs,
            lambda name, module: (
                (include is None or _selected(name, module, include))
                and not _selected(name, module, exclude)
            ),
            _names(include),
        )
    if prune is None and quantize is None:
        if activations is None:
            raise ValueError("[compress] expected gradients= or activations=, got neither")
        return controller
    sparse = prune is not None and bool(prune.sparse_backward)
    if sparse and quantize is not None:
        raise ValueError("[compress] expected sparse_backward without quantizing, got both")
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    for index, (name, module) in enumerate(model.named_modules()):
        if not isinstance(module, _LAYERS):
            continue
        refusal = _refusal(name, module, include, exclude, sparse)
        if refusal is not None:
            controller.left[name] = refusal
            continue
        layer_seed = (seed + index * 0x9E3779B97F4A7C15) % (1 << 64)
        if sparse:
            plans = [new_product_plan(prune, product, layer_seed) for product in PRODUCTS]
        else:
            plans = [new_plan()]
            plans[0][Plan.SEED_LOW] = layer_seed & 0xFFFFFFFF
            plans[0][Plan.SEED_HIGH] = layer_seed >> 32
            for part in (prune, quantize):
                if part is not None:
                    part.write(plans[0])
        for plan in plans:
            plan[Plan.MIN_ELEMENTS] = min_elements
            plan[Plan.SAMPLE_SIZE] = sample
            plan[Plan.REFRESH_EVERY] = refresh
            plan[Plan.WARMUP] = warmup
            if not sparse or plan[Plan.SPARSITY] > 0:
                rows_end = Plan.SCHEDULE + len(rows)
                plan[Plan.SCHEDULE : rows_end] = torch.tensor(rows, dtype=torch.float64)
        if sparse:
            state = SparseState(*plans, always=prune.sparse_backward == "always")
            controller._add_sparse(name, module, state)
        else:
            controller._add(name, module, plans[0])
            controller.gates[name].stream = rank
    if not controller.converted:
        raise ValueError(
            "[compress] expected a model with at least one convolution or linear layer to convert; "
            f"left alone: {controller.left or 'nothing found'}"
        )
    controller._plan_across_layers()
    return controller
