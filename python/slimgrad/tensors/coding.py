"""Tensors as compact, checked bytes, and back. docs/format.md has every byte."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from .._library import ops
from .._support import (
    check_choice,
    in_the_name_of,
    number,
    op_seed,
    tensor_with_values,
    text,
    whole_number,
)
from .formats import FloatFormat, bits_of_format

_MARK = "PayloadError: "
_DELTA_MAGIC = (b"\x8dSGD", b"\x8dSGM")


class PayloadError(ValueError):
    """Bytes that are not a whole, undamaged payload."""


@torch.library.register_fake("slimgrad::encode")
def _(x, *arguments):
    """The size depends on the values, so it is a dynamic size for torch.compile."""
    return x.new_empty(torch.library.get_ctx().new_dynamic_size(min=16), dtype=torch.uint8)


@torch.library.register_fake("slimgrad::encode_into")
def _(x, *arguments):
    return x.new_empty((), dtype=torch.int64)


@torch.library.register_fake("slimgrad::decode_into")
def _(payload, out, max_bytes=None):
    pass


@torch.library.register_fake("slimgrad::decode")
def _(payload, max_bytes=None):
    raise NotImplementedError(
        "[decode] the type and shape of a payload are in its bytes: call slimgrad.decode outside "
        "of torch.compile, or behind torch.compiler.disable"
    )


def bytes_of(payload, op: str, what: str = "a payload") -> torch.Tensor:
    """A payload as a uint8 tensor. Errors do not print it."""
    if isinstance(payload, torch.Tensor):
        return tensor_with_values(payload, op, "payload")
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise TypeError(
            f"[{op}] expected {what} as a uint8 tensor, bytes, bytearray or memoryview, got "
            f"{type(payload).__name__}"
        )
    view = memoryview(payload).cast("B")
    if not view.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    with warnings.catch_warnings():  # The tensor is only read.
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.frombuffer(view, dtype=torch.uint8)


def checked(op: Callable, *arguments: Any) -> Any:
    try:
        return op(*arguments)
    except ValueError as error:
        text = str(error)
        if not text.startswith(_MARK):
            raise
        raise PayloadError(text.removeprefix(_MARK)) from None


def encode_arguments(
    op: str,
    mode: str,
    bits: int,
    format: FloatFormat | str,
    coder: str,
    model: str,
    scale: float | None,
    threshold: float | None,
    survivors: str,
    rounding: str,
    seed: int | None,
    rate: float | None,
    max_error: float | None,
) -> tuple:
    """As ops take them, in their order; misuse names ``op``."""
    whole_number(bits, op, "bits")
    for name, asked in {"rate": rate, "max_error": max_error}.items():
        if asked is not None and not number(asked, op, name) > 0:
            raise ValueError(f"[{op}] expected {name} to be positive, got {asked!r}")
    check_choice(rounding, "rounding", op, "rounding")
    words = {"mode": mode, "survivors": survivors, "coder": coder, "model": model}
    for name, value in words.items():
        text(value, op, name)
    return (
        mode,
        bits,
        *bits_of_format(format, op),
        0.0 if scale is None else number(scale, op, "scale"),
        0.0 if threshold is None else number(threshold, op, "threshold"),
        0.0 if rate is None else float(rate),
        0.0 if max_error is None else float(max_error),
        survivors,
        coder,
        model,
        rounding,
        op_seed(seed, op),
    )


def encode(
    x: torch.Tensor,
    mode: str = "lossless",
    bits: int = 8,
    format: FloatFormat | str = "1-4-3",
    coder: str = "rans",
    model: str = "counted",
    scale: float | None = None,
    threshold: float | None = None,
    survivors: str = "exact",
    rounding: str = "nearest",
    seed: int | None = None,
    out: torch.Tensor | None = None,
    rate: float | None = None,
    max_error: float | None = None,
) -> torch.Tensor:
    """The payload of ``x``, on the CPU, as a uint8 tensor of one dimension.

    ``mode``
      "lossless"  every bit comes back, NaN payloads and -0 too; also float64 and int8
      "uniform"   integers of ``bits`` bits (2 to 8) times ``scale``; zero is one of them
      "float"     values of ``format`` times ``scale``
      "pruned"    for what ``prune`` returned: zeros, +-``threshold``, and survivors as they are
                  ("exact"), as "bfloat16" (of float32), or as values of ``format`` ("float")
      "topk"      of every 4,096 values the 64 largest magnitudes, at ``bits`` bits (1 to 4); all
                  others become 0, so it is biased (``Codec`` has k, of and error feedback)
    With ``rate`` or ``max_error`` "uniform" has as many levels as it takes instead of ``bits``.
    ``rate``: bits a value, at most 16, that the whole payload takes; the step is chosen for it, and
    ``inspect`` says whether there is such a payload (of zeros there is not). ``max_error``: the
    largest absolute error of a value, beside one unit in its last place; where that takes more than
    2^20 levels, ``x`` is coded without loss.
    ``scale`` None gives the largest magnitude the largest code; ``threshold`` None is the smallest
    magnitude but zero, which is the threshold of whatever was pruned. ``rounding`` "stochastic" is
    unbiased. ``model``: where the probabilities of uniform codes come from, counted in every block,
    or a law fitted to ``x``: "gennorm", "laplace", "normal". ``coder``: "rans", "huffman", or
    "none" for uniform and float codes of exactly as many bits as they have.

    A tensor that this would not make smaller is stored as it is; a payload is never more than 64
    bytes longer than ``x``. NaN and Inf raise, with their number, where they have no code.
    torch.compile includes encode in its graphs, with a size that is known at run time, but not
    ``decode``, whose result may have any type and shape.

    ``out``: a uint8 tensor of one dimension, on the CPU, to write to. Reusing one saves the cost of
    fresh memory, a large part of the time that encoding takes. ``x.nbytes + 64`` bytes are always
    enough; a smaller tensor raises if the payload does not fit. The result is ``out[:n]``, the
    payload; the rest of ``out`` is unspecified.
    """
    x = tensor_with_values(x, "encode").detach().cpu()
    arguments = encode_arguments(
        "encode",
        mode,
        bits,
        format,
        coder,
        model,
        scale,
        threshold,
        survivors,
        rounding,
        seed,
        rate,
        max_error,
    )
    if out is None:
        return ops.encode(x, *arguments)
    return out[: int(ops.encode_into(x, *arguments, tensor_with_values(out, "encode", "out")))]


Payload = torch.Tensor | bytes | bytearray | memoryview


def decode(
    payload: Payload, out: torch.Tensor | None = None, *, max_bytes: int | None = None
) -> torch.Tensor:
    """The tensor of a payload, with its type and shape. Damaged bytes raise ``PayloadError``.

    ``max_bytes``: refuse a payload whose tensor would take more, before anything is allocated. A
    block of equal values takes a few bytes, so a short payload may be that of a large tensor: set
    it for payloads from sources that you do not trust. The checksum detects damage; it is not a
    signature.

    ``out``: a contiguous tensor of that type and shape, on the CPU, to write to and to return.
    After a ``PayloadError`` its values are unspecified. (A payload in Fortran order, from the
    program, requires the transpose of a contiguous tensor.) With ``out`` torch.compile can include
    decode in its graphs.
    """
    payload = bytes_of(payload, "decode")
    if max_bytes is not None:
        whole_number(max_bytes, "decode", "max_bytes")
    if out is None:
        return checked(ops.decode, payload, max_bytes)
    checked(ops.decode_into, payload, tensor_with_values(out, "decode", "out"), max_bytes)
    return out


def _inspect_delta(payload: torch.Tensor) -> dict:
    words, numbers = checked(ops.inspect_delta, payload)
    rows = []
    for i in range(len(words) // 4):
        kind, base, result = words[4 * i + 1 : 4 * i + 4]
        hashes = {"base": base, "result": result} if base.strip("0") else {}  # those of deltas
        sizes = {"values_nbytes": numbers[2 * i], "nbytes": numbers[2 * i + 1]}
        rows.append({"type": kind} | hashes | sizes)
    first = {"mode": "delta"} | rows[0]
    if len(rows) == 1 and first["type"]:
        return first
    names = words[4::4]
    whole = {key: first[key] for key in ("mode", "base", "result", "nbytes")}
    return whole | {"tensors": dict(zip(names, rows[1:], strict=True))}


def inspect(payload: Payload) -> dict:
    """The header of a payload as a dict, after its checksum has been checked.

    Of a ``delta``, its hashes and sizes; of a dict's delta, also those of every tensor.
    """
    with in_the_name_of("inspect"):
        payload = bytes_of(payload, "inspect")
        if payload.dtype == torch.uint8 and bytes(payload[:4].tolist()) in _DELTA_MAGIC:
            return _inspect_delta(payload)
        mode, dtype, shape, scale, numbers, model, laws, survivors = checked(ops.inspect, payload)
    bits, exponent_bits, mantissa_bits, block_values, num_blocks, num_bytes = numbers[:6]
    reached, k, of = numbers[6:]
    info = {"mode": mode, "dtype": getattr(torch, dtype), "shape": torch.Size(shape)}
    info["nbytes"] = num_bytes
    if mode != "raw":
        info |= {"block_values": block_values, "num_blocks": num_blocks}
    if mode == "uniform":
        # No bits: as many levels as it takes.
        info |= {"bits": bits or None, "scale": scale, "model": model}
        if laws[3]:
            values = torch.Size(shape).numel()
            rate = 8 * num_bytes / values if values else 0.0
            info |= {"rate": rate, "rate_asked": laws[3], "rate_reached": bool(reached)}
        if model != "counted":
            info |= {"model_shape": laws[0], "model_scale": laws[1]}
    if mode == "topk":
        info |= {"k": k, "of": of, "bits": bits}
    if mode == "pruned":
        info |= {"threshold": laws[2], "survivors": survivors}
    if mode == "float" or (mode == "pruned" and survivors == "float"):
        info |= {"format": FloatFormat(f"1-{exponent_bits}-{mantissa_bits}"), "scale": scale}
    return info
