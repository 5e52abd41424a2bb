"""How activations and neural gradients are compressed before a stage sends them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .._support import check_stream, fresh_seed, in_the_name_of
from ..compression.compress import gate_options
from ..compression.gate import GradientGate
from ..compression.gradients import LossScale, Prune, Quantize, parse_gradients
from ..tensors.formats import FloatFormat, best_format, gradient_scale, parse_float_choice
from ..tensors.quantization import quantize
from ..tensors.stats import measure
from .frames import ACTIVATION, GRADIENT, PLAIN, Frame, frame_of, grid_frame, payload_frame

Gradients = str | Prune | Quantize | Iterable | None


# ---- gradients ----------------------------------------------------------------------------------


def boundary_gate(
    gradients: Gradients,
    op: str,
    *,
    seed: int | None = None,
    stream: int | None = None,
    refresh: int = 1,
    warmup: int = 0,
    schedule: Mapping[int, float] | None = None,
    sample: int | None = None,
    min_elements: int | None = None,
) -> GradientGate | None:
    """The gate that compress() would put there; None where gradients travel as they are."""
    stream = check_stream(stream, op)
    with in_the_name_of(op):
        options = gate_options(refresh, warmup, sample, min_elements, schedule)
        if gradients is None or gradients == "lossless":
            return None
        prune, quantize = parse_gradients(gradients)
    if prune is not None and (prune.is_sparse or prune.allocation != "uniform"):
        raise ValueError(
            f"[{op}] expected a Prune(sparsity) that needs nothing but the gradient itself, got "
            f"{prune!r}"
        )
    if quantize is not None and isinstance(quantize.scale, LossScale) and quantize.scale.dynamic:
        raise ValueError(f"[{op}] expected a scale of the gradient's own, got {quantize.scale!r}")
    if schedule is not None and prune is None:
        raise ValueError(f"[{op}] expected a schedule with Prune, got {gradients!r}")
    for part in (prune, quantize):
        if part is not None:
            options |= part._options()
    return GradientGate(stream=stream, seed=fresh_seed(seed, op), **options)


def gradient_frame(
    grad: torch.Tensor, serial: int, gate: GradientGate | None, gradients: Gradients, packed: bool
) -> Frame:
    """REQUIRES: the gate has just compressed ``grad``. Every value comes back as it is."""
    if gate is None and gradients is None:
        return frame_of(grad, GRADIENT, serial)
    report = gate.report() if gate is not None else {}
    if not report or not report["compressed"] or report["nonfinite"]:
        return payload_frame(grad, GRADIENT, serial, mode="lossless")
    if report["format"]:
        grid = report["format"], report["scale"]
        return grid_frame(grad, GRADIENT, serial, *grid, packed=packed)
    threshold = report["threshold"] or None
    return payload_frame(grad, GRADIENT, serial, mode="pruned", threshold=threshold)


# ---- activations --------------------------------------------------------------------------------


def parse_activations(activations: str | None, op: str) -> tuple[str, int | FloatFormat]:
    """The mode of encode(), or "plain", and its bits; of floats the format if one was given."""
    if activations is None:
        return PLAIN, 0
    if activations == "lossless":
        return "lossless", 0
    choice = parse_float_choice(activations)
    # Rounding to nearest with two bits leaves nothing but the largest magnitude.
    if choice is not None and (choice if isinstance(choice, int) else choice.bits) >= 3:
        return "float", choice
    match = re.fullmatch(r"uniform([2-8])", str(activations))
    if match is not None:
        return "uniform", int(match[1])
    raise ValueError(
        f"[{op}] expected activations to be None, 'lossless', 'fp3' to 'fp8', a format of 3 to 8 "
        f"bits such as '1-4-3', or 'uniform2' to 'uniform8', got {activations!r}"
    )


def activation_frame(
    x: torch.Tensor,
    serial: int,
    mode: str,
    bits: int | FloatFormat,
    packed: bool,
    wants_gradient: bool,
) -> Frame:
    """Few bits are rounded to nearest, so the values are the same in every process. Floats without
    a format get the split with the least squared error on this tensor."""
    x = x.detach()
    options: dict[str, Any] = {
        "kind": ACTIVATION,
        "serial": serial,
        "wants_gradient": wants_gradient,
    }
    if mode == PLAIN or not x.is_floating_point():
        return frame_of(x, **options)
    if mode == "lossless" or not torch.isfinite(x).all() or not x.any():
        return payload_frame(x, **options, mode="lossless")
    if mode == "uniform":
        return payload_frame(x, **options, mode="uniform", bits=bits)
    stats = measure(x)
    format = bits
    if isinstance(format, int):
        format = best_format(format, stats, rounding="nearest", underflow="zero", error="squared")
    scale = gradient_scale(stats, format)
    return grid_frame(
        quantize(x, format, scale), **options, format=format, scale=scale, packed=packed
    )
