"""Payloads: sizes and speeds beside ZipNN and zstd -1, on gradients made by training a network.

Lossless tensors are compared with ZipNN (its defaults for the type, one thread for each of ours)
and zstd; quantized and pruned codes with zstd -1 on the same codes, one byte a value. The number in
the name is the coded size over the input's: for codes, over one byte a value. Rivals that are not
installed are left out, and said so.
"""

import importlib.util

import torch
from torch import nn

from bench.timing import Row, race


def weight_gradients(num_steps: int) -> torch.Tensor:
    """The weight gradients of a small classifier after a few steps, as one float32 array."""
    torch.manual_seed(0)
    centres = torch.randn(10, 784)
    width = 1536
    model = nn.Sequential(
        nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(num_steps):
        labels = torch.randint(10, (128,))
        x = centres[labels] + 3 * torch.randn(128, 784)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.dim() == 2])


def installed(name: str) -> bool:
    if importlib.util.find_spec(name) is not None:
        return True
    print(f"{name} not measured: it is not installed")
    return False


def zstd_coder(data: bytes) -> dict:
    if not installed("zstandard"):
        return {}
    import zstandard

    packer, unpacker = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    packed = packer.compress(data)
    assert unpacker.decompress(packed) == data
    name = f"zstd -1, {len(packed) / len(data):.4f}"
    return {
        "encode": {name: lambda: packer.compress(data)},
        "decode": {name: lambda: unpacker.decompress(packed)},
    }


def zipnn_coder(data: bytes, dtype: torch.dtype) -> dict:
    if not installed("zipnn"):
        return {}
    from zipnn import ZipNN

    name = str(dtype).removeprefix("torch.")
    coder = ZipNN(bytearray_dtype=name, threads=torch.get_num_threads())
    packed = bytes(coder.compress(bytearray(data)))  # It works on its argument.
    name = f"ZipNN, {len(packed) / len(data):.4f}"
    return {
        "encode": {name: lambda: coder.compress(bytearray(data))},
        "decode": {name: lambda: coder.decompress(packed)},
    }


def our_coder(x: torch.Tensor, num_bytes: int, mode: str, **options) -> dict:
    ops = torch.ops.slimgrad
    defaults = {"bits": 8, "exponent_bits": 4, "mantissa_bits": 3, "scale": 0.0, "threshold": 0.0}
    defaults |= {"survivors": "exact", "coder": "rans", "model": "counted"}
    defaults |= {"rounding": "nearest", "seed": 0}
    arguments = defaults | options

    def encode():
        return ops.encode(x, mode, **arguments)

    packed = encode()
    decoded = ops.decode(packed)
    if mode == "lossless":
        assert torch.equal(decoded.view(torch.uint8), x.view(torch.uint8))
    words = [mode, arguments["coder"], *([arguments["model"]] if mode == "uniform" else [])]
    name = f"slimgrad {' '.join(words)}, {packed.numel() / num_bytes:.4f}"
    return {"encode": {name: encode}, "decode": {name: lambda: ops.decode(packed)}}


def race_coders(case: str, x: torch.Tensor, coders: list[dict], seconds: float) -> list[Row]:
    rows = []
    target = torch.empty_like(x)
    for direction in ["encode", "decode"]:
        alternatives = {"copy_": lambda: target.copy_(x)}
        for coder in coders:
            alternatives |= coder.get(direction, {})
        rows += race("coding", f"{case}, {direction}", "copy_", alternatives, seconds)
    return rows


def as_bytes(x: torch.Tensor) -> bytes:
    return x.contiguous().view(torch.uint8).numpy().tobytes()


def uniform_codes(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x / x.abs().max() * 127).to(torch.int8)


def run(quick: bool) -> list[Row]:
    seconds = 0.5 if quick else 4.0
    gradients = weight_gradients(3 if quick else 30)
    threads = torch.get_num_threads()
    rows = []
    for dtype in [torch.float32, torch.bfloat16]:
        x = gradients.to(dtype)
        data = as_bytes(x)
        coders = [our_coder(x, len(data), "lossless")]
        coders += [our_coder(x, len(data), "lossless", coder="huffman")]
        coders += [zipnn_coder(data, dtype), zstd_coder(data)]
        name = str(dtype).removeprefix("torch.")
        case = f"lossless {name}, {x.numel() >> 10} Ki weight gradients, {threads} threads"
        rows += race_coders(case, x, coders, seconds)

    # zstd gets the codes for nothing; we quantize too.
    coders = [
        our_coder(gradients, gradients.numel(), "uniform", coder=c) for c in ("rans", "huffman")
    ]
    coders += [
        our_coder(gradients, gradients.numel(), "uniform", model=model)
        for model in ("normal", "laplace", "gennorm")
    ]
    coders += [zstd_coder(as_bytes(uniform_codes(gradients)))]
    rows += race_coders(f"8-bit codes, {threads} threads", gradients, coders, seconds)

    ops = torch.ops.slimgrad
    for sparsity in [0.8, 0.9]:
        threshold = float(ops.threshold(ops.measure(gradients), sparsity, "empirical")[0])
        pruned = ops.prune(gradients, threshold, 1)
        coders = [our_coder(pruned, pruned.numel(), "pruned", survivors="float")]
        codes = ops.quantize(pruned, 4, 3, float(pruned.abs().max()) / 248, "nearest", "zero", 0)
        unique = torch.unique(codes)
        coders += [zstd_coder(as_bytes(torch.searchsorted(unique, codes).to(torch.uint8)))]
        zeros = float((pruned == 0).float().mean())
        rows += race_coders(f"{zeros:.0%} pruned, {threads} threads", pruned, coders, seconds)
    return rows
