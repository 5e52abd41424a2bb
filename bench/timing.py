"""Timing of alternatives side by side.

A shared machine is never equally fast twice, so alternatives take turns within one run, the best of
many rounds counts, and what is reported is a ratio to a unit that was timed in the same rounds.
"""

import json
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path

import torch


@dataclass
class Row:
    """One alternative: its best time, and that as a multiple of the unit's."""

    suite: str
    case: str
    name: str
    milliseconds: float
    ratio: float


def race(
    suite: str,
    case: str,
    unit: str,
    alternatives: dict[str, Callable[[], object]],
    seconds: float = 4.0,
    min_rounds: int = 5,
    before_each: Callable[[str], object] = lambda name: None,
) -> list[Row]:
    """Times the alternatives in turns for `seconds`, but at least `min_rounds` rounds.

    `before_each` is called with the alternative's name before every run and is not timed.
    """
    best = dict.fromkeys(alternatives, float("inf"))
    for name, run in alternatives.items():
        before_each(name)
        run()  # Warm buffers, thread pools, code.
    start, rounds = time.perf_counter(), 0
    while rounds < min_rounds or time.perf_counter() - start < seconds:
        for name, run in alternatives.items():
            before_each(name)
            before = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - before)
        rounds += 1
    return [Row(suite, case, name, 1e3 * t, t / best[unit]) for name, t in best.items()]


def print_table(rows: list[Row]) -> None:
    previous = None
    for row in rows:
        if (row.suite, row.case) != previous:
            print(f"\n{row.suite}: {row.case}")
            previous = (row.suite, row.case)
        print(f"  {row.name:<40} {row.milliseconds:>10.3f} ms {row.ratio:>8.2f} x")


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def write_json(path: Path, command: str, rows: list, line_each: bool = False) -> None:
    """The rows, dataclasses or dictionaries, with what is needed to make them again; many rows are
    easier to read with a line each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "command": command,
        "commit": commit(),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "rows": [asdict(row) if is_dataclass(row) else row for row in rows],
    }
    if line_each:
        lines = ",\n  ".join(json.dumps(row) for row in record.pop("rows"))
        head = json.dumps(record, indent=1).removesuffix("\n}")
        path.write_text(f'{head},\n "rows": [\n  {lines}\n ]\n}}\n')
        return
    path.write_text(json.dumps(record, indent=1) + "\n")
