"""The tables of docs/saved.md from results/saved.json, compile.json and saved_convergence.json.

    python -m bench.saved_page [--results DIR] [--page docs/saved.md]

No number and no verdict of that page is written by hand.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from bench import marked
from bench.saved_convergence import PLAIN, TASKS, settings
from bench.saved_models import COMPILED, COMPILED_WAYS, GRADIENTS
from bench.suite_saved import BATCH_WAYS

WRITER = "python -m bench.saved_page"
MOST = {"pack": 1.5, "unpack": 1.0}  # copies of the tensor
TIME = 1.08  # of torch's step
FEWER = {"saved=4, activations=3": 7.0, "saved=8": 3.8}  # times fewer bytes than torch
SMALLEST = "saved=4, activations=3"  # whose peak is to be below that of checkpointing
CHECKPOINT = "torch.utils.checkpoint"
NAMES = ("saved.json", "saved_convergence.json", "compile.json")  # of the records

HOW = """\
Times are ratios to torch's eager mode; all ways take turns within one process, and the best of
several rounds is taken. *Kept* is what autograd holds between forward and backward, each storage
once and without parameters; *held* is by how much the process grows meanwhile (inputs were there
before); *idle* is resident memory between steps, and *peak* the most that is ever resident, in a
process of its own with `MALLOC_MMAP_THRESHOLD_=65536`. *Batch* is the largest batch that fits (one
larger by a sixteenth does not) under a limit set with `setrlimit(RLIMIT_DATA)`: the memory that
torch needs beside the idle process for the batch in the title. A process that compiled something
has the compiler resident: compare its peak minus its idle. In bold are bars that were missed, and
what a rival does better.
"""


def _verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def _table(head: list[str], lines: list[list[str]]) -> list[str]:
    rows = [head, ["---"] * len(head), *lines]
    return ["| " + " | ".join(cells) + " |" for cells in rows] + [""]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


# ---- one tensor ------------------------------------------------------------------------------


def tensor_section(rows: list[dict]) -> list[str]:
    rows = [row for row in rows if row["part"] == "tensor"]
    if not rows:
        return ["### One tensor", "", "Not measured.", ""]
    lines = [
        "### One tensor, in copies",
        "",
        "The unit is torch's `copy_` of the same tensor into memory",
    ]
    lines[-1] += " that is allocated already; `clone` allocates, as packing and unpacking do."
    lines.append("")
    cases = list(dict.fromkeys(row["case"] for row in rows))
    for case in cases:
        own = {row["name"]: row["ratio"] for row in rows if row["case"] == case}
        kind = "unpack" if case.endswith("unpacking") else "pack"
        cells = [[name, f"{ratio:.2f}"] for name, ratio in own.items()]
        lines += [f"{case} (bar {MOST[kind]}):", "", *_table(["", "copies"], cells)]
    lines += ["Bars:", ""]
    for case in cases:
        kind = "unpack" if case.endswith("unpacking") else "pack"
        own = {
            row["name"]: row["ratio"]
            for row in rows
            if row["case"] == case and " bits" in row["name"] and "nearest" not in row["name"]
        }
        worst = max(own, key=own.get)
        met = own[worst] <= MOST[kind]
        lines.append(f"- {case}: at most {own[worst]:.2f} ({worst}): {_verdict(met)}")
    return [*lines, ""]


# ---- networks --------------------------------------------------------------------------------


def _by_way(rows: list[dict], part: str) -> dict[str, dict]:
    return {row["name"]: row for row in rows if row["part"] == part}


def _bars(time: dict[str, dict], memory: dict[str, dict]) -> list[str]:
    lines = []
    for way, fewer in FEWER.items():
        if way in memory:
            times, grows = (memory["torch"][f] / memory[way][f] for f in ("saved", "held"))
            lines.append(
                f"- `{way}` keeps {times:.2f} times fewer bytes than torch (bar {fewer}): "
                f"{_verdict(times >= fewer)}; without the inputs, held is {grows:.2f} times less"
            )
        if way in time:
            ratio = time[way]["ratio"]
            lines.append(
                f"- `{way}`: a step takes {ratio:.3f} of torch's time (bar {TIME}): "
                + _verdict(ratio <= TIME)
            )
    if SMALLEST in memory:
        ours, theirs = memory[SMALLEST]["peak"], memory[CHECKPOINT]["peak"]
        lines.append(
            f"- `{SMALLEST}` peaks at {ours:.0f} MiB, checkpointing at {theirs:.0f} MiB: "
            + _verdict(ours < theirs)
        )
    return lines


def _rivals(time: dict[str, dict], memory: dict[str, dict], batch: dict[str, dict]) -> list[str]:
    """Where another way than ours is better than saved=4 with activations=3."""
    fields = [(memory, "saved", "keeps less", "MiB"), (memory, "peak", "has a lower peak", "MiB")]
    fields += [(time, "ratio", "is faster", "of torch's time")]
    lines = []
    for way in sorted({*time, *memory}):
        if not way.startswith("torch.") or (way not in memory and way not in time):
            continue
        better = []
        for rows, field, word, unit in fields:
            if way in rows and SMALLEST in rows and rows[way][field] < rows[SMALLEST][field]:
                theirs, ours = rows[way][field], rows[SMALLEST][field]
                digits = 3 if field == "ratio" else 0
                better.append(f"**{word}** ({theirs:.{digits}f} against {ours:.{digits}f} {unit})")
        if way in batch and SMALLEST in batch and batch[way]["batch"] > batch[SMALLEST]["batch"]:
            theirs, ours = batch[way]["batch"], batch[SMALLEST]["batch"]
            better.append(f"**fits a larger batch** ({theirs} against {ours})")
        said = ", ".join(better) if better else "is better in nothing that was measured"
        if way not in time:
            said += "; its time was not measured"
        lines.append(f"- Beside `{SMALLEST}`, {way} {said}.")
    return lines


def network_section(rows: list[dict], name: str) -> list[str]:
    time, memory, batch = (_by_way(rows, f"{name}:{kind}") for kind in ("time", "memory", "batch"))
    time = {**_by_way(rows, f"{name}:compiled"), **time}
    title = next(row["case"] for row in rows if row["part"].startswith(f"{name}:"))
    ways = list({**memory, **time, **batch})
    lines = []
    for way in ways:
        kept = memory[way]["saved"] if way in memory else None
        plain = memory["torch"]["saved"] if memory else None
        lines.append(
            [
                way,
                _number(kept, ".1f"),
                "-" if kept is None else f"{plain / kept:.2f}",
                _number(memory.get(way, {}).get("held"), ".1f"),
                _number(memory.get(way, {}).get("idle"), ".0f"),
                _number(memory.get(way, {}).get("peak"), ".0f"),
                _number(time.get(way, {}).get("ratio"), ".3f"),
                _number(batch.get(way, {}).get("batch"), "d"),
            ]
        )
    head = ["way", "kept, MiB", "times fewer", "held, MiB", "idle, MiB", "peak, MiB", "step"]
    within = next((row["within"] for row in batch.values()), None)
    head.append("batch" if within is None else f"batch in {within:.0f} MiB")
    section = [f"### {title}", "", *_table(head, lines)]
    if time:
        section += [f"A step of torch's took {time['torch']['milliseconds']:.0f} ms.", ""]
    missing = [
        word
        for word, found in (("times", time), ("memory", memory), ("largest batches", batch))
        if not found
    ]
    if time and not any(way.startswith("torch.compile") for way in time):
        missing.append("times of torch.compile")
    eager = [way for way in ways if not way.startswith("torch.compile")]
    missing += [f"times with {way}" for way in eager if time and way not in time]
    missing += [f"memory with {way}" for way in ways if memory and way not in memory]
    missing += [f"the batch with {way}" for way in BATCH_WAYS if batch and way not in batch]
    if missing:
        section += [f"Not measured: {', '.join(missing)}.", ""]
    return [*section, *_bars(time, memory), *_rivals(time, memory, batch), ""]


# ---- convergence -----------------------------------------------------------------------------


def _spread(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.4f} ± {deviation:.4f}"


def convergence_section(record: dict) -> list[str]:
    rows = record["rows"]
    seeds = len(rows[0]["runs"])
    lines = [
        "### Convergence",
        "",
        f"`{record['command']}`: mean and standard deviation over {seeds} seeds;",
    ]
    lines[-1] += " compare the differences, which are from the plain run of the same seed."
    lines.append("")
    measures = {"gpt": "held-out loss", "resnet": "test accuracy"}
    for model, measure in measures.items():
        own = {row["setting"]: row["runs"] for row in rows if row["model"] == model}
        if PLAIN not in own:
            continue
        cells = []
        for setting, runs in own.items():
            line = [setting]
            for field in ("loss", "held_out"):
                values = [run[field] for run in runs]
                line.append(_spread(values))
                less = [
                    run[field] - plain[field] for run, plain in zip(runs, own[PLAIN], strict=True)
                ]
                line.append("" if setting == PLAIN else _spread(less))
            cells.append(line)
        head = [model, "final loss", "difference", measure, "difference"]
        lines += _table(head, cells)
    done = {(row["model"], row["setting"]) for row in rows}
    missing = [f"{m} with {s}" for s in settings() for m in TASKS if (m, s) not in done]
    if missing:
        lines += [f"Not run: {'; '.join(missing)}.", ""]
    return lines


# ---- compiled graphs -------------------------------------------------------------------------

COMPILED_KEEPS = 6.0  # times fewer bytes than plain torch.compile


def _compiled_bars(time: dict[str, dict], memory: dict[str, dict]) -> list[str]:
    ours = f"{COMPILED}, {SMALLEST}"
    lines = []
    if {ours, COMPILED} <= memory.keys():
        fewer = memory[COMPILED]["saved"] / memory[ours]["saved"]
        lines.append(
            f"- `{SMALLEST}` keeps {fewer:.2f} times fewer bytes than plain torch.compile "
            f"(bar {COMPILED_KEEPS:.0f}): {_verdict(fewer >= COMPILED_KEEPS)}"
        )
    if ours in time:
        ratio = time[ours]["ratio"]
        lines.append(
            f"- `{SMALLEST}`: a step takes {ratio:.3f} of its time (bar {TIME}): "
            + _verdict(ratio <= TIME)
        )
    needs = {way: row["peak"] - row["idle"] for way, row in memory.items()}
    for what, ways in (
        ("the bits (2, 4, 8, all)", [f"{COMPILED}, saved={bits}" for bits in (2, 4, 8)]),
        ("torch's budget (0.2, 0.5, 1)", [f"{COMPILED}, budget {part}" for part in (0.2, 0.5)]),
    ):
        if {*ways, COMPILED} <= needs.keys():
            sizes = [needs[way] for way in (*ways, COMPILED)]
            grows = "grows" if sizes == sorted(sizes) else "**does not grow**"
            said = ", ".join(f"{size:.0f}" for size in sizes)
            lines.append(f"- what is needed {grows} with {what}: {said} MiB")
    for way in (way for way in needs if "budget" in way and ours in needs):
        if way not in time or ours not in time:
            continue
        if time[way]["ratio"] > time[ours]["ratio"]:
            lines.append(f"- {way} is slower ({time[way]['ratio']:.3f})")
            continue
        lines.append(
            f"- {way}, which is as fast, needs {needs[way]:.0f} MiB beside what is idle, "
            f"`{SMALLEST}` {needs[ours]:.0f}: " + _verdict(needs[ours] < needs[way])
        )
    return lines


def _losses(rows: dict[str, dict]) -> list[str]:
    """The difference of runs of the same seed, which have the same batches and weights."""
    by_way: dict[str, list[float]] = {}
    for name, row in rows.items():
        by_way.setdefault(name.rsplit(", seed", 1)[0], []).append(row["loss"])
    case = next(iter(rows.values()))["case"]
    cells = [[way, _spread(values)] for way, values in by_way.items()]
    seeds = len(by_way[SMALLEST])
    lines = _table([f"way ({case})", f"loss, {seeds} seeds"], cells)
    eager, compiled = by_way[SMALLEST], by_way[f"{COMPILED}, {SMALLEST}"]
    less = [b - a for a, b in zip(eager, compiled, strict=True)]
    noise = statistics.stdev(eager)
    lines.append(
        f"- compiled, `{SMALLEST}` ends at a loss of {statistics.mean(less):+.4f} beside eager's, "
        f"where seeds differ by {noise:.4f}: " + _verdict(abs(statistics.mean(less)) <= noise)
    )
    return lines


def _gradients(rows: dict[str, dict]) -> list[str]:
    lines = _table(["way", "step"], [[way, f"{row['ratio']:.3f}"] for way, row in rows.items()])
    for what in GRADIENTS:
        eager, compiled = (rows[f"{first}, {what}"]["ratio"] for first in ("torch", COMPILED))
        lines.append(
            f"- {what}: a compiled step takes {compiled:.3f} of that without them, an eager one "
            f"{eager:.3f}: " + _verdict(compiled <= eager)
        )
    return lines


def compiled_section(record: dict) -> list[str]:
    rows = record["rows"]
    commits = ", ".join(dict.fromkeys(row["commit"] for row in rows))
    lines = [
        "### Compiled graphs",
        "",
        f"`{record['command']}` (commits {commits}). The unit of times and bytes is torch.compile "
        "as it is. *Needs* is the peak minus what is idle. Losses are of the last tenth of 200 "
        "steps. Gates (`Prune(0.8)`) and sparse layers (`Prune(weight=0.9, input=0.5)`) are "
        "compared with the same way without them.",
        "",
    ]
    for name in dict.fromkeys(row["part"].split(":")[0] for row in rows):
        time, memory, losses, gradients = (
            _by_way(rows, f"{name}:{k}") for k in ("time", "memory", "losses", "gradients")
        )
        title = next(
            row["case"] for row in rows if row["part"] in (f"{name}:time", f"{name}:memory")
        )
        cells = []
        for way in (way for way in COMPILED_WAYS if way in memory or way in time):
            kept = memory.get(way)
            cells.append(
                [
                    way,
                    _number(kept and kept["saved"], ".1f"),
                    _number(kept and 1 / kept["ratio"], ".2f"),
                    _number(kept and kept["peak"] - kept["idle"], ".0f"),
                    _number(time.get(way, {}).get("ratio"), ".3f"),
                ]
            )
        head = ["way", "kept, MiB", "times fewer", "needs, MiB", "step"]
        lines += [f"#### {title}", "", *(_table(head, cells) if cells else [])]
        parts = {"times": time, "memory": memory, "losses": losses, "gates": gradients}
        missing = [word for word, found in parts.items() if not found]
        lines += [f"Not measured: {', '.join(missing)}.", ""] if missing else []
        lines += [*_compiled_bars(time, memory), ""]
        lines += [*_losses(losses), ""] if losses else []
        lines += [*_gradients(gradients), ""] if gradients else []
    return lines


def page(kept: dict | None, convergence: dict | None, compiled: dict | None = None) -> str:
    lines = ["`python -m bench.saved_page` writes this section from the records.", ""]
    if kept:
        commits = ", ".join(dict.fromkeys(row["commit"] for row in kept["rows"]))
        lines += [
            f"`{kept['command']}`, its parts one by one with `--part` (commits {commits}; "
            f"{kept['cpu']}, {kept['threads']} threads, torch {kept['torch']}). Only "
            "c3513be5 is in the history: the other commits were working states before 28d0956, "
            "which added these records. They have not been measured again.",
            "",
            HOW,
            *tensor_section(kept["rows"]),
        ]
        parts = (row["part"].split(":")[0] for row in kept["rows"] if row["part"] != "tensor")
        for name in dict.fromkeys(parts):
            lines += network_section(kept["rows"], name)
    if compiled:
        lines += compiled_section(compiled)
    if convergence:
        lines += convergence_section(convergence)
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.saved_page")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--page", type=Path, default=Path("docs/saved.md"))
    arguments = parser.parse_args()
    paths = [arguments.results / name for name in NAMES]
    records = [json.loads(path.read_text()) if path.exists() else None for path in paths]
    marked.write(arguments.page, WRITER, page(*records))


if __name__ == "__main__":
    main()
