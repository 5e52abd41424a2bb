"""The scale of a 4-bit format: for each layer, or one for the loss (Table 4)."""

from __future__ import annotations

from .formats import measured_cosine
from .records import Records, cell, spread_of_plain, table

ROWS = {
    "format_1-3-0_seed1": ("a scale for each layer, new in every pass", "-"),
    "scale_predicted_epoch": ("a scale for each layer, predicted once an epoch", "64.8 %"),
    "scale_dynamic": ("one dynamic loss scale", "3 %"),
    "scale_static13": ("one static loss scale, 2^13", "26.7 %"),
    "scale_static16": ("one static loss scale, 2^16", "41.5 %"),
    "scale_static19": ("one static loss scale, 2^19", "53.9 %"),
}


def section(records: Records) -> str:
    rows = []
    for name, (title, paper) in ROWS.items():
        cosine = measured_cosine(records[name]) if name in records else None
        known = "-" if cosine is None else f"{cosine:.3f}"
        rows.append([title, cell(records, name), known, paper])
    rows.append(["plain", cell(records, "plain_seed1"), "1", "70.4 %"])
    text = [
        "### The scale of FP4",
        "The lognormal paper's Table 4 for 1-3-0. The paper's column is for a ResNet-18 on "
        "ImageNet, the others are for the ResNet-20 with unbiased rounding, one seed. The cosine "
        "of gradient and rounded gradient is a median over layers and epochs.",
        table(["scale", "test accuracy", "cosine", "the paper"], rows),
    ]
    if records.has(*ROWS):
        static = [n for n in ROWS if n.startswith("scale_static")]
        best = max((*static, "scale_dynamic"), key=records.accuracy)
        fresh, old = (records.accuracy(n) for n in ("format_1-3-0_seed1", "scale_predicted_epoch"))
        gap = fresh - records.accuracy(best)
        _, deviation, _ = spread_of_plain(records)
        chance = 2 * 2**0.5 * deviation
        if gap > chance:
            verdict = "**Agrees**: a scale for each layer is better than any scale for the loss"
        elif gap > -chance:
            verdict = (
                "**Agrees in part**: a scale for each layer is as good as the best scale for the "
                "loss, which is not known beforehand"
            )
        else:
            verdict = "**Does not agree**: a scale for the loss is better than one for each layer"
        text.append(
            f"{verdict} (the best of these, {ROWS[best][0]}, is {gap:.1f} points behind a new "
            f"scale in every pass; two runs differ by chance by up to {chance:.1f}). A scale that "
            f"is predicted at the start of an epoch is {fresh - old:.1f} points behind that, "
            "probably because in a run of "
            f"{records['scale_predicted_epoch'].config['epochs']} epochs gradients change within "
            "an epoch by more than a grid of seven powers of two can represent. **What to do**: "
            "compute a scale for each layer in every pass, the default; it costs a maximum over "
            "the gradient."
        )
    return "\n\n".join(text)
