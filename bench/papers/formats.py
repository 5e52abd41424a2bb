"""Floating-point formats: which split, what it costs (Tables 2 and 3 of the lognormal paper)."""

from __future__ import annotations

import statistics

import slimgrad as sg
from slimgrad.report.runs import Run, number

from .records import Records, cell, seeds, spread_of_plain, table

PAPER = {
    "CIFAR-100": ((2.5, 4.5), ["1-3-0", "1-4-0", "1-4-1", "1-4-2", "1-5-2"]),
    "ImageNet": ((3.0, 5.5), ["1-3-0", "1-4-0", "1-5-0", "1-5-1", "1-5-2"]),
}
SPLITS = {4: ["1-3-0", "1-2-1"], 6: ["1-4-1", "1-5-0", "1-3-2", "1-2-3"]}


def _table_2() -> str:
    rows = []
    for name, (spread, printed) in PAPER.items():
        ours = [str(sg.best_format(bits, spread)).split("'")[-1] for bits in range(4, 9)]
        normal = [str(sg.best_format(bits, spread, "normal")) for bits in range(4, 9)]
        same = sum(a == b for a, b in zip(ours, printed, strict=True))
        rows.append([f"{name}, {spread[0]:g} to {spread[1]:g}", "the paper", *printed])
        rows.append(["", f"`best_format` ({same} of 5 equal)", *ours])
        rows.append(["", "the same under a normal law", *normal])
    return table(["spread of log2", "", *(f"FP{bits}" for bits in range(4, 9))], rows)


def measured_error(run: Run) -> float | None:
    """Mean relative error of gradients, over layers and epochs, by values."""
    found = [
        (line["compressed_values"], error)
        for line in run.layers
        if (error := number(line, "relative_error")) is not None
    ]
    total = sum(count for count, _ in found)
    return sum(count * error for count, error in found) / total if total else None


def measured_cosine(run: Run) -> float | None:
    found = [c for line in run.layers if (c := number(line, "cosine")) is not None]
    return statistics.median(found) if found else None


def _spreads(records: Records) -> tuple[float, float]:
    found = [p.log2_std for p in records["plain_seed1"].probes("neural_gradient")]
    return min(found), max(found)


def _rows(records: Records, spread: float) -> list[list[object]]:
    rows: list[list[object]] = []
    for bits, splits in SPLITS.items():
        for split in splits:
            name = f"format_{split}_seed1"
            error = measured_error(records[name]) if name in records else None
            cosine = measured_cosine(records[name]) if name in records else None
            rows.append(
                [
                    f"FP{bits}",
                    split,
                    f"{sg.relative_error(sg.FloatFormat(split), spread):.2f}",
                    "-" if error is None else f"{error:.2f}",
                    "-" if cosine is None else f"{cosine:.3f}",
                    *seeds(records, f"format_{split}"),
                    cell(records, f"nearest_{split}")
                    if f"nearest_{split}" in records.names
                    else "",
                ]
            )
    return rows


def section(records: Records) -> str:
    if "plain_seed1" not in records:
        return ""
    low, high = _spreads(records)
    spread = low + 0.67 * (high - low)
    heads = ["", "split", "predicted error", "measured error", "cosine", "seed 1", "seed 2"]
    text = [
        "### Floating-point formats",
        "The lognormal paper's Table 2, the best split for a range of spreads (deviations of log2 "
        "magnitudes), and the split that is best under a normal law (its Figure 3c):",
        _table_2(),
        "Its Table 3, for the ResNet-20: test accuracy, and in brackets the difference from "
        f"plain training with the same seed. Spreads measured here are {low:.1f} to {high:.1f}; "
        f"the "
        f"predicted relative error is for {spread:.1f}, two thirds of the way. Errors and "
        f"cosines are "
        "those of seed 1, a mean over values and a median over layers. Scales put the largest "
        "value at "
        "the top of the grid and are computed in every pass. Rounding and underflow are "
        "stochastic, except in the last column, where they are to nearest and to zero as in the "
        "paper (seed 1).",
        table([*heads, "nearest, to zero"], _rows(records, spread)),
        _verdict(records),
    ]
    return "\n\n".join(text)


def _verdict(records: Records) -> str:
    _, deviation, _ = spread_of_plain(records)
    text = []
    for bits, splits in SPLITS.items():
        known = [s for s in splits if f"format_{s}_seed1" in records]
        if len(known) < 2:
            continue

        def mean(split: str) -> float:
            names = [f"format_{split}_seed{n}" for n in (1, 2)]
            return statistics.mean(records.accuracy(n) for n in names if n in records)

        best = max(known, key=mean)
        expected = splits[0]
        text.append(
            f"With {bits} bits the best split is {best} ({mean(best):.1f} %)"
            + (
                ", the one that the paper expects."
                if best == expected
                else f"; {expected}, which the paper expects, has {mean(expected):.1f} %."
            )
        )
    if not text:
        return "There is no result yet."
    text = [
        f"**Result** (two single runs differ by chance by {1.4 * deviation:.1f} points, standard "
        "deviation): " + " ".join(text)
    ]
    pairs = [
        (split, records.accuracy(f"format_{split}_seed1"), records.accuracy(f"nearest_{split}"))
        for splits in SPLITS.values()
        for split in splits
        if records.has(f"format_{split}_seed1", f"nearest_{split}")
    ]
    if pairs:
        worst = max(pairs, key=lambda row: row[1] - row[2])
        text.append(
            "Rounding to nearest with a flush to zero instead of unbiased rounding changes the "
            "accuracy by "
            + ", ".join(f"{nearest - fair:+.1f} ({split})" for split, fair, nearest in pairs)
            + f" points, most for {worst[0]}. With unbiased rounding splits differ less than in "
            "the paper, which rounds with a bias."
        )
    text.append(
        "**What to do**: use 6 bits with unbiased rounding and a split chosen by the histogram: "
        '`compress(model, "fp6")`.'
    )
    return " ".join(text)
