"""compress(model): validates what is asked for, then changes the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from .._library import ops
from .._support import check_stream, derive_seed, fresh_seed, in_the_name_of, inner_model
from ..nn.convert import convert_activations
from ..saved.modules import SAVED, SavedModules, changed_modules, packing_modules, why_not_changed
from ..saved.settings import Saved, parse_saved
from .controller import Controller, Replaced
from .gradients import Prune, Quantize, parse_gradients
from .handles import LayerHandle
from .leftovers import left_layers
from .run_log import settings_of
from .selection import Selection, Selector, layers_of, names_in


def gate_options(
    refresh: int,
    warmup: int,
    sample: int | None,
    min_elements: int | None,
    schedule: Mapping[int, float] | None,
) -> dict[str, Any]:
    """What the gates of all layers share. Raises ValueError for numbers out of their range."""
    for name, value, least in [
        ("refresh", refresh, 0),
        ("warmup", warmup, 0),
        ("sample", sample, 1),
        ("min_elements", min_elements, 0),
    ]:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (is_whole and value >= least):
            raise ValueError(f"[compress] expected {name} >= {least}, got {value!r}")
    if schedule is not None and not isinstance(schedule, Mapping):
        raise ValueError(f"[compress] expected schedule={{pass: sparsity}}, got {schedule!r}")
    for call, sparsity in (schedule or {}).items():
        if not (isinstance(call, int | float) and call % 1 == 0):
            raise ValueError(f"[compress] expected whole numbers in schedule, got {call!r}")
        if not isinstance(sparsity, int | float):
            raise ValueError(f"[compress] expected sparsities in schedule, got {sparsity!r}")
    points = sorted((schedule or {}).items())
    options = {
        "refresh_every": refresh,
        "warmup": warmup,
        "sample_size": sample,
        "min_elements": min_elements,
        "schedule_calls": [int(call) for call, _ in points],
        "schedule_sparsities": [float(sparsity) for _, sparsity in points],
    }
    kind = {"prune": "stochastic"} if schedule else {}
    ops.new_gate_plan(seed=0, **options, **kind)  # The library says what is wrong with it.
    return options


def _replace_activations(
    controller: Controller, bits: int | str, inputs: Any, selection: Selection
) -> None:
    model = controller.model
    before = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent._modules.items()
    ]
    try:
        with in_the_name_of("compress"):
            controller.activations = convert_activations(
                model,
                bits,
                include=selection.wants,
                named=names_in(selection.include),
                inputs=inputs,
            )
    finally:  # What was replaced can be put back, also if this failed in the middle.
        controller._replaced = [
            Replaced(parent, name, child, parent._modules[name])  # type: ignore[arg-type]
            for parent, name, child in before
            if parent._modules[name] is not child
        ]


def _convert_layers(
    controller: Controller,
    selection: Selection,
    seed: int,
    stream: int | None,
    options: dict[str, Any],
) -> None:
    prune, quantize = controller.prune, controller.quantize
    sparse = prune if prune is not None and prune.is_sparse else None
    for part in (prune, quantize):
        if part is not None and sparse is None:
            options = options | part._options()
    known: set[str] = set()
    for layer in layers_of(controller.model, selection, sparse is not None):
        known |= {layer.name, *layer.wanted, *layer.refused}
        controller.left |= layer.refused
        if not layer.wanted:
            continue
        own = options | {"seed": derive_seed(seed, "gate", layer.name)}
        which = [part.rpartition(".")[2] for part in layer.wanted]
        controller.layers[layer.name] = LayerHandle(
            layer.name, layer.module, which, sparse, own, stream
        )
    controller.left |= left_layers(controller.model, known)


def _check_layers(model: nn.Module, prune: Prune | None, selection: Selection) -> None:
    """Refuses before anything has changed: there must be something to convert, and every target
    must be of something that is."""
    sparse = prune is not None and prune.is_sparse
    layers = list(layers_of(model, selection, sparse))
    names = [name for layer in layers for name in layer.wanted]
    if not names:
        left = {name: why_not for layer in layers for name, why_not in layer.refused.items()}
        left |= left_layers(model, {*left, *(layer.name for layer in layers)})
        reasons = [f"{name or '(model)'}: {why_not}" for name, why_not in left.items()]
        raise ValueError(
            "[compress] expected a model with at least one convolution or linear layer to convert; "
            f"left alone: {'; '.join(reasons) or 'nothing found'}"
        )
    if prune is not None and prune.targets:
        if sparse:
            products = [product for product, sparsity in prune.products.items() if sparsity > 0]
            names = [f"{name}.{product}" for name in names for product in products]
        prune._check_targets(names)


def _check_saved(model: nn.Module, selection: Selection) -> None:
    """Refuses before anything has changed."""
    for name, module in model.named_modules():
        if SAVED in vars(module):
            raise ValueError(
                "[compress] expected saved= for a model that packs no saved tensors yet, got one "
                f"that does: {name or '(model)'}; call remove() of its controller first"
            )
    for name, module in changed_modules(model, selection).items():
        why_not = why_not_changed(module)
        if why_not is not None:
            raise ValueError(
                f"[compress] expected saved= for modules whose class can be changed, got "
                f"{name or '(model)'}, which {why_not}"
            )
    if not packing_modules(model, selection):
        raise ValueError("[compress] expected include= to leave something for saved=, got nothing")


def compress(
    model: nn.Module,
    gradients: str | Prune | Quantize | Iterable | None = (),
    activations: int | str | None = None,
    *,
    saved: int | str | Saved | None = None,
    inputs: Any = None,
    include: Selector = None,
    exclude: Selector = None,
    refresh: int = 1,
    warmup: int = 0,
    schedule: Mapping[int, float] | None = None,
    sample: int | None = None,
    min_elements: int | None = None,
    seed: int | None = None,
    stream: int | None = None,
) -> Controller:
    """Compresses what backward handles, in place: the neural gradients of a model's convolutions
    and linear layers, what its activations save, and all else that autograd saves. Linear layers
    are also the projections of nn.MultiheadAttention, named ``attn.q``, ``attn.k``, ``attn.v`` and
    ``attn.out_proj``, and the Conv1D of transformers.

    gradients: "fp2" to "fp8", the best split for each layer as Quantize(bits) finds it; a format
        such as "1-4-1"; a Prune, a Quantize, or a list with one of each; None for none.
    activations: 1 to 4 bits an element, or "exact"; see slimgrad.nn.convert_activations. Sigmoid
        and Tanh stay as they are unless ``include`` names them.
    saved: 8, 4, 2, "exact" or a Saved: what autograd saves in the model's forward, and in the
        training_step of a LightningModule, is packed until backward needs it; see
        slimgrad.saved_tensors(). With ``include``, what those modules save, and not what those of
        ``exclude`` save.
    inputs: sample inputs; one forward pass then finds activations that are called as functions,
        which cannot be converted, and the report names them.
    include, exclude: a name or names (with all below them), or a predicate (name, module).
    refresh: plan anew every so many backward passes of a layer, from a fresh sample; 0: only when
        controller.refresh() asks for it.
    warmup: so many backward passes of a layer are measured only.
    schedule: sparsity by backward pass, {0: 0.5, 1000: 0.85}, linear in between.
    sample: how many values of a gradient are measured; by default 65,536.
    min_elements: smaller gradients are left alone; by default those below 4,096.
    seed: of the random draws; by default from torch's generator, so that torch.manual_seed
        reproduces a run. Two models with the same seed and layers of the same names draw alike.
    stream: which random numbers this process draws; by default those of its rank in
        torch.distributed, looked up when they are drawn. Set it where ranks hold the same gradient
        and must compress it alike, as in tensor parallelism: to the data-parallel rank.

    Compress a finished model: layers that are copied afterwards draw what the original draws and
    are in no report. Code that asks for ``type(module) is nn.Linear`` does not find converted
    layers (isinstance does): initialise before, and call remove() before quantizing or fusing a
    model. Whoever compiles a model and runs it before its process group exists sets ``stream``.

    A model that is refused, or in which anything fails, is left as it was. The model's own
    state_dict() stays that of the plain model: controller.state_dict() is the rest.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"[compress] expected model to be a module, got {type(model).__name__}")
    prune, quantize = parse_gradients(gradients)
    sparse = prune is not None and prune.is_sparse
    if schedule is not None and (prune is None or prune.allocation != "uniform"):
        raise ValueError("[compress] expected a schedule with Prune and allocation='uniform'")
    packing = None if saved is None else parse_saved(saved)
    if inputs is not None and activations is None:
        raise ValueError("[compress] expected inputs with activations=, got them without")
    if prune is None and quantize is None and activations is None and packing is None:
        raise ValueError("[compress] expected gradients=, activations= or saved=, got none of them")
    if sparse and quantize is not None:
        raise ValueError("[compress] expected sparse_backward without quantizing, got both")
    options = gate_options(refresh, warmup, sample, min_elements, schedule)
    model = inner_model(model)
    selection = Selection(include, exclude)
    selection.check(model)
    stream = check_stream(stream, "compress")
    if prune is not None or quantize is not None:
        _check_layers(model, prune, selection)
    if packing is not None:
        _check_saved(model, selection)
    seed = fresh_seed(seed, "compress")

    controller = Controller(model, prune, quantize)
    gates = {"refresh": str(refresh), "warmup": warmup, "min_elements": min_elements}
    if schedule is not None:
        gates["sparsity_schedule"] = [
            f"{call}:{value:g}" for call, value in sorted(schedule.items())
        ]
    has_gates = prune is not None or quantize is not None
    controller._settings = settings_of(activations, packing, gates if has_gates else {})
    try:
        if activations is not None:
            _replace_activations(controller, activations, inputs, selection)
        if prune is not None or quantize is not None:
            with torch.inference_mode(False):  # The state will change in backward passes.
                _convert_layers(controller, selection, seed, stream, options)
            controller._gather_gates()
        if packing is not None:
            controller.saved = SavedModules(
                model, selection, packing, derive_seed(seed, "saved"), stream
            )
            controller.saved.attach()
    except BaseException:
        controller.remove()
        raise
    return controller
