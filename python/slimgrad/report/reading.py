"""Reads runs from files: lines of JSON (docs/runs.md), and .npy files of gradients."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..compression.records import REQUIRED, SCHEMA, fit_line, histogram_line
from ..tensors.stats import measure
from .naming import give_names, plain
from .runs import Line, Run


class ReportError(ValueError):
    """A file that cannot be read. The message is one line."""


# ln|x| of float32 lies within -104 and 89.
MOST_LOG = 110


def read(paths: Sequence[str | Path]) -> tuple[list[Run], list[str]]:
    """All runs, and notes about the files for the reader of the page."""
    runs, notes, folders = [], [], {}
    for path in map(Path, paths):
        if path.suffix == ".npy":
            folder = folders.get(path.parent)
            if folder is None:
                folder = folders[path.parent] = Run(path.parent.name or ".", is_training=False)
                folder.config = {"gradients": f"tensors in {path.parent.name or '.'}"}
                runs.append(folder)
            _add_tensor(folder, path)
        else:
            found, said = _read_lines(path)
            runs += found
            notes += said
    if not runs:
        raise ReportError("expected files of runs or .npy files, got none")
    give_names(runs)
    return runs, notes


# ---- lines ---------------------------------------------------------------------------------------


def _lines(path: Path, notes: list[str]) -> Iterator[tuple[int, Line]]:
    """With their numbers. The last line of a run that is still training may be incomplete: it is
    skipped."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                if not text.strip():
                    continue
                try:
                    line = json.loads(text)
                except ValueError:
                    if text.endswith("\n"):
                        raise ReportError(
                            f"{path}:{number}: expected a line of JSON, got {text.strip()[:40]!r}"
                        ) from None
                    notes.append(f"{path.name}: the last line is incomplete and was skipped")
                    return
                yield number, line
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ReportError(f"{path}: expected lines of JSON or a .npy file, got bytes") from None


def _check(line: Any, where: str) -> str:
    """The kind of a line. Raises ReportError unless it has its required fields."""
    if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
        raise ReportError(f'{where}: expected an object with "kind", as in docs/runs.md')
    kind = line["kind"]
    if kind == "config" and line.get("schema", SCHEMA) != SCHEMA:
        raise ReportError(f"{where}: expected schema {SCHEMA}, got {line['schema']!r}")
    for name, wanted in REQUIRED.get(kind, {}).items():
        value = line.get(name)
        if name == "first_exponent" and value is None and line.get("counts") == []:
            continue  # a gradient of zeros
        fits = isinstance(value, int | float if wanted is float else wanted)
        if not fits or isinstance(value, bool):
            raise ReportError(
                f"{where}: expected {name} of a line of kind {kind} to be {wanted.__name__}, "
                f"got {value!r}"
            )
    if kind == "histogram" and not _is_histogram(line):
        raise ReportError(
            f"{where}: expected counts and magnitudes that a float32 tensor can have, got others"
        )
    if kind == "fit" and not all(map(_is_law, line["families"].values())):
        raise ReportError(f"{where}: expected numbers by name for every family of a fit line")
    return kind


def _is_histogram(line: Line) -> bool:
    """Whether these can be the statistics of a float32 tensor."""
    counts = [*line["counts"], line["zeros"], line["nonfinite"]]
    whole = all(isinstance(n, int) and 0 <= n <= line["values"] for n in counts)
    few = line["zeros"] + line["nonfinite"] <= line["values"] < 2**53
    if not (whole and few and any(line["counts"])):
        return whole and few
    largest, mean, square = (line[name] for name in ("max_abs", "mean_abs", "mean_square"))
    in_range = 0 <= line["log_std"] <= MOST_LOG and abs(line["log_mean"]) <= MOST_LOG
    last = max(k for k, count in enumerate(line["counts"]) if count)
    octave = line["first_exponent"] + last // max(1, line["bins_per_octave"])
    in_range = in_range and octave < 128 and (octave < -126 or 2.0**octave <= largest)
    # The mean of a constant tensor may exceed its maximum by rounding errors of the sum.
    return in_range and 0 < mean <= 1.001 * largest < 4e38 and 0 < square <= 1.001 * largest**2


def _is_law(params: Any) -> bool:
    return isinstance(params, dict) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in params.values()
    )


def _read_lines(path: Path) -> tuple[list[Run], list[str]]:
    runs: list[Run] = []
    notes: list[str] = []
    for number, line in _lines(path, notes):
        kind = _check(line, f"{path}:{number}")
        if kind == "config" or not runs:
            runs.append(Run(plain(path.stem)))
        run = runs[-1]
        if "layer" in line:
            line["layer"] = plain(line["layer"])
        if kind == "config":
            run.config = line
        elif kind == "end":
            run.end = line
        elif kind in REQUIRED:
            lists = {"epoch": run.epochs, "layers": run.layers, "histogram": run.histograms}
            lists |= {"fit": run.fits, "bits": run.bits}
            lists[kind].append(line)
    if not runs:
        raise ReportError(f"{path}: expected lines of JSON, got an empty file")
    for number, run in enumerate(runs, 1):
        try:
            for probe in run.probes():
                _ = (probe.stats, probe.laws() if probe.fit is not None else None)
        except (ValueError, TypeError, OverflowError) as error:
            raise ReportError(f"{path}: run {number}: {error}") from None
        if run.config.get("epochs") and run.end is None:
            notes.append(f"{path.name}: run {number} has not finished")
    return runs, notes


# ---- tensors -------------------------------------------------------------------------------------


def _add_tensor(run: Run, path: Path) -> None:
    """Measured and fitted here, as the trainer does with --probe-at."""
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror or 'not a .npy file'}") from None
    except (ValueError, EOFError):
        raise ReportError(f"{path}: expected a .npy file of numbers, got something else") from None
    if array.dtype not in (np.float16, np.float32, np.float64) or not array.size:
        raise ReportError(
            f"{path}: expected float16, float32 or float64 values, got {array.size} {array.dtype}"
        )
    values = torch.from_numpy(np.ascontiguousarray(array))
    values = values.float() if values.dtype == torch.float64 else values
    stats = measure(values)
    if not stats.histogram.sum():
        raise ReportError(f"{path}: expected values other than zero, got none")
    about = {"step": 0, "layer": plain(path.stem), "tensor": "tensor"}
    run.histograms.append({**about, **histogram_line(stats)})
    run.fits.append({**about, **fit_line(values)})
