"""Payloads: sizes and speeds beside zstd -1 and ZipNN, with one thread and with two.

Codes of 8 bits, generated ones and those of real gradients, are coded as they are, by both sides.
Pruned gradients are coded from float32 values by us, end to end, and by zstd from codes of one byte
that it gets for nothing. Lossless tensors are compared with ZipNN (its defaults for the type, as
many threads as ours). The number in a name is the coded size over the input's: for codes, over one
byte a value. Ratios are times over the rival's. zstd has one thread, always. Rivals that are not
installed are left out, and said so.
"""

import importlib.util

import torch
from torch import nn

from bench.timing import Row, race


def weight_gradients(num_steps: int) -> dict[str, torch.Tensor]:
    """The weight gradients of a small classifier after a few steps, by layer."""
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
    return {name: p.grad.flatten() for name, p in model.named_parameters() if p.dim() == 2}


def generated_codes(shape: float, num_values: int) -> torch.Tensor:
    """Generalized normal values as 8-bit integers; the largest magnitude is 127."""
    generator = torch.Generator().manual_seed(1)
    gamma = torch.distributions.Gamma(torch.tensor(1 / shape, dtype=torch.float64), 1.0)
    torch.manual_seed(1)  # Distributions draw from the global generator.
    x = gamma.sample((num_values,)) ** (1 / shape)
    return uniform_codes(x * torch.sign(torch.randn(num_values, generator=generator)))


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


def race_coders(case: str, coders: list[dict], rival: str, seconds: float) -> list[Row]:
    rows = []
    for direction in ["encode", "decode"]:
        alternatives = {}
        for coder in coders:
            alternatives |= coder.get(direction, {})
        unit = next((n for n in alternatives if n.startswith(rival)), next(iter(alternatives)))
        rows += race("coding", f"{case}, {direction}", unit, alternatives, seconds)
    return rows


def as_bytes(x: torch.Tensor) -> bytes:
    return x.contiguous().view(torch.uint8).numpy().tobytes()


def uniform_codes(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x / x.abs().max() * 127).to(torch.int8)


def race_codes(title: str, codes: torch.Tensor, seconds: float) -> list[Row]:
    data = as_bytes(codes)
    coders = [our_coder(codes, len(data), "lossless", coder=c) for c in ("rans", "huffman")]
    return race_coders(f"8-bit codes, {title}", [*coders, zstd_coder(data)], "zstd", seconds)


def race_pruned(gradients: torch.Tensor, threads: str, seconds: float) -> list[Row]:
    ops = torch.ops.slimgrad
    threshold = float(ops.threshold(ops.measure(gradients), 0.85, "empirical")[0])
    pruned = ops.prune(gradients, threshold, 1)
    codes = ops.quantize(pruned, 4, 3, float(pruned.abs().max()) / 248, "nearest", "zero", 0)
    unique = torch.unique(codes)
    data = as_bytes(torch.searchsorted(unique, codes).to(torch.uint8))
    coders = [our_coder(pruned, len(data), "pruned", survivors="float"), zstd_coder(data)]
    zeros = float((pruned == 0).float().mean())
    return race_coders(f"{zeros:.0%} pruned, {threads}", coders, "zstd", seconds)


def race_lossless(x: torch.Tensor, threads: str, seconds: float) -> list[Row]:
    data = as_bytes(x)
    coders = [our_coder(x, len(data), "lossless", coder=c) for c in ("rans", "huffman")]
    coders += [zipnn_coder(data, x.dtype), zstd_coder(data)]
    name = str(x.dtype).removeprefix("torch.")
    return race_coders(f"lossless {name}, {threads}", coders, "ZipNN", seconds)


def run(quick: bool) -> list[Row]:
    seconds = 0.2 if quick else 1.5
    gradients = torch.cat(list(weight_gradients(3 if quick else 30).values()))
    num_codes = 1 << (18 if quick else 22)
    codes = {f"shape {s}": generated_codes(s, num_codes) for s in (0.4, 0.7, 1.0, 2.0)}
    codes["real gradients"] = uniform_codes(gradients)
    rows = []
    threads_before = torch.get_num_threads()
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        threads = f"{num_threads} thread{'s' if num_threads > 1 else ''}"
        for title, x in codes.items():
            rows += race_codes(f"{title}, {threads}", x, seconds)
        rows += race_pruned(gradients, threads, seconds)
        for dtype in (torch.float32, torch.bfloat16):
            rows += race_lossless(gradients.to(dtype), threads, seconds)
    torch.set_num_threads(threads_before)
    return rows
