"""Deltas of weights: time, in copies of the new tensor (`copy_`), beside zstd.

22M bfloat16 weights (generated: normal, with normal steps), of which about 2 % and 0.4 % change.
The number in a name is the coded size in bits a weight. What others do before zstd (comparing,
gathering) is timed with them; zstd has one thread, always. bench.weight_deltas has the sizes on
real weights.
"""

import numpy
import torch

import slimgrad as sg
from bench.timing import Row, race
from bench.weight_deltas import generated_pair, words


def positions_and_values(base: numpy.ndarray, new: numpy.ndarray) -> bytes:
    where = numpy.flatnonzero(base != new).astype(numpy.uint32)
    return where.tobytes() + new[where].tobytes()


def of_zstd(base: torch.Tensor, new: torch.Tensor) -> tuple[dict, dict]:
    try:
        import zstandard
    except ImportError:
        print("zstd not measured: zstandard is not installed")
        return {}, {}
    a, b = words(base), words(new)
    one, three = zstandard.ZstdCompressor(level=1), zstandard.ZstdCompressor(level=3)
    unpack = zstandard.ZstdDecompressor()
    sparse = one.compress(positions_and_values(a, b))
    xor = three.compress((a ^ b).tobytes())

    def patch_sparse():
        raw = unpack.decompress(sparse)
        count = len(raw) // 6
        out = a.copy()
        values = numpy.frombuffer(raw, numpy.uint16, count, 4 * count)
        out[numpy.frombuffer(raw, numpy.uint32, count)] = values
        return out

    def patch_xor():
        return a ^ numpy.frombuffer(unpack.decompress(xor), numpy.uint16)

    assert (patch_sparse() == b).all() and (patch_xor() == b).all()
    names = [
        f"positions and values, zstd -1, {8 * len(sparse) / a.size:.4f}",
        f"XOR, zstd -3, {8 * len(xor) / a.size:.4f}",
    ]
    encode = [lambda: one.compress(positions_and_values(a, b)), lambda: three.compress(a ^ b)]
    return dict(zip(names, encode, strict=True)), dict(
        zip(names, [patch_sparse, patch_xor], strict=True)
    )


def run(quick: bool) -> list[Row]:
    num_weights = 2_000_000 if quick else 22_000_000
    rows = []
    for step in (1.35e-6, 3e-7):
        base, new = (side["w"] for side in generated_pair(num_weights, step))
        payload = sg.delta(base, new)
        out = sg.apply_delta(base, payload)
        assert torch.equal(out.view(torch.int16), new.view(torch.int16))
        name = f"sg.delta, {8 * payload.numel() / num_weights:.4f}"
        changed = float((base.view(torch.int16) != new.view(torch.int16)).float().mean())
        encode, patch = of_zstd(base, new)
        case = f"{100 * changed:.2g} % of {num_weights / 1e6:g}M bfloat16 changed"
        copy = {"copy_": lambda out=out, new=new: out.copy_(new)}
        ours = {name: lambda base=base, new=new: sg.delta(base, new)}
        seconds = 0.5 if quick else 4.0
        rows += race("delta", f"encode, {case}", "copy_", copy | ours | encode, seconds)
        state = base.clone()
        ours = {
            name: lambda base=base, payload=payload: sg.apply_delta(base, payload),
            f"{name}, in place": lambda state=state, payload=payload: sg.apply_delta(
                state, payload, out=state
            ),
        }

        def refill(which, state=state, base=base):
            if which.endswith("in place"):
                state.copy_(base)

        rows += race(
            "delta", f"patch, {case}", "copy_", copy | ours | patch, seconds, before_each=refill
        )
    return rows
