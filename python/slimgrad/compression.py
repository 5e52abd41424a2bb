"""compress(model): validates what is asked for, then changes the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from ._library import ops
from ._seeds import fresh_seed, layer_seed
from ._streams import check_stream
from .controller import Controller, Replaced
from .gradients import Prune, Quantize, parse_gradients
from .handles import GatedLayer, SparseLayer
from .nn.convert import convert_activations
from .selection import Selection, Selector, layers_of, names_in


def _gate_options(
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
        if value is not None and not (isinstance(value, int) and value >= least):
            raise ValueError(f"[compress] expected {name} >= {least}, got {value!r}")
    points = sorted((schedule or {}).items())
    for call, _ in points:
        if not call % 1 == 0:
            raise ValueError(f"[compress] expected whole numbers in schedule, got {call!r}")
    options = {
        "refresh_every": refresh,
        "warmup": warmup,
        "sample_size": sample,
        "min_elements": min_elements,
        "schedule_calls": [int(call) for call, _ in points],
        "schedule_sparsities": [float(sparsity) for _, sparsity in points],
    }
    ops.new_gate_plan(**options)  # The library says what is wrong with it.
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
        controller.activations = convert_activations(
            model, bits, include=selection.wants, named=names_in(selection.include), inputs=inputs
        )
    finally:  # What was replaced can be put back, also if this failed in the middle.
        controller._replaced = [
            Replaced(parent, name, child, parent._modules[name])
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
    sparse = prune is not None and prune.is_sparse
    for part in (prune, quantize):
        if part is not None and not sparse:
            options = options | part.options()
    # Gates count among the modules as soon as they are there: seeds have always been numbered so.
    for index, name, module, why_not in layers_of(controller.model, selection, sparse):
        own = options | {"seed": layer_seed(seed, index)}
        if why_not is not None:
            controller.left[name] = why_not
        elif sparse:
            controller.layers[name] = SparseLayer(name, module, prune, own, stream)
        else:
            controller.layers[name] = GatedLayer(name, module, own, stream)


def _check_layers(model: nn.Module, prune: Prune | None, selection: Selection) -> None:
    """Refuses before anything has changed: there must be something to convert, and every target
    must be of something that is."""
    sparse = prune is not None and prune.is_sparse
    layers = list(layers_of(model, selection, sparse))
    names = [name for _, name, _, why_not in layers if not why_not]
    if not names:
        left = {name: why_not for _, name, _, why_not in layers}
        raise ValueError(
            "[compress] expected a model with at least one convolution or linear layer to convert; "
            f"left alone: {left or 'nothing found'}"
        )
    if prune is not None and prune.targets:
        if sparse:
            products = [product for product, sparsity in prune.products.items() if sparsity > 0]
            names = [f"{name}.{product}" for name in names for product in products]
        prune.check_targets(names)


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
    sample: int | None = None,
    min_elements: int | None = None,
    seed: int | None = None,
    stream: int | None = None,
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
    sample: how many values of a gradient are measured; by default 65,536.
    min_elements: smaller gradients are left alone; by default those below 4,096.
    seed: of the random draws; by default from torch's generator, so that torch.manual_seed
        reproduces a run.
    stream: which random numbers this process draws; by default those of its rank in
        torch.distributed, looked up when they are drawn. Set it where ranks hold the same gradient
        and must compress it alike, as in tensor parallelism: to the data-parallel rank.

    A model that is refused, or in which anything fails, is left as it was. The model's own
    state_dict() stays that of the plain model: controller.state_dict() is the rest.
    """
    prune, quantize = parse_gradients(gradients)
    sparse = prune is not None and prune.is_sparse
    if schedule is not None and (prune is None or prune.allocation != "uniform"):
        raise ValueError("[compress] expected a schedule with Prune and allocation='uniform'")
    if prune is None and quantize is None and activations is None:
        raise ValueError("[compress] expected gradients= or activations=, got neither")
    if sparse and quantize is not None:
        raise ValueError("[compress] expected sparse_backward without quantizing, got both")
    options = _gate_options(refresh, warmup, sample, min_elements, schedule)
    selection = Selection(include, exclude)
    selection.check(model)
    stream = check_stream(stream, "compress")
    if prune is not None or quantize is not None:
        _check_layers(model, prune, selection)
    seed = fresh_seed(seed)

    controller = Controller(model, prune, quantize)
    try:
        if activations is not None:
            _replace_activations(controller, activations, inputs, selection)
        if prune is not None or quantize is not None:
            _convert_layers(controller, selection, seed, stream, options)
            controller._look_between_steps(counts_passes=warmup > 0 or schedule is not None)
    except BaseException:
        controller.remove()
        raise
    return controller
