"""Several compressions at once, and 4-bit weights and activations beside 4-bit gradients."""

from __future__ import annotations

from .records import Records, cell, table

ROWS = {
    "plain_seed1": "plain",
    "everything": "sparse backward (weight 0.9), exact activations",
    "int4_plain": "weights and activations rounded to INT4",
    "int4_fp4": "the same, and FP4 gradients (1-3-0)",
}


def _kept_bits(records: Records, name: str) -> float:
    """Bits that an activation function keeps of a value, as docs/runs.md says."""
    kept = records[name].config["activations"]
    return {"torch": 32.0, "exact": 1.0}.get(kept) or float(kept)


def section(records: Records) -> str:
    rows = []
    for name, title in ROWS.items():
        if name not in records:
            rows.append([title, "not trained yet", "", ""])
            continue
        run = records[name]
        rows.append(
            [
                title,
                cell(records, name),
                f"{run.bits_per_value():.1f}",
                f"{_kept_bits(records, name):g}",
            ]
        )
    heads = ["", "test accuracy", "bits of a neural gradient", "bits an activation keeps"]
    text = [
        "### Together",
        "One seed, the ResNet-20. A sparse backward pass stores no gradient, so its bits stay "
        "32. Times and "
        "memory of the same settings are measured alone: docs/benchmarks.md.",
        table(heads, rows),
    ]
    if records.has("int4_plain", "int4_fp4"):
        gap = records.accuracy("int4_plain") - records.accuracy("int4_fp4")
        text.append(
            f"FP4 gradients cost {gap:.1f} points beside INT4 weights and activations (the "
            f"paper, the "
            "other way round: INT4 beside FP4 gradients costs 0.3)."
        )
    return "\n\n".join(text)
