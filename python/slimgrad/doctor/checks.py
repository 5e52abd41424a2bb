"""What the self-tests run: a few calls for every kernel that exists in more than one version, for
instruction sets and for devices.

Inputs are the same in every process, small, and of odd lengths, so that vectors have a rest to
deal with. A check gives tensors, which have to be those of the scalar kernels: to the bit, or,
where sums are added in another order, to a tolerance. Those that also run on a device are told
where, and have the bits of the CPU there; all kernels of devices are in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from .._library import classes, ops
from ..compression.gradients import Prune
from ..functional import gelu, mish, relu, silu, tanh
from ..nn import Conv2d, Linear
from ..tensors.coding import decode, encode
from ..tensors.deltas import apply_delta, delta
from ..tensors.quantization import pack, prune, prune_quantize, quantize

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROUNDINGS = (("nearest", "zero"), ("nearest", "stochastic"), ("stochastic", "stochastic"))
# Sums of products in float32, and those that are rounded to 8 or 11 bits.
PRODUCTS, ROUNDED_PRODUCTS = 1e-5, 1e-2


@dataclass(frozen=True)
class Where:
    """The device of a check's tensors, and how many values they have; None: few."""

    device: torch.device
    count: int | None = None


HERE = Where(torch.device("cpu"))


@dataclass(frozen=True)
class Check:
    name: str
    kernels: tuple[str, ...]  # the files of src/kernels, and their like in src/arrays
    run: Callable[..., list[torch.Tensor]]  # with a Where, if it is one of device_checks()
    tolerance: float = 0.0  # of the largest magnitude; 0: the same bits


def _random(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _put(x: torch.Tensor, where: Where) -> torch.Tensor:
    """Repeated to the size that is asked for."""
    if where.count is not None:
        x = x.repeat(where.count // len(x) + 1)[: where.count]
    return x.to(where.device)


def _gradient(
    dtype: torch.dtype = torch.float32, count: int = 20_011, where: Where = HERE
) -> torch.Tensor:
    """Magnitudes over many octaves, some of them zero, as gradients have them."""
    x = 1e-3 * _random(count) * torch.exp(2 * _random(count, seed=2))
    x[_random(count, seed=3) < -0.5] = 0
    return _put(x.to(dtype), where)


def _with_specials(dtype: torch.dtype, where: Where = HERE) -> torch.Tensor:
    x = _gradient(dtype)
    x[5], x[77], x[1003], x[1004] = float("nan"), float("inf"), -float("inf"), -0.0
    return _put(x, where)


def _name(what: str, dtype: torch.dtype) -> str:
    return f"{what}, {str(dtype).removeprefix('torch.')}"


# ---- measuring ----------------------------------------------------------------------------------


def _measured(dtype: torch.dtype, where: Where = HERE) -> list[torch.Tensor]:
    return [ops.measure(_with_specials(dtype, where))]


def _fitted() -> list[torch.Tensor]:
    x = _gradient()
    return [
        ops.fit(values, family) for values in (x, x.double()) for family in ("gennorm", "normal")
    ]


# ---- applying -----------------------------------------------------------------------------------


def _quantized(dtype: torch.dtype, where: Where = HERE) -> list[torch.Tensor]:
    x = _with_specials(dtype, where)
    return [
        quantize(x, format, 2.0**-9, rounding, underflow, seed=3)
        for format in ("1-4-1", "1-5-2")
        for rounding, underflow in ROUNDINGS
    ]


def _pruned(dtype: torch.dtype, where: Where = HERE) -> list[torch.Tensor]:
    x = _with_specials(dtype, where)
    return [prune(x, 1e-3, seed=4)] + [
        prune_quantize(x, 1e-3, "1-4-1", 2.0**-9, rounding, underflow, seed=4)
        for rounding, underflow in ROUNDINGS
    ]


def _packed(dtype: torch.dtype, where: Where = HERE) -> list[torch.Tensor]:
    results = []
    for format in ("1-2-1", "1-3-2", "1-5-2"):
        for rounding, underflow in ROUNDINGS:
            packed = pack(
                _gradient(dtype, where=where), format, 2.0**-9, rounding, underflow, seed=15
            )
            results += [packed.data, packed.unpack()]
    return results


def _gated(dtype: torch.dtype, where: Where = HERE) -> list[torch.Tensor]:
    """Gradients, plans and reports: scaled by the maximum, which a gate looks for in a pass of its
    own; pruned and in few bits; and with small values dropped, at a scale that the host finds for
    devices, too."""
    results = []
    for options in (
        {"bits": 6, "scale_method": "max"},
        {"prune": "stochastic", "sparsity": 0.8, "bits": 4},
        {"prune": "topk", "sparsity": 0.5, "bits": 4, "scale_method": "predicted"},
    ):
        plan, stats = ops.new_gate_plan(seed=5, min_elements=1, **options), ops.new_gate_stats()
        x = _gradient(dtype, where=where)
        results += [ops.compress_gradient(x, plan, stats, 0), plan, stats]
    return results


# ---- coding -------------------------------------------------------------------------------------


def _coded(x: torch.Tensor, **options) -> list[torch.Tensor]:
    payload = encode(x, **options)
    return [payload, decode(payload)]


def _lossless(coder: str) -> list[torch.Tensor]:
    """Tensors of every type, with zeros (coded as a mask), and with few values in large blocks."""
    inputs = [_with_specials(dtype) for dtype in DTYPES]
    inputs += [_gradient().double(), (40 * _random(9001)).to(torch.int8)]
    inputs += [prune(_gradient(), 0.05, seed=6), torch.arange(150_001.0) % 7 // 5]
    return [result for x in inputs for result in _coded(x, coder=coder)]


def _uniform(coder: str) -> list[torch.Tensor]:
    results = []
    for dtype in DTYPES:
        for bits in (2, 4, 8):
            results += _coded(_gradient(dtype), mode="uniform", bits=bits, coder=coder)
            results += _coded(
                _gradient(dtype, 100_003),
                mode="uniform",
                bits=bits,
                coder=coder,
                rounding="stochastic",
                seed=7,
            )
    return results


def _rates() -> list[torch.Tensor]:
    results = []
    for dtype in DTYPES:
        for rate in (1.5, 8.0):
            results += _coded(_gradient(dtype), mode="uniform", rate=rate, seed=7)
    return results


def _largest() -> list[torch.Tensor]:
    return [r for dtype in DTYPES for r in _coded(_gradient(dtype, 100_003), mode="topk", bits=2)]


def _deltas() -> list[torch.Tensor]:
    results = []
    for dtype in DTYPES:
        base = _random(50_021).to(dtype)
        changed = (base.float() + 1e-3 * _random(50_021, seed=2)).to(dtype)
        payload = delta(base, changed)
        results += [payload, apply_delta(base, payload)]
    return results


def _added() -> list[torch.Tensor]:
    """As between processes: decoded and added to sums in one pass; one block, which is so large
    that rare symbols travel with their places."""
    count = 250_003
    pieces, sums = [_random(count)], [_random(count, seed=16)]
    codec = classes.Codec({"kind": "uniform", "block_log2": 20, "rounding": "stochastic"})
    out = torch.zeros(codec.frame_bound(pieces), dtype=torch.uint8)
    coded = codec.encode_frame(pieces, [0], 17, False, out)
    codec.decode_frame(coded, pieces, sums, True)
    return [coded, *sums]


def _floats(coder: str) -> list[torch.Tensor]:
    return [
        result
        for dtype in DTYPES
        for result in _coded(_gradient(dtype), mode="float", format="1-4-1", coder=coder)
    ]


def _survivors(coder: str) -> list[torch.Tensor]:
    results = []
    for dtype in DTYPES:
        x = prune(_gradient(dtype, 50_021), 1e-2, seed=8)
        for survivors in ("exact", "float", *(["bfloat16"] if dtype == torch.float32 else [])):
            results += _coded(x, mode="pruned", coder=coder, survivors=survivors)
    return results


# ---- activations, and what backward keeps -------------------------------------------------------


def _activated(function: Callable, dtype: torch.dtype, **options) -> list[torch.Tensor]:
    x = _random(6007).to(dtype).requires_grad_()
    y = function(x, **options)
    y.backward(_random(6007, seed=9).to(dtype))
    assert x.grad is not None
    return [y.detach(), x.grad]


def _few_bits(dtype: torch.dtype) -> list[torch.Tensor]:
    results = _activated(relu, dtype)
    for bits in (1, 2, 3, 4):
        results += _activated(gelu, dtype, bits=bits) + _activated(tanh, dtype, bits=bits)
    return results


def _coded_steps(dtype: torch.dtype, where: Where = HERE) -> list[torch.Tensor]:
    """What few-bit activations are made of, without torch's own part of them."""
    x, gradient = _put(_random(6007).to(dtype), where), _gradient(dtype, 6007, where)
    results = []
    for bits in (1, 2, 3, 4):
        levels = [0.1 * level for level in range(1 << bits)]
        codes = ops.stepwise_codes(x, [level - 0.5 for level in levels[1:]], False)
        results += [codes, ops.stepwise_backward(gradient, codes, levels, x.stride())]
    return results


def _inverted(dtype: torch.dtype) -> list[torch.Tensor]:
    return [result for f in (gelu, silu, mish) for result in _activated(f, dtype, bits="exact")]


def _inverted_backward(dtype: torch.dtype, where: Where = HERE) -> list[torch.Tensor]:
    """From the CPU's output: that of another device is rounded otherwise."""
    y = _put(torch.nn.functional.silu(_random(6007)).to(dtype), where)
    gradient = _gradient(dtype, 6007, where)
    codes = ops.stepwise_codes(_put(_random(6007).to(dtype), where), [-1.25], False)
    return [ops.invertible_backward(gradient, y, codes, name) for name in ("gelu", "silu", "mish")]


def _saved(dtype: torch.dtype, where: Where = HERE) -> list[torch.Tensor]:
    x = _put(_random(10_007).to(dtype), where)
    results = []
    for bits in (2, 4, 8):
        for rounding in ("nearest", "stochastic"):
            words = ops.pack_saved(x, bits, 0, rounding, 10, 0)
            results += [words, ops.unpack_saved(words, x.shape, x.stride(), dtype, bits, 0)]
    return results


def _kept_exactly(dtype: torch.dtype, where: Where = HERE) -> list[torch.Tensor]:
    """Between its lists are a few bytes that mean nothing: what comes back is compared."""
    x = _put(_random(10_007).to(dtype).relu(), where)
    return [ops.unpack_exact(ops.pack_exact(x), x.shape, x.stride(), dtype)]


def _sent(dtype: torch.dtype, where: Where = HERE) -> list[torch.Tensor]:
    """What travels between devices stands for the values that a payload of the CPU stands for."""
    x, results = _gradient(dtype, where=where), []
    for bits in (2, 4, 6, 8):
        for rounding in ("nearest", "stochastic"):
            out, sums = torch.empty_like(x), torch.ones_like(x)
            if where.device.type == "cpu":
                payload = encode(x, "uniform", bits=bits, rounding=rounding, seed=18)
                out = decode(payload)
                sums += out
            else:
                codes = ops._pack_uniform(x, bits, rounding == "stochastic", 18)
                ops._unpack_uniform_(*codes, bits, False, out)
                if dtype == torch.float32:
                    ops._unpack_uniform_(*codes, bits, True, sums)
            results += [out, sums] if dtype == torch.float32 else [out]
    return results


# ---- sparse products ----------------------------------------------------------------------------


def _sparse(layer: Linear | Conv2d, x: torch.Tensor, gradient: torch.Tensor) -> list[torch.Tensor]:
    layer.to(x.dtype)
    for number, parameter in enumerate(layer.parameters()):
        parameter.data.copy_(_random(*parameter.shape, seed=20 + number))
    x.requires_grad_()
    layer(x).backward(gradient.to(x.dtype))
    return [t.grad for t in (x, *layer.parameters()) if t.grad is not None]


_PRUNED = Prune(weight=0.8, input=0.7, sparse_backward="always")


def _linear(dtype: torch.dtype) -> list[torch.Tensor]:
    """As wide as one to twelve vectors, each of which has a loop; and with what is not finite."""
    results = []
    for width in range(8, 104, 8):
        layer = Linear(width, 64, gradients=_PRUNED, seed=13)
        gradient = _random(129, 64, seed=12) ** 3
        if width == 8:
            gradient[7, 9] = float("nan")
        results += _sparse(layer, _random(129, width).to(dtype), gradient)
    return results


def _convolved(
    dtype: torch.dtype, channels: int, memory_format: torch.memory_format
) -> list[torch.Tensor]:
    layer = Conv2d(channels, 24, 3, padding=1, gradients=_PRUNED, seed=14)
    x = _random(4, channels, 13, 11).to(dtype).to(memory_format=memory_format)
    gradient = (_random(4, 24, 13, 11, seed=12) ** 3).to(memory_format=memory_format)
    return _sparse(layer, x, gradient)


# ---- all ----------------------------------------------------------------------------------------


def device_checks() -> Iterator[Check]:
    """Those that run anywhere, by Check.run(Where(...)): every kernel of src/device is in one, and
    self-tests fail where one is not. What the CPU has no several versions of names no kernels."""
    for dtype in DTYPES:
        for name, kernels, function in (
            ("measure", ("measure/measure",), _measured),
            ("quantize", ("apply/apply",), _quantized),
            ("prune", ("apply/apply",), _pruned),
            ("pack", ("apply/apply",), _packed),
            ("gate", ("measure/max_magnitude", "measure/sample_sums"), _gated),
            ("few-bit codes", ("fewbit/pack", "fewbit/multiply"), _coded_steps),
            ("backward from outputs", ("fewbit/invertible",), _inverted_backward),
            ("saved", ("saved/pack", "saved/unpack"), _saved),
            ("keep without zeros", ("coding/nonzeros",), _kept_exactly),
            ("send", ("coding/uniform",), _sent),
        ):
            yield Check(_name(name, dtype), kernels, partial(function, dtype))


def checks() -> Iterator[Check]:
    """Those of the CPU: all."""
    yield from device_checks()
    for dtype in DTYPES:
        yield Check(
            _name("few-bit activations", dtype),
            ("fewbit/pack", "fewbit/multiply"),
            partial(_few_bits, dtype),
        )
        yield Check(
            _name("exact activations", dtype),
            ("fewbit/invertible",),
            partial(_inverted, dtype),
        )
    yield Check("fit", ("measure/power_sums",), _fitted)
    for coder in ("rans", "huffman"):
        entropy = {
            "rans": ("coding/rans_encode_simd", "coding/rans_decode_simd"),
            "huffman": ("coding/huffman",),
        }[coder]
        yield Check(
            f"encode lossless, {coder}",
            (*entropy, "coding/byte_planes", "coding/zero_mask", "coding/checksum"),
            partial(_lossless, coder),
        )
        yield Check(
            f"encode uniform, {coder}",
            (*entropy, "coding/uniform", "coding/escapes", "measure/magnitude_range"),
            partial(_uniform, coder),
        )
        yield Check(f"encode float, {coder}", entropy, partial(_floats, coder))
        yield Check(
            f"encode pruned, {coder}", (*entropy, "coding/zero_mask"), partial(_survivors, coder)
        )
    yield Check("encode at a rate", ("coding/uniform", "coding/open_levels"), _rates)
    yield Check("encode the largest", ("coding/largest",), _largest)
    yield Check("delta", ("coding/delta_scan", "coding/delta_write"), _deltas)
    yield Check("add decoded gradients", ("coding/uniform", "coding/escapes"), _added)
    kernels = ("sparse/compact_rows", "sparse/compact_columns", "sparse/sums", "sparse/transpose")
    for dtype in DTYPES:
        tolerance = PRODUCTS if dtype == torch.float32 else ROUNDED_PRODUCTS
        yield Check(_name("sparse linear", dtype), kernels, partial(_linear, dtype), tolerance)
        for channels in (3, 32):
            for memory_format in (torch.contiguous_format, torch.channels_last):
                kind = str(memory_format).removeprefix("torch.").removesuffix("_format")
                yield Check(
                    _name(f"sparse convolution of {channels} channels, {kind}", dtype),
                    kernels,
                    partial(_convolved, dtype, channels, memory_format),
                    tolerance,
                )
