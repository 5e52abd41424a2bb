"""What a report means: in words, where a layer is harmed, with what helps."""

from __future__ import annotations

from .gradients import Prune, Quantize

# Below this cosine more than half of what is left of a gradient is noise: its square is the share
# of the squared length that points where the gradient did.
LEAST_COSINE = 0.7
# The relative error of rounding alone: beyond it values are off by half of themselves on average.
LARGEST_RELATIVE_ERROR = 0.5
# The bias of a gradient's sum over the sum of magnitudes. Stochastic rounding moves it by noise
# alone, which is larger than this in layers with few large values; so only others are told.
LARGEST_BIAS = 0.05
# How far the zeros of all layers may fall short of an allocation: more than sampling explains.
LARGEST_SHORTFALL = 0.02


def _remedy(prune: Prune) -> str:
    if prune.allocation == "uniform":
        return "prune it less, exclude it, or spread the sparsity with allocation='min_cosine'"
    return "prune less overall, exclude it, or give it a cosine of its own with targets="


def model_advice(report: dict[str, dict], prune: Prune | None) -> list[str]:
    """Sentences about all layers together; none if all is well."""
    rows = [row for row in report.values() if row["calls"] and row["compressed"]]
    if prune is None or not rows:
        return _not_reached(report)
    return _not_reached(report) + _too_sparse(rows, prune) + _out_of_reach(rows, prune)


def _not_reached(report: dict[str, dict], most: int = 5) -> list[str]:
    """Layers through which no gradient came, while it came through others more than once. The input
    of a first layer needs no gradient, so that its product is no sign of anything."""
    names = [n for n, row in report.items() if not row["calls"] and not n.endswith(".input")]
    if not names or max((row["calls"] for row in report.values()), default=0) < 2:
        return []
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return [
        f"no gradient has come through {', '.join(names[:most])}{more}: frozen, not used, or not "
        "called as a module (its weight is used by other code)"
    ]


def _too_sparse(rows: list[dict], prune: Prune) -> list[str]:
    """Where most layers are harmed, no exclusion helps: the sparsity is too high for the model."""
    harmed = sum(row["cosine"] < LEAST_COSINE for row in rows)
    if harmed < 3 or harmed <= len(rows) / 2:
        return []
    remedy = "prune less, language models for example to 0.5"
    if not prune.is_sparse:
        remedy += (
            f", or for the weight's gradient alone, whose noise stays in its layer: "
            f"Prune(weight={prune.sparsity:g}, input=0)"
        )
    elif prune.products["input"] > 0:
        remedy += ", above all with input=0: noise in the input's gradient runs through all layers"
    return [
        f"{harmed} of {len(rows)} pruned gradients keep a cosine below {LEAST_COSINE:g}, the "
        f"sparsity is too high for this model; {remedy} (docs/results.md)"
    ]


def _out_of_reach(rows: list[dict], prune: Prune) -> list[str]:
    """Whether an allocation over all layers found room for its sparsity."""
    if prune.allocation == "uniform" or prune.is_sparse or prune.sparsity is None:
        return []
    elements = sum(row["elements"] for row in rows)
    zeros = sum(row["sparsity"] * row["elements"] for row in rows)
    if zeros > (prune.sparsity - LARGEST_SHORTFALL) * elements:
        return []
    return [
        f"all layers together have {zeros / elements:.2f} zeros instead of {prune.sparsity:.2f}: "
        f"targets and a cap of {prune.cap:g} leave room for no more"
    ]


def advice(name: str, row: dict, prune: Prune | None, quantize: Quantize | None) -> list[str]:
    """Sentences about one row of a controller's report; none if all is well."""
    if not row["calls"] or not row["compressed"]:
        return []
    sentences = []
    if prune is not None and row["cosine"] < LEAST_COSINE:
        sentences.append(
            f"{name}: pruning to {row['sparsity']:.2f} leaves a cosine of {row['cosine']:.2f} with "
            f"the gradient; {_remedy(prune)}"
        )
    if quantize is None:
        return sentences
    if prune is None and row["relative_error"] > LARGEST_RELATIVE_ERROR:
        sentences.append(
            f"{name}: {row['format']} changes values by {row['relative_error']:.0%} on average; "
            "give it more bits, or method='empirical' if another is set"
        )
    biased = quantize.rounding == "nearest" or quantize.underflow == "zero"
    if biased and abs(row["bias"]) > LARGEST_BIAS:
        sentences.append(
            f"{name}: rounding shifts the sum of the gradient by {row['bias']:+.0%} of its "
            "magnitude; rounding='stochastic' and underflow='stochastic' keep it"
        )
    return sentences
