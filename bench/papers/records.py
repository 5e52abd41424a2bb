"""The records in results/runs, by the names of results/runs.txt, and how tables are written."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from slimgrad.report.reading import read
from slimgrad.report.runs import Run

ROOT = Path(__file__).resolve().parents[2]


def names_in(list_file: Path) -> list[str]:
    """The runs of a list, in its order."""
    rows = [line.split() for line in list_file.read_text().splitlines()]
    return [row[0] for row in rows if row and row[0][0] not in "#@"]


class Records:
    """Runs that have finished. A table leaves out those that have not, and says so."""

    def __init__(self, folder: Path, names: Sequence[str]):
        self.names = list(names)
        self.runs: dict[str, Run] = {}
        for name in names:
            path = folder / f"{name}.jsonl"
            if path.exists():
                [run], _ = read([path])
                if run.end is not None:
                    self.runs[name] = run

    def missing(self) -> list[str]:
        return [name for name in self.names if name not in self.runs]

    def __contains__(self, name: str) -> bool:
        return name in self.runs

    def __getitem__(self, name: str) -> Run:
        return self.runs[name]

    def has(self, *names: str) -> bool:
        return all(name in self.runs for name in names)

    def accuracy(self, name: str) -> float:
        """Of the test images after the last epoch, in per cent; of a run that diverged, chance."""
        value = self.runs[name].result("test_accuracy")
        return 100 * value if value is not None else 10.0

    def loss(self, name: str) -> float:
        """Of training, mean over the last epoch."""
        epochs = self.runs[name].epochs
        return epochs[-1]["loss"] if epochs else float("nan")


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def spread_of_plain(records: Records) -> tuple[float, float, int]:
    """Mean accuracy of the plain runs, its standard deviation over seeds, and their number. A few
    seeds may agree by chance: the deviation is at least the standard error of 10,000 images."""
    found = [records.accuracy(n) for n in records.names if n.startswith("plain_") and n in records]
    mean = statistics.mean(found)
    deviation = statistics.stdev(found) if len(found) > 1 else 0.0
    return mean, max(deviation, (mean * (100 - mean) / 10_000) ** 0.5), len(found)


def cell(records: Records, name: str, baseline: str = "plain_seed1") -> str:
    """Accuracy, and how far it is from plain training with the same seed."""
    if name not in records:
        return "not trained yet"
    accuracy = records.accuracy(name)
    if records[name].end["diverged"]:
        return "diverged"
    if baseline not in records or name == baseline:
        return f"{accuracy:.1f} %"
    return f"{accuracy:.1f} % ({accuracy - records.accuracy(baseline):+.1f})"


def seeds(records: Records, stem: str, numbers: Iterable[int] = (1, 2)) -> list[str]:
    """A cell for each seed, empty for what is not in the list."""
    names = {n: f"{stem}_seed{n}" for n in numbers}
    return [
        cell(records, name, f"plain_seed{n}") if name in records.names else ""
        for n, name in names.items()
    ]
