"""The section of docs/results.md about the jobs of bench.jobs, from records and results/jobs.json.

    python -m bench.jobs_page [--results DIR] [--page docs/results.md]

No number and no verdict of that section is written by hand.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from bench import marked
from bench.jobs import SEEDS, SETTINGS, STEPS

WRITER = "python -m bench.jobs_page"

ABOUT = """\
Two jobs as users have them, with every setting beside plain training; a row is a setting. *Saved*
is what autograd saves in the forward pass of the first batch, *sent* what a rank sends in the
whole run. *Step* is the time of a training step as a ratio to a plain step, timed by turns in one
process; *peak* is the peak of resident memory less what is resident between steps. *Difference*
is from plain training with the same seeds, a mean. Runs of one seed start from the same weights
and see the same batches; on machines whose matrix products round differently
they differ as two seeds do. An empty cell was not measured."""


@dataclass(frozen=True)
class Target:
    """What a job is judged by: the metric of end lines, how it is written, and the least difference
    that says something, which the spread of plain training's seeds may raise."""

    title: str
    about: str
    arguments: str
    metric: str
    column: str
    unit: float  # what is written is the metric times this
    digits: int
    suffix: str
    is_loss: bool
    noise: float
    why_noise: str

    def show(self, value: float, sign: str = "") -> str:
        return f"{value * self.unit:{sign}.{self.digits}f}"


TARGETS = {
    "finetune": Target(
        title="Fine-tuning a pretrained BERT",
        about="MiniLM-L6 (22.7 million parameters) learns SST-2, batches of 32 sentences, AdamW at "
        "5e-5 with linear decay; accuracy in percent on the 872 sentences of the official dev set.",
        arguments="--data SST2 --weights MODEL",
        metric="test_accuracy",
        column="accuracy by seed",
        unit=100,
        digits=1,
        suffix=" points",
        is_loss=False,
        noise=0.011,
        why_noise="the standard error of an accuracy from 872 sentences, or the range of plain "
        "training's seeds if that is larger",
    ),
    "shakespeare": Target(
        title="nanoGPT's shakespeare_char",
        about="A GPT of 4 layers, 128 wide, at nanoGPT's setting for a CPU; loss in nats a "
        "character on the last tenth of the text. nanoGPT's README gives 1.88, measured on 20 "
        "random batches.",
        arguments="--data FILE",
        metric="test_loss",
        column="loss by seed",
        unit=1,
        digits=3,
        suffix=" nats",
        is_loss=True,
        noise=0.01,
        why_noise="0.01, or the range of plain training's seeds if that is larger",
    ),
}


@dataclass
class Rows:
    """Of one setting: a config line, the end lines by seed, the row of --measure."""

    config: dict
    ends: dict[int, dict]
    measured: dict

    def less(self, plain: Rows, metric: str) -> float:
        """The mean of the differences from plain training with the same seeds."""
        both = self.ends.keys() & plain.ends.keys()
        return statistics.mean(self.ends[seed][metric] - plain.ends[seed][metric] for seed in both)


def read(folder: Path, job: str) -> dict[str, Rows]:
    """By setting, in the order of bench.jobs."""
    timed = folder / "jobs.json"
    measured = json.loads(timed.read_text())["rows"] if timed.exists() else []
    found = {}
    for name in SETTINGS:
        ends, config = {}, {}
        for seed in SEEDS:
            record = folder / "runs" / job / f"{name}_seed{seed}.jsonl"
            if record.exists():
                lines = [json.loads(line) for line in record.read_text().splitlines()]
                config, ends[seed] = lines[0], lines[-1]
        rows = [row for row in measured if (row["job"], row["setting"]) == (job, name)]
        if ends or rows:
            found[name] = Rows(config, ends, rows[0] if rows else {})
    return found


def _line(name: str, rows: Rows, plain: Rows, target: Target) -> list[str]:
    ends = list(rows.ends.values())
    values = " ".join(target.show(end[target.metric]) for end in ends)
    difference = saved = sent = step = peak = ""
    if ends and name != "plain":
        difference = target.show(rows.less(plain, target.metric), "+")
    if ends:
        fewer = ends[0]["plain_saved_bytes"] / ends[0]["saved_bytes"]
        saved = f"{ends[0]['saved_bytes'] / 1e6:.1f} MB"
        saved += f", {fewer:.2f} times fewer" if fewer != 1 else ""
    if ends and "sent_bytes" in ends[0]:
        # With two ranks torch's exchange sends every gradient once.
        floats = 4 * rows.config["parameters"] * ends[0]["steps"]
        bytes_sent = ends[0]["sent_bytes"]
        sent = f"{bytes_sent / 1e6:,.0f} MB, {floats / bytes_sent:.1f} times fewer than float32"
    if rows.measured:
        step = f"{rows.measured['ratio']:.2f}"
        peak = f"{rows.measured['peak'] - rows.measured['idle']:.0f} MiB"
    return [f"`{name}`", values, difference, saved, sent, step, peak]


def _statement(found: dict[str, Rows], target: Target, wanted: list[str]) -> str:
    plain = found["plain"]
    trained = {name: rows for name, rows in found.items() if rows.ends and name != "plain"}
    if not trained:
        return "Only plain training was run so far."
    own = [end[target.metric] for end in plain.ends.values()]
    noise = max(target.noise, max(own) - min(own))
    better_by = {
        name: rows.less(plain, target.metric) * (-1 if target.is_loss else 1)
        for name, rows in trained.items()
    }

    def names(chosen) -> str:
        return ", ".join(f"`{name}`" for name in chosen) or "none"

    text = (
        f"Differences of up to {target.show(noise)}{target.suffix} may be chance "
        f"({target.why_noise}). Worse than plain training by more: "
        f"{names(n for n, by in better_by.items() if by < -noise)}. "
        f"Better by more: {names(n for n, by in better_by.items() if by > noise)}."
    )
    single = [name for name, rows in trained.items() if len(rows.ends) < len(SETTINGS[name].seeds)]
    missing = [name for name in wanted if name not in trained and name != "plain"]
    text += f" With fewer seeds than planned: {names(single)}." if single else ""
    return text + (f" Not trained: {names(missing)}." if missing else "")


def section(folder: Path, job: str) -> list[str]:
    target, found = TARGETS[job], read(folder, job)
    if "plain" not in found or not found["plain"].ends:
        return [f"### {target.title}", "", "Not trained.", ""]
    head = ["setting", target.column, "difference", "saved", "sent", "step", "peak"]
    rows = [head, ["---"] * len(head)]
    rows += [_line(name, each, found["plain"], target) for name, each in found.items()]
    machines = sorted({each.config["machine"] for each in found.values() if each.config})
    wanted = [name for name, each in SETTINGS.items() if not (each.lora and job == "shakespeare")]
    return [
        f"### {target.title}",
        "",
        f"{target.about} {STEPS[job]:,} steps (`python -m bench.jobs {job} {target.arguments}`, a "
        f"thread a rank; {'; '.join(machines)}).",
        "",
        *("| " + " | ".join(cells) + " |" for cells in rows),
        "",
        _statement(found, target, wanted),
        "",
    ]


def page(folder: Path) -> str:
    return "\n".join([ABOUT, "", *(line for job in TARGETS for line in section(folder, job))])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.jobs_page")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--page", type=Path, default=Path("docs/results.md"))
    arguments = parser.parse_args()
    marked.write(arguments.page, WRITER, page(arguments.results))


if __name__ == "__main__":
    main()
