"""Several compressions at once, and 4-bit weights and activations beside 4-bit gradients."""

from __future__ import annotations

from .records import Records, cell, spread_of_plain, table

ROWS = {
    "plain_seed1": "plain",
    "saved_4": "saved in 4 bits, exact activations",
    "everything": "the same, and a sparse backward pass (weight 0.9)",
    "int4_plain": "weights and activations rounded to INT4",
    "int4_fp4": "the same, and FP4 gradients (1-3-0)",
}

# A short run of each, by turns, with nothing else on the machine.
ALONE = {
    "plain": ["alone_plain_1", "alone_plain_2"],
    "saved in 4 bits, exact activations": ["alone_saved_4_1", "alone_saved_4_2"],
    "the same, and a sparse backward pass": ["alone_everything_1", "alone_everything_2"],
}
MIB = 1 << 20


def _accuracies(records: Records) -> str:
    rows = []
    for name, title in ROWS.items():
        known = name in records
        bits = f"{records[name].bits_per_value():.1f}" if known else ""
        rows.append([title, cell(records, name), bits])
    return table(["", "test accuracy", "bits of a neural gradient"], rows)


def _kept(records: Records, name: str) -> str:
    """What autograd held at the end of a forward pass, and would have held."""
    epoch = records[name].epochs[-1]
    if "saved_bytes" not in epoch:
        return "all"
    kept, plain = epoch["saved_bytes"] / MIB, epoch["plain_saved_bytes"] / MIB
    return f"{kept:.1f} of {plain:.1f} MiB"


def _costs(records: Records) -> str:
    found = {t: [n for n in names if n in records] for t, names in ALONE.items()}
    if not all(found.values()):
        return "Time and memory are not measured yet."

    def step(names: list[str]) -> float:
        return min(records[n].end["median_step_seconds"] for n in names)

    rows = []
    for title, names in found.items():
        peak = min(records[n].end["peak_memory_bytes"] for n in names) / MIB
        ratio = step(names) / step(found["plain"])
        seconds = f"{1000 * step(names):.0f} ms ({ratio:.2f})"
        rows.append([title, seconds, _kept(records, names[0]), f"{peak:.0f} MiB"])
    heads = ["", "time of a step", "saved by autograd", "peak memory of the process"]
    run = records["alone_plain_1"]
    return (
        f"Time and memory: short alternating runs with nothing else on the machine, one thread, "
        f"batches of {run.config['batch']}, the better of two medians. The peak includes the "
        "images and the program.\n\n" + table(heads, rows)
    )


def section(records: Records) -> str:
    text = [
        "### Together",
        "One seed, the ResNet-20. A sparse backward pass stores no gradient, so its bits stay 32.",
        _accuracies(records),
        _costs(records),
    ]
    if records.has("int4_plain", "int4_fp4"):
        gap = records.accuracy("int4_plain") - records.accuracy("int4_fp4")
        text.append(
            f"With INT4 weights and activations, FP4 gradients cost {gap:.1f} points (in the "
            "paper, INT4 costs 0.3 points with FP4 gradients)."
        )
    if records.has("everything", "saved_4", "plain_seed1"):
        plain = records.accuracy("plain_seed1")
        _, deviation, _ = spread_of_plain(records)
        text.append(
            "Saving tensors in 4 bits changes the accuracy by "
            f"{records.accuracy('saved_4') - plain:+.1f} points, everything together by "
            f"{records.accuracy('everything') - plain:+.1f}; two single runs differ by chance by "
            f"{1.4 * deviation:.1f} (standard deviation). **What to do**: use only the settings "
            "that save what is scarce (memory: `saved=`, `activations=`; backward time: "
            "`Prune(weight=0.9, input=0)`)."
        )
    return "\n\n".join(text)
