"""Which law gradients follow: histograms, Q-Q plots, distances (the lognormal paper's Figure 2)."""

from __future__ import annotations

import math

import torch

from ..compression.records import LAWS
from ..tensors.distributions import Distribution
from ..tensors.stats import TensorStats
from .figure import (
    Figure,
    Panel,
    Trace,
    Variant,
    axis,
    curve,
    log_axis,
    markers,
    rounded,
    thinned,
)
from .naming import short_layers
from .runs import Probe, Run
from .words import LAW_NAMES, most_frequent

# Laws are drawn in black with different dashes, because colours stand for runs.
_DASHES = {"normal": "dot", "lognormal": "solid", "gennorm": "dash"}
_SYMBOLS = {"normal": "x", "lognormal": "circle", "gennorm": "diamond"}
_MAGNITUDE_LAWS = ("lognormal", "loglaplace")
# Gradients in the menu of a page. More would take megabytes and make the menu too long.
MOST_PROBES = 150
_POINTS = 80
# Quantiles beyond this are single values, which would take up most of the plot.
_RARE = 1e-4
_LEAST = 2.0**-149  # of float32
_KINDS = {"neural_gradient": "neural gradient", "weight_gradient": "weight gradient"}


def _line(family: str) -> dict:
    return {"color": "@ink", "width": 1.6, "dash": _DASHES[family]}


def cdf_of_magnitude(law: Distribution, x: torch.Tensor) -> torch.Tensor:
    """The symmetric families are laws of the signed value."""
    return law.cdf(x) if law.family in _MAGNITUDE_LAWS else 2 * law.cdf(x) - 1


def quantile_of_magnitude(law: Distribution, p: torch.Tensor) -> torch.Tensor:
    return law.quantile(p if law.family in _MAGNITUDE_LAWS else (1 + p) / 2)


def _bins(stats: TensorStats) -> tuple[torch.Tensor, torch.Tensor]:
    """Edges and counts of the non-empty part of the histogram, with four bins per octave instead of
    eight, which are more than a figure can show."""
    counts = stats.histogram.view(-1, 2).sum(1)
    edges = stats.histogram_edges()[::2].clone()
    edges[0] = _LEAST  # zero, which has no logarithm
    filled = counts.nonzero().flatten()
    first, last = int(filled[0]), int(filled[-1]) + 1
    return edges[first : last + 1], counts[first:last]


def _density(stats: TensorStats, laws: dict[str, Distribution], colour: str, name: str) -> Panel:
    """The share of values per octave, and the share that each law expects in the same bins."""
    edges, counts = _bins(stats)
    octaves = torch.diff(edges.log2())
    middle = (edges[:-1] * edges[1:]).sqrt().tolist()
    traces: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": rounded(middle),
            "y": rounded((counts / stats.histogram.sum() / octaves).tolist()),
            "name": name,
            "fill": "tozeroy",
            "line": {"color": colour, "width": 1, "shape": "hvh"},
            "hovertemplate": "|x| %{x:.3g}: %{y:.3g} an octave<extra></extra>",
        }
    ]
    for family, law in laws.items():
        expected = torch.diff(cdf_of_magnitude(law, edges)) / octaves
        traces.append(curve(middle, expected.tolist(), LAW_NAMES[family], _line(family)))
    share = (counts.cumsum(0) / stats.histogram.sum()).tolist()
    low = next((x for x, p in zip(middle, share, strict=True) if p > _RARE), middle[0])
    shown = rounded([math.log10(low) - 0.3, math.log10(edges[-1].item()) + 0.3])
    x = log_axis("magnitude |x|", range=shown)
    return Panel(traces, x, axis("share of values an octave", rangemode="tozero"))


def _quantiles(stats: TensorStats, laws: dict[str, Distribution]) -> Panel:
    """Measured quantiles against those of the law: on the diagonal they agree."""
    edges, counts = stats.histogram_edges()[1:], stats.histogram
    share = counts.cumsum(0) / counts.sum()
    inside = (counts > 0) & (share >= _RARE) & (share <= 1 - _RARE)
    inside = inside.nonzero().flatten()
    at = torch.tensor(thinned(inside.tolist(), _POINTS), dtype=torch.long)
    measured, p = edges[at], share[at]
    traces: list[Trace] = []
    for family, law in laws.items():
        expected = quantile_of_magnitude(law, p)
        marker = {"symbol": _SYMBOLS[family], "size": 6, "color": "@ink"}
        if family == "gennorm":
            marker |= {"symbol": "diamond-open"}
        hover = f"{LAW_NAMES[family]} %{{x:.3g}}, measured %{{y:.3g}}<extra></extra>"
        x, y = rounded(expected.tolist(), 4), rounded(measured.tolist(), 4)
        traces.append(markers(x, y, LAW_NAMES[family], marker, [], hovertemplate=hover))
    ends = [measured.min().item(), measured.max().item()] if len(at) else [1, 1]
    same = {"color": "@accent", "width": 1.5}
    traces.append(curve(ends, ends, "equal", same, hoverinfo="skip"))
    low, high = (torch.tensor(ends).log10().tolist()) if len(at) else (0, 1)
    room = 0.08 * (high - low) + 0.1
    # The points of a law that fits badly may lie outside of the plot.
    x = log_axis("quantile of the fitted law", range=rounded([low - 4 * room, high + 2 * room]))
    y = log_axis("measured quantile of |x|", range=rounded([low - room, high + room]))
    return Panel(traces, x, y)


def _title(probe: Probe) -> str:
    ks = {f: v["ks"] for f, v in probe.fitted()["families"].items() if f in LAWS and "ks" in v}
    what = _KINDS.get(probe.tensor, "tensor")
    if not ks:
        return f"The {what} of {probe.layer} follows none of these laws"
    near, far = min(ks, key=ks.get), max(ks, key=ks.get)
    where = f"{probe.layer}, {what}" if probe.tensor in _KINDS else probe.layer
    return (
        f"{where}: the {LAW_NAMES[near]} law fits best (Kolmogorov-Smirnov distance "
        f"{ks[near]:.3f}), the {LAW_NAMES[far]} law worst ({ks[far]:.3f})"
    )


def _label(run: Run, probe: Probe, several: bool) -> str:
    words = [run.name] if several else []
    if run.is_training:
        words += [f"step {probe.step}", probe.layer, _KINDS.get(probe.tensor, probe.tensor)]
    else:
        words += [probe.layer]
    return " · ".join(words)


def chosen_probes(runs: list[Run]) -> list[tuple[Run, Probe]]:
    """Neural gradients first. If there are too many, those of the last steps."""
    found = [(run, probe) for run in runs for probe in run.probes()]
    found.sort(key=lambda item: item[1].tensor == "weight_gradient")
    while len(found) > MOST_PROBES:
        first = {id(run): min(p.step for r, p in found if r is run) for run, _ in found}
        last = {id(run): max(p.step for r, p in found if r is run) for run, _ in found}
        kept = [
            (run, p)
            for run, p in found
            if p.step > first[id(run)] or first[id(run)] == last[id(run)]
        ]
        if len(kept) == len(found):
            return thinned(found, MOST_PROBES)
        found = kept
    return found


def histograms(runs: list[Run]) -> Figure:
    figure = Figure(
        "laws",
        "Histograms and Q-Q plots",
        "First the histogram of |x|, on a logarithmic axis, with the fitted laws, as in Figure 2 "
        "of the lognormal paper; second their quantiles against the measured ones: points on the "
        "line agree. Zeros are left out, and the smallest 0.01 % of the values.",
        "histograms: slimgrad-train --probe-at, controller.log(histograms=True), or .npy files",
        menu="gradient",
    )
    probes = chosen_probes(runs)
    several = len({id(run) for run, _ in probes}) > 1
    for run, probe in probes:
        laws = probe.laws()
        panels = [
            _density(probe.stats, laws, run.colour, probe.layer),
            _quantiles(probe.stats, laws),
        ]
        figure.variants.append(Variant(_label(run, probe, several), _title(probe), panels))
    return figure


def distances(runs: list[Run]) -> Figure:
    """All layers of a step at once."""
    figure = Figure(
        "distances",
        "Which law fits",
        "Kolmogorov-Smirnov distance (no unit, 0 to 1) between each layer's magnitudes and the "
        "fitted law: smaller is better.",
        "histogram lines",
        menu="gradients",
    )
    probes = chosen_probes(runs)
    groups: dict[tuple, list[Probe]] = {}
    for run, probe in probes:
        words = [run.name] if len({id(r) for r, _ in probes}) > 1 else []
        if run.is_training:
            words += [f"step {probe.step}", f"{_KINDS.get(probe.tensor, probe.tensor)}s"]
        groups.setdefault(tuple(words), []).append(probe)
    for words, group in groups.items():
        figure.variants.append(_distances_of(" · ".join(words) or "all", group))
    return figure


def _distances_of(label: str, group: list[Probe]) -> Variant:
    traces, nearest = [], []
    families = [probe.fitted()["families"] for probe in group]
    for family in LAWS:
        rows = [i for i, found in enumerate(families) if "ks" in found.get(family, {})]
        marker = {"symbol": _SYMBOLS[family], "size": 9, "color": "@ink"}
        if family == "gennorm":
            marker |= {"symbol": "diamond-open", "line": {"width": 2}}
        traces.append(
            markers(
                [families[i][family]["ks"] for i in rows],
                rows,
                LAW_NAMES[family],
                marker,
                [f"{group[i].layer}, {LAW_NAMES[family]}" for i in rows],
                hovertemplate="%{text}: %{x:.3f}<extra></extra>",
            )
        )
    for found in families:
        ks = {f: v["ks"] for f, v in found.items() if f in LAWS and "ks" in v}
        if ks:
            nearest.append(min(ks, key=ks.get))
    title = "No law could be fitted"
    if nearest:
        best, count = most_frequent(nearest)
        title = f"The {LAW_NAMES[best]} law fits best for {count} of {len(group)} gradients"
    names = short_layers([probe.layer for probe in group])
    y = {"autorange": "reversed", "tickvals": list(range(len(group))), "ticktext": names}
    x = axis("Kolmogorov-Smirnov distance", rangemode="tozero")
    return Variant(label, title, [Panel(traces, x, y, height=130 + 22 * len(group))])


def figures(runs: list[Run]) -> list[Figure]:
    return [histograms(runs), distances(runs)]
