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
from .gradients import LossScale, Prune, Quantize, parse_gradients
from .nn.convert import ConversionReport, convert_activations
from .plan import SCHEDULE_ROWS, Plan, layer_report, new_layer_stats, new_plan

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


class GradientGate(nn.Module):
    """The identity whose backward compresses the gradient. Its buffers hold all its state."""

    plan: torch.Tensor
    stats: torch.Tensor

    def __init__(self, plan: torch.Tensor):
        super().__init__()
        self.register_buffer("plan", plan)
        self.register_buffer("stats", new_layer_stats())
        # Ranks of a distributed job draw their own random numbers: errors then average out.
        self.stream = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return x
        return ops.gradient_gate(x, self.plan, self.stats, self.stream)

    def _apply(self, fn, recurse=True):
        # .half() and .bfloat16() on a model must not round counters and seeds: the state follows
        # the model to a device, never to another type.
        return super()._apply(lambda t: t.to(fn(t).device), recurse)

    def extra_repr(self) -> str:
        return f"calls={int(self.plan[Plan.CALLS])}"


def _gate_output(module: nn.Module, _inputs, output: torch.Tensor) -> torch.Tensor:
    return getattr(module, GATE)(output)


def _check_names(model: nn.Module, selector: Selector, what: str) -> None:
    """A name that no module has is a mistake, most likely in its spelling."""
    if selector is None or callable(selector):
        return
    known = {name for name, _ in model.named_modules(remove_duplicate=False)}
    for name in [selector] if isinstance(selector, str) else selector:
        if name not in known:
            raise ValueError(f"[compress] expected names of modules in {what}, got {name!r}")


def _selected(name: str, module: nn.Module, selector: Selector) -> bool:
    if selector is None:
        return False
    if callable(selector):
        return bool(selector(name, module))
    names = [selector] if isinstance(selector, str) else list(selector)
    return any(name == prefix or name.startswith(prefix + ".") for prefix in names)


class _AcrossLayers:
    """The hook before a model's forward that looks at all layers: allocation, dynamic loss scale.

    An object that holds the gates, not a closure: copies and pickles of the model then have one
    that holds the gates of theirs.
    """

    def __init__(self, gates: list[GradientGate], prune: Prune | None, scale: LossScale | None):
        self.gates = gates
        self.prune = prune
        self.scale = scale

    def __call__(self, _module, _inputs) -> None:
        if not torch.is_grad_enabled():
            return
        plans = [gate.plan for gate in self.gates]
        stats = [gate.stats for gate in self.gates]
        prune, scale = self.prune, self.scale
        if prune is not None:
            ops.allocate_plans_(plans, stats, prune.allocation, prune.method, prune.cap)
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
        self.gates: dict[str, GradientGate] = {}
        self.left: dict[str, str] = {}
        self._hooks: list[Any] = []
        self._across: _AcrossLayers | None = None
        self.activations = ConversionReport()
        self._replaced: list[tuple[nn.Module, str, nn.Module]] = []  # parent, name, original

    @property
    def converted(self) -> list[str]:
        return list(self.gates)

    # ---- what the layers do -----------------------------------------------------------------

    def report(self) -> dict[str, dict]:
        """By layer, what its last backward pass saw and did."""
        return {name: layer_report(gate.plan, gate.stats) for name, gate in self.gates.items()}

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
            note = (
                "" if row["compressed"] or not row["calls"] else "  (left alone: small or warm-up)"
            )
            lines.append(
                f"{name[-28:]:28} {row['calls']:6d} {row['elements']:9d} "
                f"{row['log_std'] / math.log(2):7.2f} {wanted:>7} {row['sparsity']:7.4f} "
                f"{row['cosine']:7.4f} {row['relative_error']:7.4f} {format:>6} {scale:>9}{note}"
            )
        lines += [f"{name[-28:]:28} not converted: {why}" for name, why in self.left.items()]
        if self.activations.converted or self.activations.left:
            lines.append(str(self.activations))
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

    def set_sparsity(self, sparsity: float) -> None:
        """Another sparsity from now on; ends a schedule."""
        if self.prune is None:
            raise ValueError("[set_sparsity] expected a model compressed with Prune")
        if not 0 <= sparsity < 1:
            raise ValueError(f"[set_sparsity] expected 0 <= sparsity < 1, got {sparsity}")
        self.prune = replace(self.prune, sparsity=sparsity)
        for gate in self.gates.values():
            gate.plan[Plan.SCHEDULE :] = -1
            gate.plan[Plan.SPARSITY] = gate.plan[Plan.TARGET] = sparsity
            gate.plan[Plan.DUE] = 1

    def remove(self) -> None:
        """Restores the model: no gates, no hooks, no buffers."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        modules = dict(self.model.named_modules())
        for name in self.gates:
            delattr(modules[name], GATE)
        self.gates.clear()
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

    def _convert_activations(self, bits: int | str, inputs: Any, chosen: Callable) -> None:
        before = [
            (parent, name, child)
            for parent in self.model.modules()
            for name, child in parent._modules.items()
        ]
        self.activations = convert_activations(self.model, bits, include=chosen, inputs=inputs)
        self._replaced = [row for row in before if row[0]._modules[row[1]] is not row[2]]

    def _plan_across_layers(self) -> None:
        """Hooks the ops that look at all layers, if one is needed, before the model's forward."""
        allocation = self.prune is not None and self.prune.allocation != "uniform"
        scale = self.quantize.scale if self.quantize else None
        dynamic = isinstance(scale, LossScale) and scale.dynamic
        if not (allocation or dynamic) or not self.gates:
            return
        self._across = _AcrossLayers(
            list(self.gates.values()),
            self.prune if allocation else None,
            scale if dynamic else None,
        )
        self._hooks.append(self.model.register_forward_pre_hook(self._across))


def _schedule_rows(schedule: Mapping[int, float]) -> list[float]:
    rows = sorted(schedule.items())
    if len(rows) > SCHEDULE_ROWS:
        raise ValueError(f"[compress] expected at most {SCHEDULE_ROWS} points, got {len(rows)}")
    for call, sparsity in rows:
        if not (call >= 0 and 0 <= sparsity < 1):
            raise ValueError(f"[compress] expected {{call: sparsity}}, got {{{call}: {sparsity}}}")
    return [value for row in rows for value in row]


def _refusal(name: str, module: nn.Module, include: Selector, exclude: Selector) -> str | None:
    """Why a layer is not converted; None if it is."""
    if include is not None and not _selected(name, module, include):
        return "not included"
    if _selected(name, module, exclude):
        return "excluded"
    if GATE in module._modules:
        return "compressed already"
    if isinstance(module, NonDynamicallyQuantizableLinear):
        return "nn.MultiheadAttention uses its weight without calling it"
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        return "its parameters are not initialised yet"
    return None


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
    activations: 1 to 4 bits an element, or "exact"; see slimgrad.nn.convert_activations.
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
        )
    if prune is None and quantize is None:
        if activations is None:
            raise ValueError("[compress] expected gradients= or activations=, got neither")
        return controller
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    for index, (name, module) in enumerate(model.named_modules()):
        if not isinstance(module, _LAYERS):
            continue
        refusal = _refusal(name, module, include, exclude)
        if refusal is not None:
            controller.left[name] = refusal
            continue
        plan = new_plan()
        layer_seed = (seed + index * 0x9E3779B97F4A7C15) % (1 << 64)
        plan[Plan.SEED_LOW] = layer_seed & 0xFFFFFFFF
        plan[Plan.SEED_HIGH] = layer_seed >> 32
        plan[Plan.MIN_ELEMENTS] = min_elements
        plan[Plan.SAMPLE_SIZE] = sample
        plan[Plan.REFRESH_EVERY] = refresh
        plan[Plan.WARMUP] = warmup
        for part in (prune, quantize):
            if part is not None:
                part.write(plan)
        plan[Plan.SCHEDULE : Plan.SCHEDULE + len(rows)] = torch.tensor(rows, dtype=torch.float64)
        controller._add(name, module, plan)
        controller.gates[name].stream = rank
    if not controller.gates:
        raise ValueError(
            "[compress] expected a model with at least one convolution or linear layer to convert; "
            f"left alone: {controller.left or 'nothing found'}"
        )
    controller._plan_across_layers()
    return controller
