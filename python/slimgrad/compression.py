"""compress(model): validates what is asked for, then changes the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ._library import ops
from ._seeds import fresh_seed, layer_seed
from .controller import Controller
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


def _check_targets(model: nn.Module, prune: Prune, selection: Selection) -> None:
    names = [
        name for _, name, _, why_not in layers_of(model, selection, prune.is_sparse) if not why_not
    ]
    if prune.is_sparse:
        products = [product for product, sparsity in prune.products.items() if sparsity > 0]
        names = [f"{name}.{product}" for name in names for product in products]
    prune.check_targets(names)


def _replace_activations(
    controller: Controller, bits: int | str, inputs: Any, selection: Selection
) -> None:
    model = controller.model
    before = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent._modules.items()
    ]
    controller.activations = convert_activations(
        model, bits, include=selection.wants, named=names_in(selection.include), inputs=inputs
    )
    controller._replaced = [row for row in before if row[0]._modules[row[1]] is not row[2]]


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
    if prune is not None and prune.targets:
        _check_targets(model, prune, selection)
    seed = fresh_seed(seed)

    controller = Controller(model, prune, quantize)
    if activations is not None:
        _replace_activations(controller, activations, inputs, selection)
    if prune is None and quantize is None:
        return controller
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    for part in (prune, quantize):
        if part is not None and not sparse:
            options |= part.options()
    # Gates count among the modules as soon as they are there: seeds have always been numbered so.
    for index, name, module, why_not in layers_of(model, selection, sparse):
        own = options | {"seed": layer_seed(seed, index)}
        if why_not is not None:
            controller.left[name] = why_not
        elif sparse:
            controller.layers[name] = SparseLayer(name, module, prune, own, rank)
        else:
            controller.layers[name] = GatedLayer(name, module, own, rank)
    if not controller.layers:
        raise ValueError(
            "[compress] expected a model with at least one convolution or linear layer to convert; "
            f"left alone: {controller.left or 'nothing found'}"
        )
    controller._look_across_layers()
    return controller
