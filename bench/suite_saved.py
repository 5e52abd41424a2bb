"""All that backward keeps, packed, against torch, checkpointing and torch.compile's memory budget.

First a tensor alone: packing and unpacking it, in multiples of torch's copy of it. Then a training
step of four networks in each of the ways of bench/saved_models.py: its time in turns within one
process, and what autograd keeps, what the process has between steps and its peak, each from a
process of its own. Last the largest batch that fits into the memory that torch needs for the batch
of the table.

    python -m bench.suite_saved --out results/saved.json [--part PART ...] [--quick]

measures the parts given anew, or with --missing what they lack, and leaves the others of the file
as they are, so that a long run can be cut up: `tensor`, and of each network its times, those of
compiled ones, its memory and its largest batches, as in `gpt:time`, `gpt:compiled`, `gpt:memory`,
`gpt:batch`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.saved_memory import in_process, largest_batch
from bench.saved_models import NO_DROPOUT, WAYS, Training, networks
from bench.timing import Row, commit, print_table, race, write_json

KINDS = ("time", "compiled", "memory", "batch")
COMPILED = [way for way in WAYS if way.startswith("torch.compile")]
BATCH_WAYS = [
    "torch",
    "torch.utils.checkpoint",
    "activations=3",
    "saved=8",
    "saved=4",
    "saved=4, activations=3",
]


@dataclass
class SavedRow(Row):
    """A row of a network: times may be of another run than bytes, so each part has its commit.

    milliseconds: 0 where no time was measured; then the ratio is of bytes kept, or of batches.
    MiB: kept by autograd; held: as the system sees it; idle: resident between steps; peak.
    batch: the largest within `within` MiB beside what is idle."""

    part: str = ""
    commit: str = ""
    saved: float | None = None
    held: float | None = None
    idle: float | None = None
    peak: float | None = None
    batch: int | None = None
    within: float | None = None


def tensor_rows(quick: bool) -> list[Row]:
    """The tensor is as large as the largest that the GPT of the table keeps, and random."""
    ops = torch.ops.slimgrad
    rows: list[Row] = []
    size = 1 << 16 if quick else 1 << 22
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(size).to(dtype)
        sparse = x.relu()
        out = torch.empty_like(x)
        kind = str(dtype).removeprefix("torch.")
        case = f"{size >> 10} Ki {kind}"
        packs = {"torch: copy_": lambda x=x, out=out: out.copy_(x)}
        packs["torch: clone"] = lambda x=x: x.clone()
        unpacks = dict(packs)
        for bits in (8, 4, 2):
            group = 0  # the default one
            for rounding in ("stochastic", "nearest"):
                packs[f"{bits} bits, {rounding}"] = (
                    lambda x=x, bits=bits, group=group, rounding=rounding: ops.pack_saved(
                        x, bits, group, rounding, 1, 0
                    )
                )
            packed = ops.pack_saved(x, bits, group, "stochastic", 1, 0)
            unpacks[f"{bits} bits"] = lambda x=x, packed=packed, bits=bits, group=group: (
                ops.unpack_saved(packed, x.size(), x.stride(), x.dtype, bits, group)
            )
        packs["exact, half zeros"] = lambda sparse=sparse: ops.pack_exact(sparse)
        packed = ops.pack_exact(sparse)
        unpacks["exact, half zeros"] = lambda x=x, packed=packed: ops.unpack_exact(
            packed, x.size(), x.stride(), x.dtype
        )
        seconds = 0.2 if quick else 3.0
        rows += race("saved", f"{case}, packing", "torch: copy_", packs, seconds)
        rows += race("saved", f"{case}, unpacking", "torch: copy_", unpacks, seconds)
    return rows


def _race_of(ways: list[str], name: str, quick: bool, seconds: float) -> list[Row]:
    network = networks(quick)[name]
    runs = {way: Training(network, way).step for way in ways}
    return race("saved", network.title, "torch", runs, seconds, min_rounds=3)


def time_rows(name: str, quick: bool) -> list[Row]:
    eager = [way for way in WAYS if way not in COMPILED]
    return _race_of(eager, name, quick, 0.5 if quick else 36.0)


def compiled_rows(name: str, quick: bool) -> list[Row]:
    """A race of their own, for compiling takes longer than all else."""
    return _race_of(["torch", *COMPILED], name, quick, 0.5 if quick else 15.0)


def _wanted(ways: list[str], done: dict[str, SavedRow], limit: int | None) -> list[str]:
    """Those that are done, and so many of the others."""
    new = [way for way in ways if way not in done][:limit]
    return [way for way in ways if way in done or way in new]


def memory_rows(
    name: str, quick: bool, done: dict[str, SavedRow], limit: int | None
) -> list[SavedRow]:
    """The ratio is that of the bytes kept. done: rows that there are, by way."""
    case = networks(quick)[name].title
    rows: list[SavedRow] = []
    for way in _wanted(WAYS, done, limit):
        if way in done:
            rows.append(done[way])
            continue
        found = in_process(name, way, quick)
        rows.append(SavedRow("saved", case, way, 0.0, 0.0, **found))
        rows[-1].ratio = rows[-1].saved / rows[0].saved
        print(f"  {name}: {way}: {found}", file=sys.stderr, flush=True)
    return rows


def batch_rows(
    name: str, quick: bool, done: dict[str, SavedRow], limit: int | None
) -> list[SavedRow]:
    """The memory given is what torch's step needs beside what is idle. The ratio is of batches.
    done: rows that there are, by way."""
    network = networks(quick)[name]
    if "torch" in done:
        within = done["torch"].within
    else:
        torchs = in_process(name, "torch", quick)
        within = float(round(torchs["peak"] - torchs["idle"]))
    rows: list[SavedRow] = []
    for way in _wanted(BATCH_WAYS, done, limit):
        if way in done:
            rows.append(done[way])
            continue
        batch = largest_batch(name, way, quick, within)
        row = SavedRow("saved", network.title, way, 0.0, 0.0, batch=batch, within=within)
        rows.append(row)
        row.ratio = batch / max(1, rows[0].batch)
        print(f"  {name}: {way}: {batch} in {within} MiB", file=sys.stderr, flush=True)
    return rows


def all_parts(quick: bool) -> list[str]:
    names = [name for name in networks(quick) if name != NO_DROPOUT]
    return ["tensor", *[f"{name}:{kind}" for name in names for kind in KINDS]]


def rows_of(
    part: str, quick: bool, done: Sequence[SavedRow] = (), limit: int | None = None
) -> list[SavedRow]:
    """done: rows that need not be measured again; limit: measure so many others. Times are measured
    together, or not at all."""
    measured = commit()  # The tree may change meanwhile.
    if part == "tensor":
        rows = tensor_rows(quick)
    else:
        name, kind = part.split(":")
        known = {row.name: row for row in done}
        rows = {
            "time": lambda: time_rows(name, quick),
            "compiled": lambda: compiled_rows(name, quick),
            "memory": lambda: memory_rows(name, quick, known, limit),
            "batch": lambda: batch_rows(name, quick, known, limit),
        }[kind]()
    own = [row if isinstance(row, SavedRow) else SavedRow(**vars(row)) for row in rows]
    for row in own:
        if row not in done:
            row.part, row.commit = part, measured
    return own


def run(quick: bool) -> list[SavedRow]:
    if "bert" not in networks(quick):
        print("kept: transformers is not installed, so no BERT is measured")
    return [row for part in all_parts(quick) for row in rows_of(part, quick)]


def _told(row: SavedRow) -> dict:
    return {name: value for name, value in vars(row).items() if value is not None}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.suite_saved")
    parser.add_argument("--part", action="append", metavar="PART", help="default: all")
    parser.add_argument("--quick", action="store_true", help="small networks, to see that it runs")
    parser.add_argument(
        "--missing", action="store_true", help="of memory and batches, only ways not in the file"
    )
    parser.add_argument("--limit", type=int, help="and at most so many of them")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    parts = all_parts(arguments.quick)
    for part in arguments.part or ():
        if part not in parts:
            parser.error(f"--part: expected one of {', '.join(parts)}, got {part}")
    torch.set_num_threads(arguments.threads)
    import slimgrad  # noqa: F401  its ops

    rows: list[dict] = []
    if arguments.out and arguments.out.exists():
        rows = json.loads(arguments.out.read_text())["rows"]
    quick = " --quick" if arguments.quick else ""
    for part in arguments.part or parts:
        there = (
            [SavedRow(**row) for row in rows if row["part"] == part] if arguments.missing else []
        )
        measured = rows_of(part, arguments.quick, there, arguments.limit)
        print_table(measured)
        rows = [row for row in rows if row["part"] != part] + [_told(row) for row in measured]
        rows.sort(key=lambda row: parts.index(row["part"]))
        if arguments.out:
            command = f"python -m bench.suite_saved{quick} --out {arguments.out}"
            write_json(arguments.out, command, rows, line_each=True)


if __name__ == "__main__":
    main()
