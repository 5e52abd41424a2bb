"""Below which bandwidth does a codec pay off? The formula of slimgrad.distributed.estimate.

    python -m bench.distributed_cost --out results/distributed_cost.json    # measures the codecs
    python -m bench.distributed_cost --page docs/distributed.md  # writes its tables

What coding a value takes is measured on the gradients of the benchmark, with one thread; the rest
is arithmetic. The page also has the formula's prediction beside every step that
results/distributed.json measured.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch

from bench import marked
from bench.distributed_page import by_case
from bench.timing import commit, cpu_name
from slimgrad.distributed.cost import Link, Speed
from slimgrad.distributed.estimation import PLAIN, Estimate, Workload, measured_workload
from slimgrad.distributed.link import bandwidth_text
from slimgrad.distributed.speed import sample_sizes

RESULTS = Path(__file__).parent.parent / "results"
RANKS = (8, 64, 1024)
BANDWIDTHS = (1e9, 10e9, 100e9)
LATENCY = 20e-6  # of a message in a data centre
SLOW_LINKS = {"100 Mbit/s": Link(1e8, 1e-4), "1 Gbit/s": Link(1e9, 1e-4)}  # of the benchmark

WRITER = "python -m bench.distributed_cost"
TEXT = Path(__file__).parent / "distributed_cost.md"


def measured() -> dict:
    from bench.distributed_gradients import gradients

    grads = [grad.flatten() for grad in gradients(seed=1).values()]
    sizes = [grad.numel() for grad in grads]
    samples = [g[:n].clone() for g, n in zip(grads, sample_sizes(sizes), strict=True)]
    load = measured_workload(samples, sizes, None)
    return {
        "values": load.values,
        "small": load.small,
        "tensors": load.tensors,
        "cast": load.cast,
        "speeds": {name: asdict(speed) for name, speed in load.speeds.items()},
    }


def workload(record: dict, threads: float = 1) -> Workload:
    """With `threads` threads that code in parallel: blocks are independent of each other. Half a
    thread is one that shares its core with another rank's."""
    speeds = {}
    for name, numbers in record["speeds"].items():
        work = {key: numbers[key] / threads for key in ("encode", "add", "decode")}
        to_all = numbers.get("to_all", False)
        speeds[name] = Speed(numbers["bytes_per_value"], **work, to_all=to_all)
    return Workload(
        record["values"], record["small"], record["tensors"], record["cast"] / threads, speeds
    )


def paper_table(load: Workload) -> list[str]:
    cases = [(ranks, bandwidth) for ranks in RANKS for bandwidth in BANDWIDTHS]
    lines = ["| | " + " | ".join(f"{n} ranks, {bandwidth_text(b)}" for n, b in cases) + " |"]
    lines.append("|---" * (1 + len(cases)) + "|")
    estimates = [Estimate(load, n, Link(b, LATENCY), "") for n, b in cases]
    for name in [row.name for row in estimates[0].rows]:
        cells = []
        for found in estimates:
            seconds = found.row(name).seconds
            text = f"{seconds:.3g}"
            cells.append(f"**{text}**" if name == found.best else text)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def even_table(loads: dict[str, Workload]) -> list[str]:
    heads = [f"{n} ranks, {what}" for what in loads for n in RANKS]
    lines = ["| pays below | " + " | ".join(heads) + " |", "|---" * (1 + len(heads)) + "|"]
    names = list(next(iter(loads.values())).speeds)
    for name in names:
        cells = []
        for load in loads.values():
            for ranks in RANKS:
                even = [load.break_even(name, plain, ranks, LATENCY) for plain in PLAIN]
                cells.append(" / ".join(bandwidth_text(e) if e else "never" for e in even))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def check_table(record: dict, measured: dict) -> list[str]:
    """Predicted and measured: the best of all runs, and what the ratios are."""
    lines = ["| | ranks | link | measured | predicted | ratio |", "|---|---|---|---|---|---|"]
    names = {"float32": "float32", "fp16 hook": "fp16"}
    ratios: dict[int, list[float]] = {}
    for (ranks, at, what), runs in by_case(measured["rows"]).items():
        load = workload(record, min(1, measured["cores"] / ranks))
        name = names.get(what, what)
        link = SLOW_LINKS.get(at)
        if not link or (name not in load.speeds and name not in PLAIN):
            continue
        predicted = load.seconds(name, ranks, link)
        seconds = min(row["seconds"] for row in runs)
        ratios.setdefault(ranks, []).append(predicted / seconds)
        lines.append(
            f"| {name} | {ranks} | {at} | {seconds:.3f} | {predicted:.3f} "
            f"| {predicted / seconds:.2f} |"
        )
    found = [f"{min(r):.2f} to {max(r):.2f} with {n} ranks" for n, r in sorted(ratios.items())]
    return [f"Predicted over measured: {', '.join(found)}.", "", *lines]


def page(record: dict, measured: dict) -> str:
    load = workload(record)
    speeds = ["| | bits a value | encode, ns | add, ns | decode, ns |", "|---|---|---|---|---|"]
    speeds += [
        f"| {name} | {8 * s.bytes_per_value:.2f} | {1e9 * s.encode:.2f} | {1e9 * s.add:.2f} "
        f"| {1e9 * s.decode:.2f} |"
        for name, s in load.speeds.items()
    ]
    parts = {
        "MACHINE": f"{record['cpu']}, one thread, torch {record['torch']}",
        "LATENCY": f"{1e6 * LATENCY:.0f}",
        "SPEEDS": "\n".join(speeds),
        "PAPER": "\n".join(paper_table(load)),
        "PAPER16": "\n".join(paper_table(workload(record, 16))),
        "EVEN": "\n".join(even_table({"one thread": load, "16 threads": workload(record, 16)})),
        "CHECK": "\n".join(check_table(record, measured)) if measured else "Not measured.",
    }
    text = TEXT.read_text()
    for name, part in parts.items():
        text = text.replace("{" + name + "}", part)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.distributed_cost")
    parser.add_argument("--out", type=Path, help="measure, and write the record")
    parser.add_argument("--page", type=Path, help="write the tables of this page from the records")
    arguments = parser.parse_args()
    if arguments.out:
        torch.set_num_threads(1)
        head = {
            "command": f"python -m bench.distributed_cost --out {arguments.out}",
            "commit": commit(),
            "cpu": cpu_name(),
            "torch": torch.__version__,
        }
        arguments.out.write_text(json.dumps(head | measured(), indent=1) + "\n")
    if arguments.page:
        speed = RESULTS / "distributed.json"
        measured_steps = json.loads(speed.read_text()) if speed.exists() else {}
        record = json.loads((RESULTS / "distributed_cost.json").read_text())
        marked.write(arguments.page, WRITER, page(record, measured_steps))


if __name__ == "__main__":
    main()
