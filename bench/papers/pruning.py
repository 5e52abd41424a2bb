"""Pruned gradients: accuracy by sparsity, achieved against required, two products (Figure 5)."""

from __future__ import annotations

import statistics

from slimgrad.report.runs import Run, number

from .records import Records, cell, spread_of_plain, table

WAYS = {
    "": "one sparsity for all layers",
    "_min_cosine": "spread over layers, min_cosine",
    "_targets": "spread over layers, targets",
    "_topk": "the largest values alone (top-k)",
    "_normal": "a normal law's threshold (ATP)",
}
SPARSITIES = ("0.7", "0.85", "0.9", "0.95")


def _name(sparsity: str, way: str) -> str:
    return f"prune_{sparsity}{way or '_seed1'}"


def _misses(run: Run) -> list[float]:
    """By layer and epoch: how far the mean share of zeros is from the wanted one."""
    return [
        abs(line["sparsity"] - line["sparsity_wanted"])
        for line in run.layers
        if (number(line, "sparsity_wanted") or 0) > 0
    ]


def _accuracies(records: Records) -> str:
    rows = []
    for way, title in WAYS.items():
        names = [_name(sparsity, way) for sparsity in SPARSITIES]
        rows.append([title, *(cell(records, n) if n in records.names else "" for n in names)])
    for stem, title in (("", "one sparsity, seed 2"), ("_min_cosine", "min_cosine, seed 2")):
        name = f"prune_0.85{stem}_seed2"
        rows.append([title, "", cell(records, name, "plain_seed2"), "", ""])
    return table(["", *SPARSITIES], rows)


ACHIEVED = {
    "prune_0.85_seed1": "empirical, every step (the default)",
    "prune_0.85_empirical_epoch": "empirical, once an epoch",
    "prune_0.85_lognormal": "lognormal, every step",
    "prune_0.85_lognormal_epoch": "lognormal, once an epoch (the paper's)",
    "prune_0.85_normal": "normal, every step (ATP)",
    "prune_0.85_topk_stochastic": "top-k threshold, then stochastic",
}


def _achieved(records: Records) -> str:
    rows = []
    for name, title in ACHIEVED.items():
        if name not in records:
            rows.append([title, "not trained yet", "", "", ""])
            continue
        run = records[name]
        misses = _misses(run)
        rows.append(
            [
                title,
                cell(records, name),
                f"{run.sparsity():.3f}",
                f"{statistics.median(misses):.3f}",
                f"{max(misses):.3f}",
            ]
        )
    heads = ["threshold", "test accuracy", "achieved", "median miss of a layer", "largest"]
    return table(heads, rows)


def _map(records: Records) -> str:
    inputs = ("0", "0.5", "0.8")
    rows = [
        [weight, *(cell(records, f"sparse_{weight}_{i}") for i in inputs)]
        for weight in ("0.8", "0.9", "0.97")
    ]
    heads = ["weight", *("input dense" if i == "0" else f"input {i}" for i in inputs)]
    return table(heads, rows)


def section(records: Records) -> str:
    text = [
        "### Pruned gradients",
        "The lognormal paper's Figure 5. Test accuracy of the ResNet-20 with every layer's neural "
        "gradient pruned before both products of its backward pass, in brackets the difference "
        "from "
        "plain training with the same seed:",
        _accuracies(records),
        "Methods to find the threshold for a sparsity of 0.85: the sparsity achieved over all "
        "gradients, and the distance of a layer's mean over an epoch from 0.85 (or from its share "
        "of zeros before, if that is larger):",
        _achieved(records),
        "Separate sparsities for the two products (`Prune(weight=, input=)`), which are in no "
        "paper; every product is computed from the survivors alone:",
        _map(records),
    ]
    if records.has("long_plain", "long_prune_0.85"):
        epochs = records["long_plain"].config["epochs"]
        text.append(
            f"A longer run, {epochs} epochs: plain {cell(records, 'long_plain', 'long_plain')}, "
            f"one sparsity of 0.85 {cell(records, 'long_prune_0.85', 'long_plain')}."
        )
    text.append(_verdict(records))
    return "\n\n".join(text)


def _is_trained(records: Records) -> bool:
    """Whether advice has runs to stand on: both products, one of them, and a spread sparsity."""
    return records.has("prune_0.7_seed1", "prune_0.85_min_cosine", "sparse_0.9_0", "sparse_0.9_0.8")


def _verdict(records: Records) -> str:
    text = []
    plain = "plain_seed1"
    _, deviation, _ = spread_of_plain(records)
    if records.has(plain, "prune_0.85_seed1"):
        loss = records.accuracy(plain) - records.accuracy("prune_0.85_seed1")
        text.append(
            f"'No loss at 85 %' {'holds' if loss <= 2.8 * deviation else 'does not hold'} here: "
            f"{loss:.1f} points are lost in a short run (two single runs differ by chance by "
            f"{1.4 * deviation:.1f}, standard deviation)"
        )
        if records.has("long_plain", "long_prune_0.85"):
            longer = records.accuracy("long_plain") - records.accuracy("long_prune_0.85")
            text[-1] += f", {longer:.1f} in the longer one"
        text[-1] += (
            ". A narrow network and short runs are the hard case; this says nothing about a wide "
        )
        text[-1] += "network on ImageNet after 90 epochs."
    if records.has("plain_seed2", "prune_0.85_seed1", "prune_0.85_seed2"):
        first, second = (
            records.accuracy(f"plain_seed{n}") - records.accuracy(f"prune_0.85_seed{n}")
            for n in (1, 2)
        )
        text.append(
            "Pruned runs differ more by chance than plain runs: with one sparsity of 0.85, two "
            f"seeds lose {first:.1f} and {second:.1f} points, so differences between two pruned "
            "runs are as uncertain."
        )
    pairs = [
        (s, records.accuracy(_name(s, "_min_cosine")) - records.accuracy(_name(s, "")))
        for s in SPARSITIES
        if records.has(_name(s, ""), _name(s, "_min_cosine"))
    ]
    if pairs:
        gains = ", ".join(f"{gain:+.1f} at {s}" for s, gain in pairs)
        text.append(f"Spreading sparsity by min_cosine instead of one for all: {gains} points.")
    if records.has("prune_0.85_seed1", "prune_0.85_topk"):
        gap = records.accuracy("prune_0.85_topk") - records.accuracy("prune_0.85_seed1")
        text.append(
            f"Top-k, which is biased, differs from stochastic pruning by {gap:+.1f} points at 0.85"
            + (
                ", as the paper says."
                if gap < 0
                else ": the paper's order of the two does not appear in so short a run."
            )
        )
    weights = ("0.8", "0.9", "0.97")
    if records.has(*(f"sparse_{w}_{i}" for w in weights for i in ("0", "0.8"))):
        dense, pruned = (
            statistics.mean(records.accuracy(f"sparse_{w}_{i}") for w in weights)
            for i in ("0", "0.8")
        )
        text.append(
            f"Pruning the input's product to 0.8 in addition costs {dense - pruned:.1f} points on "
            "average, because its noise is passed on to all earlier layers."
        )
    if _is_trained(records):
        text.append(
            "**What to do**: prune only for the weight's gradient (`Prune(weight=0.9, input=0)`); "
            "if both products have to be sparse, use 0.7 at most, or spread the sparsity "
            '(`allocation="min_cosine"`).'
        )
    return "**Result.** " + " ".join(text)
