"""Writes what the records in results/runs say into docs/results.md, between two marks.

    python -m bench.papers [--check]

`make results DATA=folder` trains what is missing first.
"""

from __future__ import annotations

import argparse
import sys

from .. import marked
from . import activations, coding, formats, laws, pruning, scales, together
from .records import ROOT, Records, names_in, spread_of_plain, table

WRITER = "python -m bench.papers"


def _head(records: Records) -> str:
    plain = records["plain_seed1"].config
    mean, deviation, count = spread_of_plain(records)
    machines = sorted({run.config["machine"] for run in records.runs.values()})
    commits = sorted({run.config["commit"] for run in records.runs.values()})
    steps = plain["training_samples"] // plain["batch"] * plain["epochs"]
    seconds = [run.end["step_seconds"] for run in records.runs.values()]
    lines = [
        "## The papers, measured",
        "Which results of three papers can be reproduced on two CPU cores. `make results "
        "DATA=folder` trains the runs of `results/runs.txt` (docs/runs.md), and `python -m "
        "bench.papers` writes this section from their records in `results/runs/`. Unless stated "
        "otherwise, a run is "
        f"a ResNet-20 from scratch on {plain['training_samples']:,} images of CIFAR-10 for "
        f"{plain['epochs']} epochs ({steps:,} steps of {plain['batch']}, SGD, one-cycle schedule "
        f"with a "
        f"peak of {plain['rate']:g}), on one thread; accuracy is that of 10,000 test images "
        f"(standard error "
        "0.5 points). Runs of one seed have the same first weights, the same images and the same "
        "order.",
        f"Plain training reaches {mean:.1f} % ± {deviation:.1f} (standard deviation over {count} "
        f"seeds). "
        "A difference between two single runs of less than about "
        f"{2 * deviation * 2**0.5:.1f} points may be chance. Noise costs more accuracy in short "
        "runs of a narrow network than in long ones.",
        f"{len(records.runs)} of {len(records.names)} runs are trained. Machine: "
        f"{'; '.join(machines)}. Commits: {', '.join(commits)}. Seconds of training in total, "
        f"on a machine with other work: {sum(seconds):,.0f}.",
    ]
    if "c4f2f25c" in commits:  # that tree was not kept; the nearest that was is named
        lines[-1] += " c4f2f25c is not in the history; 022b030 added nearly the same trainer."
    if len(machines) > 1:
        lines[-1] += (
            " On another processor torch's products round differently. Runs of one seed on two "
            "machines have the same first weights and images, but otherwise differ as two seeds do."
        )
    return "\n\n".join(lines)


def _appendix(records: Records) -> str:
    rows = []
    for name, run in records.runs.items():
        end = run.end
        accuracy = end["test_accuracy"]
        rows.append(
            [
                f"`{name}`",
                f"{100 * accuracy:.2f} %" if accuracy is not None else "-",
                f"{run.epochs[-1]['loss']:.4f}" if run.epochs else "-",
                f"{end['sparsity']:.3f}" if end["sparsity"] else "-",
                f"{end['bits_per_value']:.2f}",
                "yes" if end["diverged"] else "",
            ]
        )
    heads = ["run", "test accuracy", "last training loss", "zeros", "bits a value", "diverged"]
    return "### All runs\n\n" + table(heads, rows)


def text_of(records: Records) -> str:
    sections = [_head(records)]
    sections += [
        part.section(records)
        for part in (laws, formats, scales, pruning, coding, activations, together)
    ]
    sections.append(_appendix(records))
    return "\n\n".join(section for section in sections if section)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.papers", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it would")
    arguments = parser.parse_args()
    records = Records(ROOT / "results" / "runs", names_in(ROOT / "results" / "runs.txt"))
    page = ROOT / "docs" / "results.md"
    if arguments.check:
        differs = marked.read(page, WRITER) != text_of(records)
        if differs:
            print("docs/results.md is not what python -m bench.papers makes of results/runs")
        return int(differs)
    marked.write(page, WRITER, text_of(records))
    print(f"docs/results.md: {len(records.runs)} of {len(records.names)} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
