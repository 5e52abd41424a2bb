"""controller.log() and log_run(): the lines of docs/runs.md about a user's own training."""

from __future__ import annotations

import json
import os
import weakref
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import torch
from torch import nn

from .._library import classes
from .._machine import processor
from .._support import inner_model
from ..nn.activations import Stepwise, _Fewbit
from ..saved.settings import Saved
from .class_change import plain_class
from .gradients import Prune, Quantize
from .records import SCHEMA, finite_or_none, fit_line, histogram_line, record_line, values_of
from .state import holders_in

if TYPE_CHECKING:
    from .controller import Controller

Log = str | os.PathLike | TextIO | Any  # a path, a file, or a SummaryWriter

# What a user may pass by name; an ``epoch`` line has it.
METRICS = ("epoch", "loss", "accuracy", "test_loss", "test_accuracy", "seconds", "rate")
# Fields of a config line that may differ when a run is resumed.
_MAY_DIFFER = ("version", "machine")
# In a config line: activations and saved tensors that torch stores unchanged.
_PLAIN = "torch"
_MEANS = ("sparsity", "sparsity_wanted", "cosine", "relative_error", "bias", "threshold")
_FLOAT_BITS = 32


def layer_line(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of a ``layers`` line, from a row of report(): of the last backward pass alone."""
    is_stored = "way" not in row  # The gradient of a sparse product is not stored.
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


def _checked(metrics: dict[str, Any], op: str) -> dict[str, float | int | None]:
    """Metrics as numbers of Python; a tensor of one element is accepted, too."""
    found: dict[str, float | int | None] = {}
    for name, value in metrics.items():
        if name not in METRICS:
            raise ValueError(f"[{op}] expected metrics among {', '.join(METRICS)}, got {name!r}")
        if not hasattr(value, "__float__"):
            raise ValueError(f"[{op}] expected {name} to be a number, got {type(value).__name__}")
        value = value.detach() if isinstance(value, torch.Tensor) else value
        found[name] = int(value) if name == "epoch" else finite_or_none(float(value))
    return found


def _check_step(step: Any, op: str) -> None:
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"[{op}] expected step >= 0, got {step!r}")


# ---- where lines go ------------------------------------------------------------------------------


def _last_run(path: Path) -> tuple[dict[str, Any] | None, int]:
    """The config line and the last step of the last run in a file; None and 0 if there is none."""
    config, step = None, 0
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("kind") == "config":
            config, step = entry, 0
        elif isinstance(entry, dict) and isinstance(entry.get("step"), int):
            step = entry["step"]
    return config, step


class RunLog:
    """Appends lines to files, and keeps track of the files in which it began a run."""

    def __init__(self) -> None:
        self._paths: set[Path] = set()
        self._files: weakref.WeakSet = weakref.WeakSet()

    def append(self, to: Log, step: int, config: dict[str, Any], lines: list[dict]) -> None:
        """config: written before the lines where a run begins."""
        if hasattr(to, "write"):
            begins = to not in self._files
            self._files.add(to)
            to.write("".join(map(record_line, [config, *lines] if begins else lines)))
            return
        path = Path(to).absolute()
        begins = path not in self._paths and not _goes_on(path, step, config)
        text = "".join(map(record_line, [config, *lines] if begins else lines))
        self._paths.add(path)
        with path.open("a") as file:
            file.write(text)


def _goes_on(path: Path, step: int, config: dict[str, Any]) -> bool:
    """Whether the last run of a file is the one with ``config``, interrupted before ``step``."""
    found, last = _last_run(path)
    if found is None or (last > 0 and step <= last):
        return False
    names = (found.keys() | config.keys()) - {*_MAY_DIFFER}
    return all(found.get(name) == config.get(name) for name in names)


# ---- what a run is -------------------------------------------------------------------------------


def settings_of(
    activations: int | str | None, saved: Saved | None, gates: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of compress(), as a config line has them. gates: those for gradients."""
    settings: dict[str, Any] = {}
    if activations is not None:
        settings["activations"] = str(activations)
    if saved is not None:
        settings["saved"] = str(saved.bits)
        own = {"group": saved.group, "rounding": saved.rounding, "min_elements": saved.min_elements}
        settings |= {f"saved_{name}": value for name, value in own.items() if value is not None}
    return settings | {name: value for name, value in gates.items() if value is not None}


def _named(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a gate by the names that records have for them."""
    names = classes.GateGroup.option_names()
    return {names[name]: value for name, value in options.items() if name in names}


def _gradients(prune: Prune | None, quantize: Quantize | None) -> dict[str, Any]:
    chosen: list[str] = []
    settings: dict[str, Any] = {}
    if prune is not None:
        products = prune.products
        chosen.append(
            f"sparse:{products['weight']:g}:{products['input']:g}"
            if products
            else f"prune:{prune.sparsity:g}"
        )
        settings |= _named(prune._options("weight" if products else None)) | {"cap": prune.cap}
        if prune.targets:
            settings["targets"] = [f"{name}={value:g}" for name, value in prune.targets.items()]
    if quantize is not None:
        chosen.append(f"fp{quantize.bits}" if quantize.format is None else str(quantize.format))
        settings |= _named(quantize._options()) | {"scale": str(quantize.scale)}
    return {"gradients": "+".join(chosen) or "none", **settings}


def _activations_in(model: nn.Module) -> str:
    """What the few-bit activations save that were in the model before compress()."""
    found = {str(module.bits) for module in model.modules() if isinstance(module, _Fewbit)}
    tables = [module.table for module in model.modules() if isinstance(module, Stepwise)]
    found |= {str((len(table.levels) - 1).bit_length()) for table in tables}
    return "+".join(sorted(found)) or _PLAIN


def _config(
    model: nn.Module,
    prune: Prune | None = None,
    quantize: Quantize | None = None,
    settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "kind": "config",
        "run": 1,
        "schema": SCHEMA,
        "version": version("slimgrad"),
        "model": plain_class(model).__name__,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        **_gradients(prune, quantize),
        "activations": _activations_in(model),
        "saved": _PLAIN,
        **(settings or {}),
        "machine": f"{processor()}, {os.cpu_count()} threads",
    }


# ---- what is written of a step -------------------------------------------------------------------


def log_controller(
    controller: Controller, to: Log, step: int | None, histograms: bool, metrics: dict[str, Any]
) -> None:
    metrics = _checked(metrics, "log")
    rows = controller.report()
    if step is None:
        if not rows:
            raise ValueError(
                "[log] expected step, because backward passes are counted only where gradients are "
                "compressed, got none"
            )
        step = max(row["calls"] for row in rows.values())
    _check_step(step, "log")
    if controller.saved is not None:
        tally = controller.saved.tally
        metrics["plain_saved_bytes"] = tally.plain_bytes + tally.left_bytes
        metrics["saved_bytes"] = tally.bytes + tally.left_bytes
    if hasattr(to, "add_scalar"):
        _scalars(to, step, rows, metrics)
        return
    at = {"run": 1, "epoch": metrics.get("epoch"), "step": step}
    lines = _histograms(controller, at) if histograms else []
    lines += [{"kind": "epoch", **at, **metrics}] if metrics else []
    for name, row in rows.items():
        lines.append({"kind": "layers", **at, "layer": name, **layer_line(row)})
    settings = controller._settings
    config = _config(controller.model, controller.prune, controller.quantize, settings)
    controller._log.append(to, step, config, lines)


_plain_logs: weakref.WeakKeyDictionary[nn.Module, RunLog] = weakref.WeakKeyDictionary()


def log_run(model: nn.Module, to: Log, step: int, **metrics) -> None:
    """Logs metrics of a training without compression, so that a report can compare it with those of
    ``controller.log``: lines of JSON to a path or file, or scalars to a SummaryWriter.

    model: the model that is trained; its class and number of parameters are written. A model that
        compress() changed is refused.
    step: numbers the entry.
    metrics: loss, accuracy, test_loss, test_accuracy, seconds (since the last such line), epoch,
        rate; at least one.

    As with ``controller.log``, a file begins with a line about the run; an existing file is
    appended to, and a step that is not greater than its last begins another run.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"[log_run] expected model to be a module, got {type(model).__name__}")
    _check_step(step, "log_run")
    model = inner_model(model)
    if holders_in(model):
        raise ValueError(
            "[log_run] expected a model without compressed layers, got one that compress() "
            "changed: log it with its controller"
        )
    found = _checked(metrics, "log_run")
    if not found:
        raise ValueError(f"[log_run] expected at least one of {', '.join(METRICS)}, got none")
    if hasattr(to, "add_scalar"):
        _scalars(to, step, {}, found)
        return
    line = {"kind": "epoch", "run": 1, "epoch": found.get("epoch"), "step": step, **found}
    _plain_logs.setdefault(model, RunLog()).append(to, step, _config(model), [line])


def _scalars(writer: Any, step: int, rows: dict[str, dict], metrics: dict[str, Any]) -> None:
    """For a SummaryWriter."""
    for name, row in rows.items():
        for key in ("sparsity", "sparsity_wanted", "cosine", "relative_error", "log_std"):
            writer.add_scalar(f"slimgrad/{key}/{name}", row[key], step)
        if row["scale"]:
            writer.add_scalar(f"slimgrad/scale/{name}", row["scale"], step)
    for name, value in metrics.items():
        if value is not None:
            writer.add_scalar(f"slimgrad/{name}", value, step)


def _histograms(controller: Controller, at: dict[str, Any]) -> list[dict[str, Any]]:
    """Of the sample that each gate measured in its last pass, with the laws fitted to it."""
    lines = []
    for name, gate in controller.gates.items():
        stats = gate.seen()
        if not stats.histogram.sum():
            continue
        about = {**at, "layer": name, "tensor": "neural_gradient"}
        lines.append({"kind": "histogram", **about, **histogram_line(stats)})
        lines.append({"kind": "fit", **about, **fit_line(values_of(stats))})
    return lines
