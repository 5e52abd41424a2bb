"""The tables of docs/distributed.md from the records, so that no number in them is typed by hand.

python -m bench.distributed_page [--page docs/distributed.md]
"""

from __future__ import annotations

import argparse
import json
import statistics
import textwrap
from pathlib import Path

from bench import marked
from bench.distributed import ROUNDS
from bench.distributed_convergence import NAMES, verdicts

WRITER = "python -m bench.distributed_page"
RESULTS = Path(__file__).parent.parent / "results"

# Times faster than float32, at least. Of a codec with several tables each is held to the bar.
BARS = {
    "entropy-coded 8 bits": (("fp8", "uniform8"), {"100 Mbit/s": 6, "1 Gbit/s": 3}),
    "entropy-coded 4 bits": (("fp4", "uniform4"), {"100 Mbit/s": 9, "1 Gbit/s": 3.5}),
    "lossless": (("lossless",), {"100 Mbit/s": 1.1, "1 Gbit/s": 1}),
}
# With two ranks, in every run.
UNLIMITED = {"packed8": 1.05, "packed4": 1.15, "uniform8": 0.9, "lossless": 0.65}
RIVAL = "int8 exchange"


def _held_to(name: str, kinds: tuple[str, ...]) -> bool:
    """ "uniform8 gennorm" is held to what "uniform8" is."""
    return name.split()[0] in kinds


def by_case(rows: list[dict]) -> dict[tuple, list[dict]]:
    """The runs of every exchange, by ranks, link and name."""
    cases: dict[tuple, list[dict]] = {}
    for row in rows:
        cases.setdefault((row["ranks"], row["link"], row["name"]), []).append(row)
    return cases


def bar_lines(rows: list[dict]) -> list[str]:
    """A line for everything that is held to a bar, which its slowest run has to meet."""
    lines = []
    cases = by_case(rows)
    for (ranks, link, name), runs in cases.items():
        goals = [of[link] for kinds, of in BARS.values() if link in of and _held_to(name, kinds)]
        if (ranks, link) == (2, "unlimited") and name in UNLIMITED:
            goals.append(UNLIMITED[name])
        slowest = min(row["faster"] for row in runs)
        lines += [_bar_line(runs, f"at least {goal}", slowest >= goal) for goal in goals]
        rivals = cases.get((ranks, link, RIVAL))
        if rivals and name.startswith("packed"):
            quickest = max(row["faster"] for row in rivals)
            goal = f"no less than the int8 exchange's {quickest:.2f}"
            lines.append(_bar_line(runs, goal, slowest >= quickest))
    return lines


def faster(runs: list[dict]) -> str:
    return " ".join(f"{row['faster']:.2f}" for row in runs)


def _bar_line(runs: list[dict], goal: str, met: bool) -> str:
    row = runs[0]
    cells = [row["name"], str(row["ranks"]), row["link"], goal, faster(runs)]
    return "| " + " | ".join([*cells, "met" if met else "**missed**"]) + " |"


def speed_tables(rows: list[dict]) -> list[str]:
    lines = []
    links = [link for link in ROUNDS if any(row["link"] == link for row in rows)]
    cases = by_case(rows)
    for ranks in sorted({row["ranks"] for row in rows}):
        names = list(dict.fromkeys(row["name"] for row in rows if row["ranks"] == ranks))
        lines += ["", f"### {ranks} ranks", ""]
        lines += ["| | " + " | ".join(links) + " |"]
        lines += ["|---" * (1 + len(links)) + "|"]
        for name in names:
            cells = [_speed_cell(cases.get((ranks, link, name), [])) for link in links]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _speed_cell(runs: list[dict]) -> str:
    if not runs:
        return "not measured"
    seconds = min(row["seconds"] for row in runs)
    worked = [row["cpu_seconds"] for row in runs if "cpu_seconds" in row]
    cpu = f", {statistics.median(worked):.3f} CPU s" if worked else ""
    megabytes = statistics.median(row["bytes"] for row in runs) / 1e6
    return f"{seconds:.3f} s, {faster(runs)} x{cpu}, {megabytes:.1f} MB"


def commits(rows: list[dict]) -> str:
    """Which code was measured, in a sentence for each number of ranks and link."""
    found: dict[str, list[str]] = {}
    for ranks, link in dict.fromkeys((row["ranks"], row["link"]) for row in rows):
        mine = [row for row in rows if (row["ranks"], row["link"]) == (ranks, link)]
        runs = len({row.get("run", 1) for row in mine})
        for commit in dict.fromkeys(row["commit"] for row in mine):
            found.setdefault(commit, []).append(
                f"{ranks} ranks, {link} ({runs} run{'s' if runs > 1 else ''})"
            )
    return " ".join(f"Commit {commit}: {'; '.join(what)}." for commit, what in found.items())


def convergence_table(record: dict) -> list[str]:
    rows = record["rows"]
    lines = ["| | | bits | final loss, by seed | difference | |", "|---|---|---|---|---|---|"]
    found = {(row["model"], row["name"]): row for row in verdicts(rows)}
    place = {name: i for i, name in enumerate(NAMES)}
    for row in sorted(rows, key=lambda r: (r["model"] != "demo", place.get(r["name"], 99))):
        losses = " ".join(f"{loss:.4f}" for loss in row["losses"])
        judged = found.get((row["model"], row["name"]))
        cells = ["", "noise: " + f"{statistics.stdev(row['losses']):.4f}"]
        if judged:
            word = "equal within noise" if judged["equal"] else "**worse**"
            cells = [f"{judged['difference']:+.4f} +- {judged['error']:.4f}", word]
        bits = f"{row['bits']:.2f}" if "bits" in row else ""
        lines.append(
            f"| {row['model']} | {row['name']} | {bits} | {losses} | {cells[0]} | {cells[1]} |"
        )
    return lines


def page(speed: dict, convergence: dict | None) -> str:
    rows = speed["rows"]
    bars = bar_lines(rows)
    missed = sum("**missed**" in line for line in bars)
    lines = [
        "`make bench-distributed` measures, `python -m bench.distributed_page` wrote this "
        f"section from `results/distributed.json`. {speed['cores']} cores ({speed['cpu']}) "
        f"carry all ranks, one thread each, torch {speed['torch']}, Gloo. Every rank has a "
        "network namespace behind a link that `tc` limits in both directions; bytes are "
        "counted at its interface. A step is `backward()` of DDP on "
        f"{speed['values'] / 1e6:.1f} million values whose gradients are ready at once, drawn "
        "from the distributions that they had in a real training "
        "(`bench/distributed_gradients.py`, `results/gradient_quantiles.json`). So the time is "
        "that of the exchange alone, without a backward pass to overlap with. It is the best of "
        "several steps; all exchanges take turns in a run.",
        "",
        "Each cell has the best seconds of a step, the speed relative to float32 in every run, CPU "
        "seconds of a rank's process in a step, and the megabytes that a rank sent. "
        "On the link `unlimited`, which is as fast as the kernel copies, coding can only cost "
        "time; the column shows how much. With four ranks, two share a core.",
        "",
        commits(rows),
        *speed_tables(rows),
        "",
        "### Bars",
        "",
        f"{len(bars) - missed} of {len(bars)} are met"
        + (f", **{missed} are missed**." if missed else "."),
        "",
        "| | ranks | link | times faster than float32: bar | measured | |",
        "|---|---|---|---|---|---|",
        *bars,
    ]
    if convergence:
        rows = verdicts(convergence["rows"])
        worse = [f"{r['model']} {r['name']}" for r in rows if not r["equal"]]
        seen = [f"{r['model']} {r['name']}" for r in rows if r["seen"]]
        lines += [
            "",
            "### Do they learn as well?",
            "",
            f"`{convergence['command']}`: two ranks, {convergence['seeds']} seeds, the demo's "
            "network and a small GPT; the loss is the mean over the last tenth of the steps. "
            "*Noise* is the standard deviation of float32's loss over seeds; a codec is *equal "
            "within noise* if its loss is higher by less than that. Comparing seed by seed is "
            "stricter, because runs of one seed differ in nothing else: the *difference* from "
            "float32 is the mean over seeds with its standard error, and is called seen if it "
            "exceeds two of these. The coder does not change what is decoded, so uniform8 stands "
            "for packed8 and for fitted laws as well. *Bits* are the bits a value that were sent, "
            "including headers and tensors of fewer than 4,096 values, which are sent as they "
            "are.",
            "",
            "All lossy codecs are equal within noise."
            if not worse
            else f"**Worse than float32 beyond noise: {', '.join(worse)}.** All others are equal "
            "within noise.",
            "",
            f"Seen in a comparison seed by seed, however small: {', '.join(seen) or 'none'}.",
            "",
            *convergence_table(convergence),
        ]
    wrapped = [line if line.startswith("|") else textwrap.fill(line, 120) for line in lines]
    return "\n".join(wrapped) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.distributed_page")
    parser.add_argument("--speed", type=Path, default=RESULTS / "distributed.json")
    curves = RESULTS / "distributed_convergence.json"
    parser.add_argument("--convergence", type=Path, default=curves)
    parser.add_argument("--page", type=Path, help="write them into this page; else print them")
    arguments = parser.parse_args()
    curves = arguments.convergence
    convergence = json.loads(curves.read_text()) if curves.exists() else None
    text = page(json.loads(arguments.speed.read_text()), convergence)
    if arguments.page:
        marked.write(arguments.page, WRITER, text)
    else:
        print(text)


if __name__ == "__main__":
    main()
