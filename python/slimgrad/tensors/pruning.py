"""Thresholds for a wanted sparsity, what they cost, and how to spread sparsity over layers."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch

from .._library import ops
from .._support import check_choice, number
from .stats import TensorStats, stats_tensor


class SparsityWarning(UserWarning):
    """The tensor has more zeros than the sparsity asked for: nothing is pruned."""


def threshold(
    what: TensorStats | dict[str, Any], sparsity: float, method: str = "empirical"
) -> float:
    """The threshold at which stochastic pruning is expected to leave ``sparsity`` zeros.

    ``what`` is TensorStats, or for the method "lognormal" a dict with log_mean, log_std and
    zero_fraction. If the tensor already has that many zeros there is nothing to prune: the
    threshold is 0, with a SparsityWarning.
    """
    check_choice(method, "method", "threshold", "method")
    value, reached, _, _, nothing_to_prune = ops.threshold(
        stats_tensor(what, "threshold"), number(sparsity, "threshold", "sparsity"), method
    ).tolist()
    if nothing_to_prune and reached > sparsity:
        warnings.warn(
            f"[threshold] a sparsity of {sparsity:g} was asked for, but {reached:g} of the values "
            "are zero already: nothing is pruned",
            SparsityWarning,
            stacklevel=2,
        )
    return value


def expected_sparsity(
    what: TensorStats | dict[str, Any], threshold: float, method: str = "empirical"
) -> float:
    """The expected fraction of zeros after stochastic pruning with ``threshold``."""
    check_choice(method, "method", "expected_sparsity", "method")
    threshold = number(threshold, "expected_sparsity", "threshold")
    return ops.expected_sparsity(stats_tensor(what, "expected_sparsity"), threshold, method).item()


def expected_cosine(
    what: TensorStats | dict[str, Any], threshold: float, method: str = "empirical"
) -> float:
    """The expected cosine similarity of a tensor before and after pruning."""
    check_choice(method, "method", "expected_cosine", "method")
    threshold = number(threshold, "expected_cosine", "threshold")
    return ops.expected_cosine(stats_tensor(what, "expected_cosine"), threshold, method).item()


Stats = TensorStats | dict[str, Any]


class Allocation(list):
    """The sparsity of every layer; ``thresholds``, ``cosines`` and ``at_cap`` go with it, and the
    ``names`` of the layers if they had any."""

    def __init__(self, rows: Sequence[Sequence[float]], names: Sequence[Hashable] | None = None):
        super().__init__(row[0] for row in rows)
        self.names = None if names is None else list(names)
        self.thresholds = [row[1] for row in rows]
        self.cosines = [row[2] for row in rows]
        self.at_cap = [bool(row[3]) for row in rows]


def allocate(
    layers: Sequence[TensorStats | dict[str, Any]]
    | Mapping[Hashable, TensorStats | dict[str, Any]],
    sparsity: float,
    objective: str = "min_cosine",
    cap: float = 0.98,
    method: str | None = None,
    targets: Mapping[Hashable, float] | None = None,
) -> Allocation:
    """Spreads an overall sparsity over layers.

    ``layers`` are TensorStats or dicts with log_mean, log_std, zero_fraction and count; a list of
    them, or by name.
    ``objective``: min_cosine, mean_cosine, mean_error, total_error or uniform; targets, the same as
    min_cosine, needs some.
    ``method``: the law of every layer; "empirical" by default if all were measured, else
    "lognormal".
    ``targets``: cosine similarities for some layers by index, or by name if layers have names; the
    others share what remains of the sparsity by the objective. If the targets make the sparsity
    unreachable, the error gives the range that can be reached. The cap comes first: a layer that a
    target would prune beyond it is pruned to the cap, with a larger cosine.
    """
    if not isinstance(layers, Iterable) or isinstance(layers, torch.Tensor | str):
        raise TypeError(
            "[allocate] expected layers to be TensorStats or dicts, in a list or by name, got "
            f"{type(layers).__name__}"
        )
    names = list(layers) if isinstance(layers, Mapping) else None
    layers = list(layers.values() if isinstance(layers, Mapping) else layers)
    places = {name: i for i, name in enumerate(range(len(layers)) if names is None else names)}
    check_choice(objective, "allocation", "allocate", "objective")
    if method is not None:
        check_choice(method, "method", "allocate", "method")
    if not isinstance(targets or {}, Mapping):
        raise TypeError(
            "[allocate] expected targets to map layers to cosine similarities, got "
            f"{type(targets).__name__}"
        )
    targets = dict(targets or {})
    for name in targets:
        if name not in places:
            raise ValueError(
                f"[allocate] expected targets for some of the layers {list(places)}, got {name!r}"
            )
    rows = ops.allocate(
        [stats_tensor(layer, "allocate") for layer in layers],
        number(sparsity, "allocate", "sparsity"),
        objective,
        method,
        number(cap, "allocate", "cap"),
        [places[name] for name in targets],
        [number(cosine, "allocate", "a target") for cosine in targets.values()],
    )
    return Allocation(rows.tolist(), names)
