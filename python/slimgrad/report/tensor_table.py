"""The table of tensors from .npy files: statistics, best formats and thresholds."""

from __future__ import annotations

import warnings
from html import escape

from ..tensors.formats import best_format
from ..tensors.pruning import SparsityWarning, threshold
from .runs import Probe, Run
from .words import percent

_BITS = (4, 6, 8)
_SPARSITY = 0.85


def _cells(probe: Probe) -> list[str]:
    stats = probe.stats
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SparsityWarning)  # a threshold of 0 shows it
        alpha = threshold(stats, _SPARSITY)
    return [
        probe.layer,
        f"{stats.count:,}",
        percent(stats.zero_fraction),
        f"{stats.nonfinite:,}",
        f"{stats.max_abs:.3g}",
        f"{probe.log2_std:.2f}",
        *(str(best_format(bits, stats)) for bits in _BITS),
        f"{alpha:.3g}",
    ]


def tensor_table(runs: list[Run]) -> str:
    """Empty if there are no tensors."""
    probes = [probe for run in runs if not run.is_training for probe in run.probes()]
    if not probes:
        return ""
    heads = ["tensor", "values", "zeros", "Inf or NaN", "largest", "spread (octaves)"]
    heads += [f"best of {bits} bits" for bits in _BITS]
    heads.append(f"threshold for {_SPARSITY:g} zeros")
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(probe))}</tr>"
        for probe in probes
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
