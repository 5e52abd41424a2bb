"""Payloads: sizes and speeds beside zstd -1 and ZipNN, with one thread and with two.

Codes of 8 bits, generated ones and those of real gradients, are coded as they are, by both sides;
so are those of pruned gradients, which we also code from their float32 values, end to end: more
than zstd is asked for, which gets its codes for nothing. Lossless tensors are compared with ZipNN
(its defaults for the type, as many threads as ours).

Both sides write into memory that is used again, and zstd has a context that is kept. "Fresh" is
with new memory for every result, on both sides; ZipNN knows nothing else.

The number in a name is the coded size over the input's: for codes, over one byte a value. Ratios
are times over the rival's. zstd has one thread, always. Rivals that are not installed are left out,
and said so.
"""

import ctypes
import ctypes.util
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


class Zstd:
    """libzstd at level 1, with contexts that are kept."""

    def __init__(self, library: str):
        self.library = ctypes.CDLL(library)
        for name in ["createCCtx", "createDCtx"]:
            getattr(self.library, f"ZSTD_{name}").restype = ctypes.c_void_p
        for name in ["compressBound", "compressCCtx", "decompressDCtx"]:
            getattr(self.library, f"ZSTD_{name}").restype = ctypes.c_size_t
        self.packer = ctypes.c_void_p(self.library.ZSTD_createCCtx())
        self.unpacker = ctypes.c_void_p(self.library.ZSTD_createDCtx())

    def room(self, x: torch.Tensor) -> torch.Tensor:
        size = self.library.ZSTD_compressBound(ctypes.c_size_t(x.numel()))
        return torch.empty(size, dtype=torch.uint8)

    def compress(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return out[: self.library.ZSTD_compressCCtx(self.packer, *_memory(out), *_memory(x), 1)]

    def decompress(self, packed: torch.Tensor, out: torch.Tensor) -> int:
        return self.library.ZSTD_decompressDCtx(self.unpacker, *_memory(out), *_memory(packed))


def _memory(x: torch.Tensor) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
    return ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(x.numel())


def zstd_coder(x: torch.Tensor, fresh: bool = False) -> dict:
    """Of the bytes of a tensor."""
    library = ctypes.util.find_library("zstd")
    if library is None:
        print("zstd not measured: there is no libzstd")
        return {}
    zstd, data = Zstd(library), x.view(torch.uint8)
    room, back = zstd.room(data), torch.empty_like(data)
    packed = zstd.compress(data, room).clone()
    assert zstd.decompress(packed, back) == data.numel()
    assert torch.equal(back, data)
    name = f"zstd -1, {packed.numel() / data.numel():.4f}"
    coder = {
        "encode": {name: lambda: zstd.compress(data, room)},
        "decode": {name: lambda: zstd.decompress(packed, back)},
    }
    if fresh:
        encode, decode = coder["encode"], coder["decode"]
        encode[f"{name}, fresh"] = lambda: zstd.compress(data, zstd.room(data))
        decode[f"{name}, fresh"] = lambda: zstd.decompress(packed, torch.empty_like(data))
    return coder


def zipnn_coder(data: bytes, dtype: torch.dtype) -> dict:
    if not installed("zipnn"):
        return {}
    from zipnn import ZipNN

    name = str(dtype).removeprefix("torch.")
    coder = ZipNN(bytearray_dtype=name, threads=torch.get_num_threads())
    packed = bytes(coder.compress(bytearray(data)))
    name = f"ZipNN, {len(packed) / len(data):.4f}"
    scrap = bytearray(data)

    def refill():  # It works on its argument.
        scrap[:] = data

    return {
        "encode": {name: lambda: coder.compress(scrap)},
        "decode": {name: lambda: coder.decompress(packed)},
        "before": {name: refill},
    }


def our_coder(x: torch.Tensor, num_bytes: int, mode: str, fresh: bool = False, **options) -> dict:
    ops = torch.ops.slimgrad
    defaults = {"bits": 8, "exponent_bits": 4, "mantissa_bits": 3, "scale": 0.0, "threshold": 0.0}
    defaults |= {"rate": 0.0, "max_error": 0.0}
    defaults |= {"survivors": "exact", "coder": "rans", "model": "counted"}
    defaults |= {"rounding": "nearest", "seed": 0}
    arguments = defaults | options
    values = list(arguments.values())
    packed = ops.encode(x, mode, *values)
    decoded = ops.decode(packed)
    if mode == "lossless":
        assert torch.equal(decoded.view(torch.uint8), x.view(torch.uint8))
    words = [mode, arguments["coder"], *([arguments["model"]] if mode == "uniform" else [])]
    name = f"slimgrad {' '.join(words)}, {packed.numel() / num_bytes:.4f}"
    room, back = torch.empty(x.nbytes + 64, dtype=torch.uint8), torch.empty_like(decoded)
    coder = {
        "encode": {name: lambda: ops.encode_into(x, mode, *values, room)},
        "decode": {name: lambda: ops.decode_into(packed, back)},
    }
    if fresh:
        coder["encode"][f"{name}, fresh"] = lambda: ops.encode(x, mode, *values)
        coder["decode"][f"{name}, fresh"] = lambda: ops.decode(packed)
    return coder


def race_coders(case: str, coders: list[dict], rival: str, seconds: float) -> list[Row]:
    rows, before = [], {}
    for coder in coders:
        before |= coder.get("before", {})
    for direction in ["encode", "decode"]:
        alternatives = {}
        for coder in coders:
            alternatives |= coder.get(direction, {})
        unit = next((n for n in alternatives if n.startswith(rival)), next(iter(alternatives)))
        rows += race(
            "coding",
            f"{case}, {direction}",
            unit,
            alternatives,
            seconds,
            before_each=lambda name: before.get(name, int)(),
        )
    return rows


def as_bytes(x: torch.Tensor) -> bytes:
    return x.contiguous().view(torch.uint8).numpy().tobytes()


def uniform_codes(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x / x.abs().max() * 127).to(torch.int8)


def race_codes(title: str, codes: torch.Tensor, seconds: float) -> list[Row]:
    fresh = title.startswith("shape 1.0")
    coders = [
        our_coder(codes, codes.numel(), "lossless", fresh, coder=c) for c in ("rans", "huffman")
    ]
    return race_coders(
        f"8-bit codes, {title}", [*coders, zstd_coder(codes, fresh)], "zstd", seconds
    )


def race_pruned(gradients: torch.Tensor, threads: str, seconds: float) -> list[Row]:
    ops = torch.ops.slimgrad
    threshold = float(ops.threshold(ops.measure(gradients), 0.85, "empirical")[0])
    pruned = ops.prune(gradients, threshold, 1)
    title = f"{float((pruned == 0).float().mean()):.0%} pruned"
    rows = race_codes(f"{title}, uniform, {threads}", uniform_codes(pruned), seconds)
    values = ops.quantize(pruned, 4, 3, float(pruned.abs().max()) / 248, "nearest", "zero", 0)
    codes = torch.searchsorted(torch.unique(values), values).to(torch.int8)
    rows += race_codes(f"{title}, 1-4-3, {threads}", codes, seconds)
    coders = [our_coder(pruned, pruned.numel(), "pruned", survivors="float"), zstd_coder(codes)]
    return rows + race_coders(f"from float32, {title}, {threads}", coders, "zstd", seconds)


def race_lossless(x: torch.Tensor, threads: str, seconds: float) -> list[Row]:
    coders = [our_coder(x, x.nbytes, "lossless", True, coder=c) for c in ("rans", "huffman")]
    coders += [zipnn_coder(as_bytes(x), x.dtype), zstd_coder(x)]
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
