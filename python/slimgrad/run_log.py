"""What controller.log() writes: the lines of docs/runs.md, for a run of one's own."""

from __future__ import annotations

import json
import math
import os
import platform
import weakref
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from .records import SCHEMA, fit_line, histogram_line, values_of

if TYPE_CHECKING:
    from .controller import Controller

# What a user may know beside it, in an ``epoch`` line.
METRICS = ("epoch", "loss", "accuracy", "test_loss", "test_accuracy", "seconds", "rate")
_MEANS = ("sparsity", "sparsity_wanted", "cosine", "relative_error", "bias", "threshold")
_FLOAT_BITS = 32


def _finite(value: Any) -> Any:
    """JSON has no NaN: numbers that do not exist are null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def layer_line(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of a ``layers`` line, of the last backward pass alone. What report() has beside
    them comes behind."""
    is_stored = "way" not in row  # A sparse product is computed with and not kept.
    line = {
        "passes": min(row["calls"], 1),
        "values": row["elements"],
        "compressed_values": row["elements"] if row["compressed"] else 0,
        "log_std": row["log_std"],
        "nonfinite": row["nonfinite"],
        "bits_per_value": row["bits_per_value"] if is_stored else _FLOAT_BITS,
    }
    if row["compressed"]:
        line |= {name: row[name] for name in _MEANS}
        missed = abs(row["sparsity"] - row["sparsity_wanted"]) if row["sparsity_wanted"] else 0.0
        line |= {"worst_sparsity_miss": missed, "saturated_passes": int(row["saturated"])}
        if row["format"]:
            line |= {"format": row["format"], "scale": row["scale"]}
    others = ("calls", "at_threshold", "way", "break_even", "chosen_by")
    return line | {name: row[name] for name in others if name in row}


def _checked(metrics: dict[str, Any]) -> dict[str, float | int | None]:
    """Numbers of Python's, from whatever has one: tensors of one element, too."""
    for name, value in metrics.items():
        if name not in METRICS:
            raise ValueError(f"[log] expected metrics among {', '.join(METRICS)}, got {name!r}")
        if not hasattr(value, "__float__"):
            raise ValueError(f"[log] expected {name} to be a number, got {type(value).__name__}")
    return {
        name: int(value) if name == "epoch" else _finite(float(value))
        for name, value in metrics.items()
    }


def _last_step(path: Path) -> int | None:
    """Of a file that is there already; None if nothing in it has a step."""
    found = None
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("kind") == "config":
            found = 0
        elif isinstance(entry, dict) and isinstance(entry.get("step"), int):
            found = entry["step"]
    return found


class RunLog:
    """Writes a controller's lines, and remembers where it has begun a run."""

    def __init__(self) -> None:
        self._paths: set[Path] = set()
        self._files: weakref.WeakSet = weakref.WeakSet()

    def write(
        self,
        controller: Controller,
        to: str | os.PathLike | TextIO | Any,
        step: int | None,
        histograms: bool,
        metrics: dict[str, Any],
    ) -> None:
        metrics = _checked(metrics)
        if step is None:
            step = max((row["calls"] for row in controller.report().values()), default=0)
        if hasattr(to, "add_scalar"):
            _scalars(controller, to, step, metrics)
            return
        if hasattr(to, "write"):
            begins = to not in self._files
            self._files.add(to)
            to.write(self._text(controller, step, histograms, metrics, begins))
            return
        path = Path(to).absolute()
        begins = False
        if path not in self._paths:
            last = _last_step(path)
            # A run that goes on after an interruption goes on in its file.
            begins = last is None or (step <= last and last > 0)
            self._paths.add(path)
        with path.open("a") as file:
            file.write(self._text(controller, step, histograms, metrics, begins))

    def _text(self, controller, step, histograms, metrics, begins) -> str:
        at = {"epoch": metrics.get("epoch"), "step": step}
        lines = [{"kind": "config", "run": 1, **_config(controller)}] if begins else []
        if histograms:
            lines += _histograms(controller, at)
        if metrics:
            lines.append({"kind": "epoch", "run": 1, **at, **metrics})
        for name, row in controller.report().items():
            lines.append({"kind": "layers", "run": 1, **at, "layer": name, **layer_line(row)})
        for line in lines:
            line.update({name: _finite(value) for name, value in line.items()})
        return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)


def _config(controller: Controller) -> dict[str, Any]:
    prune, quantize = controller.prune, controller.quantize
    chosen: list[str] = []
    settings: dict[str, Any] = {}
    if prune is not None:
        products = prune.products
        chosen.append(
            f"sparse:{products['weight']:g}:{products['input']:g}"
            if products
            else f"prune:{prune.sparsity:g}"
        )
        settings |= {"prune": prune.kind, "threshold": prune.method}
        settings |= {"allocation": prune.allocation, "cap": prune.cap}
    if quantize is not None:
        chosen.append(f"fp{quantize.bits}" if quantize.format is None else str(quantize.format))
        settings |= {"split": quantize.method, "scale": str(quantize.scale)}
        settings |= {"rounding": quantize.rounding, "underflow": quantize.underflow}
    return {
        "schema": SCHEMA,
        "version": version("slimgrad"),
        "model": type(controller.model).__name__,
        "parameters": sum(weight.numel() for weight in controller.model.parameters()),
        "gradients": "+".join(chosen) or "none",
        **settings,
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, {platform.system()}",
    }


def _scalars(controller: Controller, writer: Any, step: int, metrics: dict[str, Any]) -> None:
    """For a SummaryWriter."""
    for name, row in controller.report().items():
        for key in ("sparsity", "sparsity_wanted", "cosine", "relative_error", "log_std"):
            writer.add_scalar(f"slimgrad/{key}/{name}", row[key], step)
        if row["scale"]:
            writer.add_scalar(f"slimgrad/scale/{name}", row["scale"], step)
    for name, value in metrics.items():
        if value is not None:
            writer.add_scalar(f"slimgrad/{name}", value, step)


def _histograms(controller: Controller, at: dict[str, Any]) -> list[dict[str, Any]]:
    """Of the sample that each gate saw in its last pass, with the laws that fit it."""
    lines = []
    for name, gate in controller.gates.items():
        stats = gate.seen()
        if not stats.histogram.sum():
            continue
        about = {"run": 1, **at, "layer": name, "tensor": "neural_gradient"}
        lines.append({"kind": "histogram", **about, **histogram_line(stats)})
        lines.append({"kind": "fit", **about, **fit_line(values_of(stats))})
    return lines
