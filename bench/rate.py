"""Do payloads have the rate that was asked for, and what does it take?

    python -m bench.rate --out results/rate.json
    python -m bench.rate --rows results/rate.json --docs docs/coding.md

Misses are payload size over wanted size less one: of generalized normal values, and of gradients of
the weights of two networks (the demo's and a small GPT) after 20 steps, every tensor of 2^14 values
or more. Times are of one thread, the best of several
rounds in which all take turns, over the time of "uniform8" with stochastic rounding, and over that
of bits=8 at the step of the rate ("same"), which has the same number of bits up to 7 or so.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import scipy.stats
import torch

import slimgrad as sg
from bench import marked
from bench.distributed_convergence import TASKS
from bench.timing import commit

RATES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
SHAPES = (0.3, 0.5, 0.7, 1.0, 2.0)
BANDS = {"2^14 to 2^18": (1 << 14, 1 << 18), "2^18 and more": (1 << 18, 1 << 60)}  # values
WRITER = "python -m bench.rate"


def gennorm(shape: float, n: int) -> torch.Tensor:
    return torch.from_numpy(scipy.stats.gennorm(shape).rvs(n, random_state=n).astype("f4"))


def gradients(task: str, steps: int = 20) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model, batch, loss_of = TASKS[task][0](0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, *batch()).backward()
        optimizer.step()
    named = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {f"{task} {name}": g for name, g in named.items() if g.numel() >= 1 << 14}


def miss(x: torch.Tensor, rate: float, **options) -> float:
    payload = sg.encode(x, "uniform", rate=rate, rounding="stochastic", seed=1, **options)
    return 8 * payload.numel() / x.numel() / rate - 1


def misses() -> list[dict]:
    tensors = {
        f"gennorm {s} of 2^{b}": gennorm(s, 1 << b) for b in (14, 16, 18, 20) for s in SHAPES
    }
    for task in TASKS:
        tensors |= gradients(task)
    rows = []
    for name, x in tensors.items():
        for model in ("counted", "gennorm"):
            found = [round(miss(x, rate, model=model), 4) for rate in RATES]
            rows.append({"tensor": name, "values": x.numel(), "model": model, "misses": found})
    return rows


def encoded(x: torch.Tensor, out: torch.Tensor, **options) -> torch.Tensor:
    return sg.encode(x, "uniform", rounding="stochastic", seed=1, out=out, **options)


def times(seconds: float) -> list[dict]:
    torch.set_num_threads(1)
    rows = []
    for bits in (18, 20, 22):
        for shape in SHAPES:
            x = gennorm(shape, 1 << bits)
            out = torch.empty(x.nbytes + x.nbytes // 60 + 64, dtype=torch.uint8)
            ways: dict[str, dict] = {"uniform8": {"bits": 8}}
            for rate in RATES:
                step = sg.inspect(encoded(x, out, rate=rate))["scale"]
                ways[f"rate{rate:g}"] = {"rate": rate}
                ways[f"same{rate:g}"] = {"bits": 8, "scale": step}
            best = dict.fromkeys(ways, float("inf"))
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                for name, options in ways.items():
                    start = time.perf_counter()
                    encoded(x, out, **options)
                    best[name] = min(best[name], time.perf_counter() - start)
            plain = best["uniform8"]
            row = {"values": f"2^{bits}", "shape": shape, "uniform8_gb_s": x.nbytes / plain / 1e9}
            for rate in RATES:
                seconds_of_rate = best[f"rate{rate:g}"]
                row[f"rate{rate:g}"] = seconds_of_rate / plain
                row[f"same{rate:g}"] = seconds_of_rate / best[f"same{rate:g}"]
            rows.append({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
    return rows


def table(record: dict) -> str:
    """Markdown: worst misses, and times from the least to the most over shapes."""
    rates = [f"{rate:g}" for rate in record["rates"]]
    lines = [
        "Size over the size that was asked for, less one, in percent; the worst of generalized "
        "normal values and of gradients of two networks, with tables counted and of a law:",
        "",
        "| bits a value | " + " | ".join(rates) + " |",
        "|---" * (len(rates) + 1) + "|",
    ]
    for band, (few, many) in BANDS.items():
        found = [row["misses"] for row in record["misses"] if few <= row["values"] < many]
        worst = [max(abs(miss) for miss in of_rate) for of_rate in zip(*found, strict=True)]
        lines.append(f"| {band} values | " + " | ".join(f"{100 * w:.1f}" for w in worst) + " |")
    lines += [
        "",
        "Time of encoding, one thread, over that of 8 bits with stochastic rounding and, in the "
        "second row, over that of 8 bits at the same step; of five shapes, 2^18 to 2^22 values:",
        "",
        "| bits a value | " + " | ".join(rates) + " |",
        "|---" * (len(rates) + 1) + "|",
    ]
    for words, prefix in {"over 8 bits": "rate", "over the same step": "same"}.items():
        cells = []
        for rate in rates:
            found = [row[f"{prefix}{rate}"] for row in record["times"]]
            cells.append(f"{min(found):.2f} to {max(found):.2f}")
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.rate")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row of times")
    parser.add_argument(
        "--parts", nargs="+", choices=("misses", "times"), default=["misses", "times"]
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=Path, help="of this file, instead of measuring")
    parser.add_argument("--docs", type=Path, help="rewrite the tables in this page")
    arguments = parser.parse_args()
    record = json.loads(arguments.rows.read_text()) if arguments.rows else measure(arguments)
    text = table(record)
    print(text)
    if arguments.docs:
        marked.write(arguments.docs, WRITER, text)


def measure(arguments: argparse.Namespace) -> dict:
    record: dict = {"command": f"python -m bench.rate --out {arguments.out}", "commit": commit()}
    if arguments.out and arguments.out.exists():
        record = json.loads(arguments.out.read_text()) | record
    if "misses" in arguments.parts:
        record["rates"], record["misses"] = RATES, misses()
    if "times" in arguments.parts:
        record["times"] = times(arguments.seconds)
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    return record


if __name__ == "__main__":
    main()
