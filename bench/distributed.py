"""Seconds a step and bytes on the wire: data-parallel gradients between two and four processes.

    python -m bench.distributed --out results/distributed.json

Run as root every rank lives in a network namespace of its own behind a link of 100 Mbit/s, 1 Gbit/s
or no limit (bench/links.py); otherwise all meet on loopback, and the record says so. A step is
backward() of DDP with buckets of 25 MB on 25.9 million parameters whose gradients are there at once
(bench/distributed_gradients.py): the time of the exchange and of what it takes to make it small,
with nothing to hide behind. One thread a rank. All exchanges take turns within a run; the best time
counts, as a ratio to float32's in the same run. Bytes are what a rank's interface sent in a step,
frames and acknowledgements included, and CPU seconds those of a rank's process, both on average
over the ranks.

There are --runs runs for each number of ranks and each link, every one with processes of its own.
Those that --out has already are not repeated, unless --fresh is given: it can be done in parts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
from math import prod
from pathlib import Path

import torch

from bench.distributed_codecs import exchanges
from bench.distributed_gradients import recorded, scaled
from bench.links import joined, set_rate, why_not
from bench.timing import commit, cpu_name

ROOT = Path(__file__).parent.parent
RATES = {"100 Mbit/s": "100mbit", "1 Gbit/s": "1gbit", "unlimited": None}
ROUNDS = {"100 Mbit/s": 4, "1 Gbit/s": 10, "unlimited": 12, "loopback": 12}


def free_port() -> int:
    """For loopback; a new namespace has all its ports free."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_ranks(
    places: list, rate: str | None, rounds: int, seconds: float, scale: float, names: list[str]
) -> dict:
    port = 29500 if places[0].namespace else free_port()
    set_rate(places, None)
    processes = []
    try:
        for rank, place in enumerate(places):
            argv = [sys.executable, "-m", "bench.distributed_rank"]
            argv += ["--rank", str(rank), "--ranks", str(len(places))]
            argv += ["--meet", f"{places[0].address}:{port}", "--interface", place.interface]
            argv += ["--scale", str(scale), "--rounds", str(rounds)]
            argv += ["--seconds", str(seconds), "--names", *names]
            processes.append(
                subprocess.Popen(
                    place.command(argv),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=ROOT,
                    env=os.environ | {"GLOO_SOCKET_IFNAME": place.interface},
                )
            )
        for process in processes:
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("a rank ended before it was ready: its words are above")
        set_rate(places, rate)
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        found = processes[0].stdout.readline()
        set_rate(places, None)
        for process in processes:
            if process.wait(timeout=60):
                raise RuntimeError("a rank ended with an error: its words are above")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return json.loads(found)


def rows_of(ranks: int, link: str, found: dict, run: int = 1) -> list[dict]:
    unit = min(found["float32"]["seconds"])
    return [
        {
            "ranks": ranks,
            "link": link,
            "name": name,
            "run": run,
            "seconds": round(min(numbers["seconds"]), 5),
            "median": round(statistics.median(numbers["seconds"]), 5),
            "steps": len(numbers["seconds"]),
            "cpu_seconds": round(statistics.median(numbers["cpu_seconds"]), 5),
            "bytes": round(statistics.median(numbers["bytes"])),
            "faster": round(unit / min(numbers["seconds"]), 4),
        }
        for name, numbers in found.items()
    ]


def print_rows(rows: list[dict]) -> None:
    previous = None
    for row in rows:
        if (case := (row["ranks"], row["link"])) != previous:
            print(f"\n{row['ranks']} ranks, {row['link']}, run {row['run']}: best seconds a step,")
            print("  times float32's speed, CPU seconds of a rank, MB sent")
            previous = case
        print(
            f"  {row['name']:<24} {row['seconds']:9.4f} {row['faster']:7.2f} "
            f"{row['cpu_seconds']:9.4f} {row['bytes'] / 1e6:9.2f}",
            flush=True,
        )


def key_of(row: dict) -> tuple:
    return row["ranks"], row["link"], row.get("run", 0)


def merged(record: dict, rows: list[dict]) -> list[dict]:
    """The record's rows with those of a run, which replace it if it was there, and whatever was
    recorded of its ranks and link by another commit."""
    new, commits = {key_of(row) for row in rows}, {row["commit"] for row in rows}
    kept = [
        row
        for row in record.get("rows", [])
        if key_of(row) not in new
        and (row["commit"] in commits or key_of(row)[:2] not in {key[:2] for key in new})
    ]
    return sorted(
        kept + rows, key=lambda row: (row["ranks"], list(ROUNDS).index(row["link"]), row["run"])
    )


def has_run(path: Path | None, key: tuple, names: list[str]) -> bool:
    if path is None or not path.exists():
        return False
    rows = json.loads(path.read_text())["rows"]
    return set(names) <= {row["name"] for row in rows if key_of(row) == key}


def write(path: Path, rows: list[dict], scale: float) -> None:
    before = json.loads(path.read_text()) if path.exists() else {}
    record = {
        "command": f"python -m bench.distributed --out {path}",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
    }
    fresh = {"values": sum(prod(scaled(shape, scale)) for shape, _ in recorded().values())}
    for row in rows:
        row.setdefault("commit", commit().removesuffix("-dirty"))
    lines = ",\n  ".join(json.dumps(row) for row in merged(before, rows))
    head = json.dumps(record | fresh, indent=1).removesuffix("\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head},\n "rows": [\n  {lines}\n ]\n}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.distributed")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--links", nargs="+", choices=list(RATES), default=list(RATES))
    parser.add_argument("--names", nargs="+", choices=list(exchanges()), help="default: all")
    parser.add_argument("--runs", type=int, default=3, help="of each race (%(default)s)")
    parser.add_argument("--fresh", action="store_true", help="repeat what --out has")
    parser.add_argument("--seconds", type=float, default=150, help="most of a race (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the parameters' number")
    parser.add_argument("--loopback", action="store_true", help="make no namespaces")
    parser.add_argument("--out", type=Path, help="a record to write, or to complete")
    arguments = parser.parse_args()
    names = arguments.names or list(exchanges())
    if "float32" not in names:
        names = ["float32", *names]
    why = "asked for" if arguments.loopback else why_not()
    if why:
        print(f"The ranks meet on loopback, whose speed nobody limits: {why}.")
        arguments.links = ["loopback"]
    torch.set_num_threads(1)
    races = itertools.product(arguments.ranks, arguments.links, range(1, arguments.runs + 1))
    for key in races:
        ranks, link, run = key
        if not arguments.fresh and has_run(arguments.out, key, names):
            continue
        with joined(ranks, loopback=bool(why)) as places:
            limits = RATES.get(link), ROUNDS[link], arguments.seconds, arguments.scale
            found = run_ranks(places, *limits, names)
        rows = rows_of(ranks, link, found, run)
        print_rows(rows)
        if arguments.out:
            write(arguments.out, rows, arguments.scale)


if __name__ == "__main__":
    main()
