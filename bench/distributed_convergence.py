"""Do two data-parallel ranks learn as well when their gradients travel in few bits?

    python -m bench.distributed_convergence --out results/distributed_convergence.json

The demo's network (five convolutions with batch normalisation, on generated images) and a small GPT
(on generated text), by DDP with two ranks on loopback. For a seed every run starts from the same
weights and sees the same batches; only what the gradients travel as differs. A curve is the mean
loss of each tenth of the steps; what is compared is the last tenth, seed by seed, with float32's.

Noise is what another seed does to float32: the standard deviation of its last loss over seeds. A
codec counts as equal within noise if its loss is higher by less than that, on average over seeds.
The stricter question, whether it can be told from float32 at all, has an answer as well: runs of a
seed are alike in all else, so that their differences spread less; "seen" is a mean difference of
more than two standard errors. (It was the first measure here, and most codecs of few bits fail it.)
The float16 hook is a control. A table or a coder does not change what is decoded: "uniform8" stands
for "packed8" and for fitted laws as well.
"feedback" is with error feedback. What is already in --out is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from bench.distributed_codecs import exchange
from bench.fewbit_convergence import generated_text, pattern_batches, text_task
from bench.timing import commit

NAMES = ["float32", "fp16 hook", "fp8", "fp6", "fp4", "uniform8", "uniform4", "uniform2", "pruned"]
NAMES += ["rate4", "rate3", "rate2", "rate1.5", "rate1"]
NAMES += ["fp4 feedback", "uniform4 feedback", "uniform2 feedback"]  # pruned knows none
NAMES += ["rate3 feedback", "rate2 feedback", "rate1.5 feedback", "rate1 feedback"]


def demo_task(seed: int):
    """The network of `make demo`, on ten noisy patterns that move about."""
    patterns = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    patterns = nn.functional.avg_pool2d(patterns, 3, 1, 1)
    batch, loss = pattern_batches(patterns, seed, 32, 4, 0.7)
    layers: list[nn.Module] = []
    sizes = [(3, 24, 5, 2), (24, 48, 3, 1), (48, 64, 3, 2), (64, 96, 3, 1), (96, 128, 3, 2)]
    for inputs, outputs, taps, stride in sizes:
        layers.append(nn.Conv2d(inputs, outputs, taps, stride, taps // 2, bias=False))
        layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
    return nn.Sequential(*layers), batch, loss


def gpt_task(seed: int):
    return text_task(generated_text(), seed)


TASKS = {"demo": (demo_task, 100), "GPT": (gpt_task, 300)}  # and steps


def train(task: str, name: str, seed: int, shorter: float) -> tuple[list[float], float | None]:
    """The curve, and the bits that a gradient took, of what we sent; both ranks see the same batch
    and take half of it."""
    make, steps = TASKS[task]
    steps = max(10, round(steps * shorter) // 10 * 10)
    torch.manual_seed(seed)
    model, batch, loss_of = make(seed)
    model = exchange(name)(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    rank, losses = dist.get_rank(), []
    for _ in range(steps):
        inputs, targets = (part.chunk(2)[rank] for part in batch())
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, inputs, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    mean = torch.stack(losses).double()
    dist.all_reduce(mean)
    bits = None
    if plan := getattr(model, "slimgrad_plan", None):
        # Two ranks send every value once: half of them to the other's shard, half as the sum.
        bits = 8 * plan.sent_bytes / (steps * sum(p.numel() for p in model.parameters()))
    return (mean / 2).view(10, -1).mean(1).tolist(), bits


def _rank(rank: int, port: int, wanted: list, shorter: float, out: Path | None, record: dict):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for task, name in wanted:
        runs = [train(task, name, seed, shorter) for seed in range(record["seeds"])]
        curves = [curve for curve, _ in runs]
        if rank == 0:
            row = {"model": task, "name": name, "losses": [round(c[-1], 5) for c in curves]}
            row["curve"] = [round(statistics.mean(tenth), 4) for tenth in zip(*curves, strict=True)]
            if runs[0][1] is not None:
                row["bits"] = round(statistics.mean(bits for _, bits in runs if bits), 3)
            row["commit"] = commit()
            record["rows"].append(row)
            print(f"{task} {name}: {row['losses']}", flush=True)
            if out:
                write(out, record)
    dist.barrier()
    dist.destroy_process_group()


def write(path: Path, record: dict) -> None:
    lines = ",\n  ".join(json.dumps(row) for row in record["rows"])
    head = {key: value for key, value in record.items() if key != "rows"}
    text = json.dumps(head, indent=1).removesuffix("\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{text},\n "rows": [\n  {lines}\n ]\n}}\n')


def verdicts(rows: list[dict]) -> list[dict]:
    """Of everything but float32: the difference to it, that one's standard error, and the noise."""
    losses = {(row["model"], row["name"]): row["losses"] for row in rows}
    found = []
    for (model, name), ours in losses.items():
        plain = losses.get((model, "float32"))
        if name == "float32" or not plain:
            continue
        differences = [a - b for a, b in zip(ours, plain, strict=True)]
        row = {"model": model, "name": name, "difference": statistics.mean(differences)}
        row["error"] = statistics.stdev(differences) / len(ours) ** 0.5
        row["noise"] = statistics.stdev(plain)
        row["equal"] = row["difference"] < row["noise"]
        row["seen"] = row["difference"] > 2 * row["error"]
        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.distributed_convergence")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--names", nargs="+", help="default: float32, the fp16 hook and ours")
    parser.add_argument("--limit", type=int, help="stop after so many new rows")
    parser.add_argument("--shorter", type=float, default=1.0, help="a part of the steps")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    names = arguments.names or NAMES
    record = {
        "command": f"python -m bench.distributed_convergence --out {arguments.out}",
        "seeds": arguments.seeds,
        "torch": torch.__version__,
        "rows": [],
    }
    if arguments.out and arguments.out.exists():
        record["rows"] = json.loads(arguments.out.read_text())["rows"]
    done = {(row["model"], row["name"]) for row in record["rows"]}
    wanted = [(m, n) for m in arguments.models for n in names if (m, n) not in done]
    wanted = wanted[: arguments.limit]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    if wanted:
        mp.spawn(_rank, (port, wanted, arguments.shorter, arguments.out, record), nprocs=2)
    if arguments.out:
        for row in verdicts(json.loads(arguments.out.read_text())["rows"]):
            print(
                f"{row['model']:<6} {row['name']:<20} {row['difference']:+.4f} "
                f"+- {row['error']:.4f}, noise {row['noise']:.4f} "
                + ("seen " if row["seen"] else "")
                + ("" if row["equal"] else "WORSE")
            )


if __name__ == "__main__":
    main()
