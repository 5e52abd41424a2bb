"""A run as the figures need it: the lines of docs/runs.md, by kind."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ..compression.records import fit_line, laws_of, stats_of, values_of
from ..tensors.distributions import Distribution
from ..tensors.stats import TensorStats

Line = dict[str, Any]
LN2 = math.log(2)


def number(line: Line, name: str) -> float | None:
    """The value, if it is a finite number, else None."""
    value = line.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


@dataclass
class Probe:
    """A gradient that was measured: its histogram, and the laws fitted to it."""

    histogram: Line
    fit: Line | None = None
    _stats: TensorStats | None = None

    @property
    def layer(self) -> str:
        return self.histogram["layer"]

    @property
    def step(self) -> int:
        return self.histogram["step"]

    @property
    def tensor(self) -> str:
        return self.histogram["tensor"]

    @property
    def stats(self) -> TensorStats:
        if self._stats is None:
            self._stats = stats_of(self.histogram)
        return self._stats

    @property
    def log2_std(self) -> float:
        return self.histogram["log_std"] / LN2

    @property
    def has_values(self) -> bool:
        """Whether there is anything to draw: a gradient of zeros has nothing."""
        return sum(self.histogram["counts"]) > 0

    def fitted(self) -> Line:
        """The fit in the file, or else one to the histogram."""
        if self.fit is None:
            self.fit = fit_line(values_of(self.stats))
        return self.fit

    def laws(self) -> dict[str, Distribution]:
        return laws_of(self.fitted())


@dataclass
class Run:
    """One run: a ``config`` line and what followed."""

    source: str  # the file's name without its ending
    config: Line = field(default_factory=dict)
    epochs: list[Line] = field(default_factory=list)
    layers: list[Line] = field(default_factory=list)
    histograms: list[Line] = field(default_factory=list)
    fits: list[Line] = field(default_factory=list)
    bits: list[Line] = field(default_factory=list)
    end: Line | None = None
    name: str = ""
    index: int = 0  # its colour, all over the page
    is_training: bool = True  # and not a collection of tensors
    _probes: list[Probe] | None = None

    @property
    def colour(self) -> str:
        return f"@run{self.index % 8}"

    @property
    def was_logged(self) -> bool:
        """By controller.log() or log_run(), at any steps, with whatever the user calls a loss."""
        return self.is_training and "epochs" not in self.config

    def compressed(self) -> list[str]:
        """What was set to be compressed, in words; empty for a plain run."""
        config = self.config
        gradients = str(config.get("gradients") or "none")
        words = [] if gradients == "none" else [gradients]
        for name in ("activations", "saved"):
            if config.get(name) not in (None, "torch"):
                words.append(f"{name} {config[name]}")
        return [*words, "fake int4"] if config.get("fake_int4") else words

    @property
    def is_plain(self) -> bool:
        """Whether the file says that nothing was compressed; other programs' files may not say."""
        return bool(self.config.get("gradients")) and not self.compressed()

    def probes(self, tensor: str | None = None) -> list[Probe]:
        """The gradients that were measured, in the order of the file."""
        if self._probes is None:
            key = ("step", "layer", "tensor")
            fits = {tuple(line.get(k) for k in key): line for line in self.fits}
            found = [
                Probe(line, fits.get(tuple(line.get(k) for k in key))) for line in self.histograms
            ]
            self._probes = [probe for probe in found if probe.has_values]
        return [probe for probe in self._probes if tensor in (None, probe.tensor)]

    def last_probes(self, tensor: str = "neural_gradient") -> list[Probe]:
        """Those of the last step at which gradients were measured."""
        probes = self.probes(tensor)
        last = max((probe.step for probe in probes), default=None)
        return [probe for probe in probes if probe.step == last]

    def result(self, name: str) -> float | None:
        """From the end line, or else from the last epoch line that has it."""
        lines = ([self.end] if self.end else []) + self.epochs[::-1]
        return next((v for line in lines if (v := number(line, name)) is not None), None)

    def sparsity(self) -> float | None:
        """The share of zeros in compressed gradients; None if nothing was compressed."""
        found = [
            (number(line, "compressed_values") or 0, value)
            for line in self.layers
            if (value := number(line, "sparsity")) is not None
        ]
        total = sum(count for count, _ in found)
        if not total:
            return None
        ended = number(self.end, "sparsity") if self.end else None
        return sum(count * value for count, value in found) / total if ended is None else ended

    def bits_per_value(self) -> float | None:
        ended = number(self.end, "bits_per_value") if self.end else None
        if ended is not None:
            return ended
        found = [
            (number(line, "values") or 0, value)
            for line in self.layers
            if (value := number(line, "bits_per_value")) is not None
        ]
        total = sum(count for count, _ in found)
        return sum(count * value for count, value in found) / total if total else None
