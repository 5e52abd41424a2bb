"""Saved tensors of compiled graphs, packed, against torch.compile as it is, with a memory budget
and with checkpointing.

A training step of four networks in each of COMPILED_WAYS of bench/saved_models.py: its time in
turns within one process, as a ratio to plain torch.compile; what autograd keeps, what the process
has between steps and its peak, each from a process of its own; and the losses of training steps of
small ones, compiled and eager, with the same settings, beside those of other seeds. Then the time
of GRADIENT_WAYS: gates and sparse layers, eager and compiled, each beside the same without them.

    python -m bench.suite_compile --out results/compile.json [--part PART ...] [--quick]

measures the parts given anew, and leaves the others of the file as they are: of each network
`gpt:time`, `gpt:memory`, `gpt:losses` and `gpt:gradients`. --only WAY: of memory, and of times
beside torch.compile; the others stay.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.saved_memory import in_process
from bench.saved_models import (
    COMPILED,
    COMPILED_WAYS,
    GRADIENT_WAYS,
    NO_DROPOUT,
    Network,
    Training,
    networks,
    small_networks,
)
from bench.timing import Row, commit, print_table, race, write_json

NETWORKS = ("gpt", "resnet", "bert", NO_DROPOUT)
KINDS = ("time", "memory", "losses", "gradients")
OURS = "saved=4, activations=3"
STEPS, SEEDS = 200, 3


@dataclass
class CompileRow(Row):
    """milliseconds: 0 where no time was measured; then the ratio is of bytes kept, or of losses.
    In MiB as bench/saved_memory.py has them; loss: the mean of the last tenth of the steps."""

    part: str = ""
    commit: str = ""
    saved: float | None = None
    held: float | None = None
    idle: float | None = None
    peak: float | None = None
    loss: float | None = None


def time_rows(name: str, quick: bool, only: list[str]) -> list[Row]:
    network = networks(quick)[name]
    ways = [way for way in COMPILED_WAYS if way in (COMPILED, *(only or COMPILED_WAYS))]
    runs = {way: Training(network, way).step for way in ways}
    return race("compile", network.title, COMPILED, runs, 0.5 if quick else 40.0, min_rounds=3)


def memory_rows(name: str, quick: bool, only: list[str]) -> list[Row]:
    case = networks(quick)[name].title
    return [
        CompileRow("compile", case, way, 0.0, 0.0, **in_process(name, way, quick))
        for way in only or COMPILED_WAYS
    ]


def gradient_rows(name: str, quick: bool) -> list[Row]:
    """The ratio is to the same, eager or compiled, without gates and sparse layers."""
    network = networks(quick)[name]
    runs = {way: Training(network, way).step for way in GRADIENT_WAYS}
    rows = race("compile", network.title, "torch", runs, 0.5 if quick else 40.0, min_rounds=3)
    plain = {row.name: row.milliseconds for row in rows}
    for row in rows:
        row.ratio = row.milliseconds / plain[row.name.split(",")[0]]
    return rows


def losses(network: Network, way: str, quick: bool, seed: int) -> float:
    """The mean of the last tenth of the losses; the batches, and so the draws, are the seed's."""
    training = Training(network, way)
    training.optimizer = torch.optim.Adam(training.model.parameters(), lr=1e-3)
    torch.manual_seed(100 + seed)
    batches = [
        network.inputs(network.batch) for _ in range(4)
    ]  # Few, so that there is something to learn.
    found = []
    for step in range(10 if quick else STEPS):
        training.inputs = batches[step % len(batches)]
        training.optimizer.zero_grad()
        loss = training.loss()
        loss.backward()
        training.optimizer.step()
        found.append(loss.item())
    return statistics.mean(found[-max(1, len(found) // 10) :])


def loss_rows(name: str, quick: bool) -> list[Row]:
    network = small_networks()[name]
    ways = ("torch", OURS, f"{COMPILED}, {OURS}")
    seeds = range(1 if quick else SEEDS)
    found = {
        f"{way}, seed {seed}": losses(network, way, quick, seed) for way in ways for seed in seeds
    }
    unit = found["torch, seed 0"]
    return [
        CompileRow("compile", network.title, way, 0.0, loss / unit, loss=loss)
        for way, loss in found.items()
    ]


def all_parts(quick: bool) -> list[str]:
    return [f"{name}:{kind}" for name in NETWORKS if name in networks(quick) for kind in KINDS]


def rows_of(part: str, quick: bool, only: list[str]) -> list[CompileRow]:
    measured = commit()
    name, kind = part.split(":")
    rows = {
        "time": lambda: time_rows(name, quick, only),
        "memory": lambda: memory_rows(name, quick, only),
        "losses": lambda: loss_rows(name, quick),
        "gradients": lambda: gradient_rows(name, quick),
    }[kind]()
    own = [row if isinstance(row, CompileRow) else CompileRow(**vars(row)) for row in rows]
    for row in own:
        row.part, row.commit = part, measured
    return own


def run(quick: bool) -> list[CompileRow]:
    return [row for part in all_parts(quick) for row in rows_of(part, quick, [])]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.suite_compile")
    parser.add_argument("--part", action="append", metavar="PART", help="default: all")
    parser.add_argument("--only", action="append", default=[], choices=COMPILED_WAYS)
    parser.add_argument("--quick", action="store_true", help="small networks, to see that it runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    parts = all_parts(arguments.quick)
    torch.set_num_threads(arguments.threads)
    rows: list[dict] = []
    if arguments.out and arguments.out.exists():
        rows = json.loads(arguments.out.read_text())["rows"]
    for part in arguments.part or parts:
        measured = rows_of(part, arguments.quick, arguments.only)
        names = {row.name for row in measured}
        rows = [row for row in rows if row["part"] != part or row["name"] not in names]
        rows += [{k: v for k, v in vars(row).items() if v is not None} for row in measured]
        units = {
            row["part"]: row["saved"] for row in rows if row["name"] == COMPILED and "saved" in row
        }
        for row in rows:
            if "saved" in row and row["part"] in units:
                row["ratio"] = row["saved"] / units[row["part"]]
        rows.sort(key=lambda row: parts.index(row["part"]))
        print_table(measured)
        if arguments.out:
            quick = " --quick" if arguments.quick else ""
            command = f"python -m bench.suite_compile{quick} --out {arguments.out}"
            write_json(arguments.out, command, rows, line_each=True)


if __name__ == "__main__":
    main()
