"""The table that a controller's summary() prints."""

from __future__ import annotations

import math


def _reason(row: dict) -> str:
    """Why a product is done as it is."""
    if row["chosen_by"] == "user":
        return "as was set"
    if row["break_even"] is None:
        return "not chosen yet"
    pays = "never" if row["break_even"] == 1 else f"from {row['break_even']:.2f}"
    return f"sparse pays {pays} ({row['chosen_by']})"


def _note(row: dict) -> str:
    """What a line says besides its numbers."""
    if not row["calls"]:
        return ""
    if "way" in row:
        return f"  {row['way']}, {_reason(row)}"
    return "" if row["compressed"] else "  (left alone: small or warm-up)"


def summary_table(report: dict[str, dict], left: dict[str, str], *, prunes: bool) -> list[str]:
    """The lines: a head, a row of the report each, and the layers that were left."""
    lines = [
        f"{'layer':28} {'calls':>6} {'values':>9} {'log2std':>7} {'wanted':>7} {'zeros':>7} "
        f"{'cosine':>7} {'rel.err':>7} {'format':>6} {'scale':>9}"
    ]
    for name, row in report.items():
        wanted = f"{row['sparsity_wanted']:.4f}" if prunes else "-"
        format = row["format"] or "-"
        scale = f"{row['scale']:.2e}" if row["scale"] else "-"
        lines.append(
            f"{name[-28:]:28} {row['calls']:6d} {row['elements']:9d} "
            f"{row['log_std'] / math.log(2):7.2f} {wanted:>7} {row['sparsity']:7.4f} "
            f"{row['cosine']:7.4f} {row['relative_error']:7.4f} {format:>6} {scale:>9}{_note(row)}"
        )
    return lines + [f"{name[-28:]:28} not converted: {why}" for name, why in left.items()]
