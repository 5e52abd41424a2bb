"""Lines of the record of a run (docs/runs.md). The library in C++ describes their fields and writes
them, for slimgrad-train too; here are the lines about a gradient, written and read back."""

from __future__ import annotations

import json
import math
from typing import Any

import torch

from .._library import ops
from ..tensors.distributions import Distribution, fit
from ..tensors.stats import _COUNTS, _NUMBERS, TensorStats

SCHEMA, _kinds, _names, _types, _required = ops.record_fields()
_TYPES = {kind.__name__: kind for kind in (int, float, str, bool, list, dict)}
# By kind of line, the types of the fields that it must have.
REQUIRED: dict[str, dict[str, type]] = {kind: {} for kind in _kinds}
for _kind, _name, _type, _must in zip(_kinds, _names, _types, _required, strict=True):
    REQUIRED[_kind] |= {_name: _TYPES[_type]} if _must else {}

BINS_PER_OCTAVE = 8
LAWS = ("normal", "lognormal", "gennorm")
# The number of values that a law is fitted to, as in slimgrad-train, or drawn from a histogram.
FITTED_VALUES = 1 << 17


def _lower_edges() -> torch.Tensor:
    return TensorStats.histogram_edges()[:-1]


def record_line(fields: dict[str, Any]) -> str:
    """A line with its end, as the library writes it. Raises ValueError for fields that it does not
    describe."""
    finite = {name: finite_or_none(value) for name, value in fields.items()}
    return ops.record_line(json.dumps(finite, allow_nan=False)) + "\n"


def finite_or_none(value: Any) -> Any:
    """JSON has no NaN: numbers that do not exist are null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def histogram_line(stats: TensorStats) -> dict[str, Any]:
    """The fields of a ``histogram`` line that say what was measured."""
    return json.loads(ops.histogram_fields(stats.tensor))


def stats_of(line: dict[str, Any]) -> TensorStats:
    """The statistics that a ``histogram`` line was written from."""
    zeros, finite = line["zeros"], line["values"] - line["nonfinite"]
    known = {
        "count": line["values"],
        "zero_fraction": zeros / finite if finite else 0.0,
        **{name: line[name] for name in (*_COUNTS, *_NUMBERS) if name in line},
    }
    if not line["counts"]:
        line = line | {"first_exponent": 0}  # There is no first one.
    edges = _lower_edges()
    first = torch.searchsorted(edges, torch.tensor(2.0 ** line["first_exponent"]).double()).item()
    first = 0 if line["first_exponent"] < -126 else first
    histogram = torch.zeros(len(edges), dtype=torch.float64)
    if line["bins_per_octave"] != BINS_PER_OCTAVE or first + len(line["counts"]) > len(histogram):
        raise ValueError(
            f"[histogram] expected {BINS_PER_OCTAVE} bins an octave within float32's range, got "
            f"{line['bins_per_octave']} and {len(line['counts'])} from 2^{line['first_exponent']}"
        )
    counts = torch.tensor(line["counts"], dtype=torch.float64)
    histogram[first : first + len(counts)] = counts
    fields = [float(known[name]) for name in (*_COUNTS, *_NUMBERS)]
    return TensorStats(torch.cat([torch.tensor(fields, dtype=torch.float64), histogram]))


def values_of(stats: TensorStats) -> torch.Tensor:
    """Magnitudes with the histogram of ``stats``, evenly spread inside its bins: what laws are
    fitted to where the tensor itself is gone."""
    edges, counts = TensorStats.histogram_edges(), stats.histogram
    share = min(1.0, FITTED_VALUES / max(float(counts.sum()), 1.0))
    ends = (counts.cumsum(0) * share).round().long()
    numbers = torch.diff(ends, prepend=torch.zeros(1, dtype=torch.long))
    bins = torch.repeat_interleave(torch.arange(len(counts)), numbers)
    place = torch.arange(len(bins)) - (ends - numbers)[bins] + 0.5
    low, high = edges[bins], edges[bins + 1]
    return low + (high - low) * (place / numbers[bins]).double()


def fit_line(values: torch.Tensor, families: tuple[str, ...] = LAWS) -> dict[str, Any]:
    """The ``families`` of a ``fit`` line. One that cannot be fitted is missing."""
    found = {}
    for family in families:
        try:
            law = fit(values, family)
            found[family] = {"ks": law.ks(values), **law.params}
        except (ValueError, RuntimeError):
            continue
    return {"families": found}


def laws_of(line: dict[str, Any]) -> dict[str, Distribution]:
    """The laws of a ``fit`` line, by family."""
    laws = {}
    for family in LAWS:
        if family in line["families"]:
            params = {k: v for k, v in line["families"][family].items() if k != "ks"}
            laws[family] = Distribution(family, **params)
    return laws
