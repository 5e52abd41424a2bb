"""Final loss against bytes sent: gradients exchanged every step, and DiLoCo every 20 and 50.

    python -m bench.diloco --data FILE --out results/diloco.json
    python -m bench.diloco --rows results/diloco.json --docs docs/distributed.md

A GPT of 0.45 million parameters learns the next character of a text, on four ranks over loopback,
in equal numbers of steps; a rank's batch is its own. For a seed all runs start from the same
weights and see the same batches; what differs is how ranks exchange. The loss is that of the model
that all ranks have after the last step, on the last tenth of the text. Nothing is timed. What is
already in --out is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import statistics
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import slimgrad as sg
from bench import marked
from bench.distributed_convergence import write
from bench.fewbit_convergence import generated_text
from bench.jobs import character_gpt
from bench.timing import commit
from slimgrad.distributed import Codec, DiLoCo, Outer

RANKS, STEPS, BATCH, LENGTH, WIDTH, DEPTH = 4, 300, 4, 32, 96, 4
RATE, LAST_RATE, WARMUP = 2e-3, 2e-4, 30
SEEDS, EVERY = (1, 2, 3), (20, 50)
WRITER = "python -m bench.diloco"

# SparseLoCo: each rank has the momentum, the outer optimizer none.
SPARSE = {"outer": Outer(lr=1.0, momentum=0.0), "error_feedback": 0.95}


@dataclass(frozen=True)
class Way:
    """How ranks exchange. codec: None is torch's own all-reduce. every: None is DDP."""

    codec: str | None
    every: int | None = None
    more: dict = field(default_factory=dict)


def ways() -> dict[str, Way]:
    found = {"DDP float32": Way(None), "DDP rate2": Way("rate2")}
    for every in EVERY:
        for name in ("lossless", "fp4", "rate2", "rate1"):
            shown = "float32" if name == "lossless" else name
            found[f"DiLoCo {shown}, every {every}"] = Way(name, every)
        found[f"SparseLoCo topk, every {every}"] = Way("topk", every, SPARSE)
    return found


class Text:
    def __init__(self, path: Path | None):
        text = path.read_text() if path else generated_text(20_000)
        symbols = {c: i for i, c in enumerate(sorted(set(text)))}
        data = torch.tensor([symbols[c] for c in text])
        self.vocabulary = len(symbols)
        self.training, self.held_out = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]

    def batch(self, seed: int, step: int, rank: int) -> dict:
        generator = torch.Generator().manual_seed(sg.derive_seed(seed, "batch", step, rank))
        starts = torch.randint(len(self.training) - LENGTH, (BATCH,), generator=generator)
        return _rows(self.training, starts)

    def held_out_loss(self, model: nn.Module) -> float:
        starts = torch.arange(0, len(self.held_out) - LENGTH, LENGTH)
        total = 0.0
        with torch.no_grad():
            for some in starts.split(64):
                total += model(**_rows(self.held_out, some)).item() * len(some)
        return total / len(starts)


def _rows(source: torch.Tensor, starts: torch.Tensor) -> dict:
    chosen = torch.stack([source[s : s + LENGTH + 1] for s in starts.tolist()])
    return {"tokens": chosen[:, :-1].contiguous(), "targets": chosen[:, 1:].contiguous()}


def rate_share(step: int) -> float:
    """Warm-up, then half a cosine."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    place = (step - WARMUP) / max(1, STEPS - WARMUP)
    return (LAST_RATE + 0.5 * (1 + math.cos(math.pi * place)) * (RATE - LAST_RATE)) / RATE


def train(way: Way, text: Text, seed: int) -> tuple[float, int, int]:
    """The loss at the end, bytes that this rank sent, values of the model."""
    torch.manual_seed(seed)
    rank = dist.get_rank()
    model = character_gpt(text.vocabulary, LENGTH, WIDTH, DEPTH)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=RATE, betas=(0.9, 0.99), weight_decay=0.1, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_share)
    codec = Codec.parse(way.codec, seed=seed) if way.codec else None
    trained: nn.Module = model
    diloco = plan = None
    if way.every is not None:
        diloco = DiLoCo(model, optimizer, every=way.every, codec=codec, **way.more)
    else:
        trained = DistributedDataParallel(model)
        plan = sg.distributed.register(trained, codec) if codec else None
    for step in range(STEPS):
        optimizer.zero_grad()
        trained(**text.batch(seed, step, rank)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        (diloco or optimizer).step()
        schedule.step()
    if diloco:
        diloco.synchronize()  # of no effect where training ended with a round
    values = sum(p.numel() for p in model.parameters())
    if plan:
        sent = plan.sent_bytes
    else:  # a ring
        sent = diloco.sent_bytes if diloco else 2 * (RANKS - 1) * 4 * values * STEPS // RANKS
    loss = text.held_out_loss(model) if rank == 0 else 0.0
    return loss, sent, values


def _rank(rank: int, port: int, wanted: list, data: Path | None, out: Path, record: dict) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    text = Text(data)
    for name, seed in wanted:
        loss, sent, values = train(ways()[name], text, seed)
        mean = torch.tensor([float(sent)], dtype=torch.float64)
        dist.all_reduce(mean)
        if rank != 0:
            continue
        row = {"name": name, "seed": seed, "loss": round(loss, 5), "sent": mean.item() / RANKS}
        record["rows"].append({**row, "values": values, "commit": commit()})
        print(f"{name}, seed {seed}: {row['loss']}, {row['sent']:.0f} bytes", flush=True)
        write(out, record)
    dist.barrier()
    dist.destroy_process_group()


def table(record: dict) -> str:
    """Markdown: means over seeds, and differences seed by seed."""
    if not record["rows"]:
        return "Not measured yet."
    losses: dict[str, dict[int, float]] = {}
    sent: dict[str, list[float]] = {}
    for row in record["rows"]:
        losses.setdefault(row["name"], {})[row["seed"]] = row["loss"]
        sent.setdefault(row["name"], []).append(row["sent"])
    if "DDP float32" not in losses:
        return "Not measured yet: DDP float32, with which all others are compared."
    plain = statistics.mean(sent["DDP float32"])
    values, count = record["rows"][0]["values"], len(record["seeds"])
    lines = [
        f"A GPT of {values:,} parameters, {record['ranks']} ranks, {record['steps']} steps, "
        f"{count} seeds: held-out loss at the end; its difference from DDP in float32, and from "
        "DiLoCo in float32 with the same rounds (mean and range over seeds); bytes that a rank "
        "sent.",
        "",
        "| exchange | loss | from DDP float32 | from DiLoCo float32 | bytes | times fewer |",
        "|---|---|---|---|---|---|",
    ]
    for name in ways():
        if name not in losses:
            continue
        ours = losses[name]
        local = f"DiLoCo float32, every {name.rpartition(' ')[2]}"
        cells = [statistics.mean(ours.values()), _less(ours, losses["DDP float32"])]
        same = "" if local not in losses or local == name else _less(ours, losses[local])
        bytes_sent = statistics.mean(sent[name])
        lines.append(
            f"| {name} | {cells[0]:.4f} | {cells[1] if name != 'DDP float32' else ''} | {same} "
            f"| {bytes_sent:,.0f} | {plain / bytes_sent:.0f} |"
        )
    return "\n".join([*lines, "", f"(`{record['command']}`; FILE: tinyshakespeare)"])


def _less(ours: dict[int, float], theirs: dict[int, float]) -> str:
    differences = [loss - theirs[seed] for seed, loss in ours.items() if seed in theirs]
    low, high = min(differences), max(differences)
    return f"{statistics.mean(differences):+.4f} ({low:+.4f} to {high:+.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.diloco")
    parser.add_argument("--data", type=Path, help="a text; without it a generated one")
    parser.add_argument("--names", nargs="+", help="of the table; default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--out", type=Path, default=Path("results/diloco.json"))
    parser.add_argument("--rows", type=Path, help="of this file, instead of training")
    parser.add_argument("--docs", type=Path, help="rewrite the table in this page")
    arguments = parser.parse_args()
    if not arguments.rows:
        measure(arguments)
    text = table(json.loads((arguments.rows or arguments.out).read_text()))
    print(text)
    if arguments.docs:
        marked.write(arguments.docs, WRITER, text)


def measure(arguments: argparse.Namespace) -> None:
    record = {
        "command": f"python -m bench.diloco --data FILE --out {arguments.out}",
        "data": "text" if arguments.data else "generated",
        **{"ranks": RANKS, "steps": STEPS, "seeds": list(SEEDS), "torch": torch.__version__},
        "rows": [],
    }
    if arguments.out.exists():
        record["rows"] = json.loads(arguments.out.read_text())["rows"]
    done = {(row["name"], row["seed"]) for row in record["rows"]}
    names = arguments.names or list(ways())
    wanted = [(n, s) for s in arguments.seeds for n in names if (n, s) not in done]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    if wanted:
        mp.spawn(_rank, (port, wanted, arguments.data, arguments.out, record), nprocs=RANKS)


if __name__ == "__main__":
    main()
