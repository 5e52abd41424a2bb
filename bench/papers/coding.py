"""Bits a weight gradient takes under fitted and counted codes (the GenNorm paper)."""

from __future__ import annotations

import statistics

from slimgrad.report.runs import Line, Run

from .laws import NETWORKS
from .records import Records, table

MODELS = ("normal", "laplace", "gennorm", "counted")


def _lines(run: Run, bits: int, step: int | None = None) -> list[Line]:
    """Of layers that are large enough for a table to matter. The header counts."""
    sizes = {(p.step, p.layer): p.histogram["values"] for p in run.probes("weight_gradient")}
    return [
        line
        for line in run.bits
        if line["quantizer_bits"] == bits
        and step in (None, line["step"])
        and sizes.get((line["step"], line["layer"]), 0) >= 4096
    ]


def _medians(lines: list[Line], coder: str) -> list[str]:
    cells = [f"{statistics.median(line['entropy'] for line in lines):.2f}"]
    for model in MODELS:
        extra = statistics.median(line[coder][model] - line["entropy"] for line in lines)
        cells.append(f"{extra:+.2f}")
    return cells


def section(records: Records) -> str:
    found = {n: t for n, t in NETWORKS.items() if n in records and records[n].bits}
    if not found:
        return ""
    heads = ["network", "levels", "entropy", *MODELS]
    rows = [
        [title if bits == 8 else "", 2**bits - 1, *_medians(lines, "huffman")]
        for name, title in found.items()
        for bits in (8, 4, 2)
        if (lines := _lines(records[name], bits))
    ]
    text = [
        "### Bits of a weight gradient",
        "The GenNorm paper. Weight gradients of layers with at least 4,096 values are cut into "
        "levels up to their maximum and coded with Huffman. The table has the levels' entropy in "
        "bits a value, and the additional bits of a code from a fitted law or from counts, "
        "header included; medians over layers and steps.",
        table(heads, rows),
    ]
    if "plain_seed1" in records:
        run = records["plain_seed1"]
        steps = sorted({line["step"] for line in run.bits})
        rows = [[step, *_medians(_lines(run, 8, step), "huffman")] for step in steps]
        rows.append(["all, rANS", *_medians(_lines(run, 8), "rans")])
        text += [
            "Over the training of the ResNet-20, 255 levels:",
            table(["step", "entropy", *MODELS], rows),
        ]
    lines = [line for name in found for line in _lines(records[name], 8)]

    def wins(model: str) -> int:
        laws = ("normal", "laplace", "gennorm")
        return sum(min(laws, key=lambda m: line["huffman"][m]) == model for line in lines)

    def more(model: str) -> float:
        return statistics.median(
            line["huffman"][model] - line["huffman"]["gennorm"] for line in lines
        )

    text.append(
        f"**Agrees**: of the three laws the generalized normal gives the shortest code for "
        f"{wins('gennorm')} of {len(lines)} gradients at 255 levels (Laplace {wins('laplace')}, "
        f"normal {wins('normal')}). Compared with it, in the median, the normal law takes "
        f"{more('normal'):.2f} bits more, Laplace {more('laplace'):.2f}, and counted tables "
        f"{more('counted'):+.2f}. With few levels most values are zero, and a Huffman code "
        "from a fitted law needs at least one bit for each. **What to do**: use counted tables, "
        "the default; use "
        '`model="gennorm"` for tensors of some thousand values at 6 to 8 bits, where a table is a '
        "large part of the payload."
    )
    return "\n\n".join(text)
