"""The state of one compressed layer, by field: the Python side of src/torch/plan_tensor.h."""

from __future__ import annotations

from enum import IntEnum, auto

import torch

from .stats import STATS_SIZE, TensorStats


class _FromZero(IntEnum):
    @staticmethod
    def _generate_next_value_(name, start, count, last_values):
        return count


class Plan(_FromZero):
    SEED_LOW = auto()
    SEED_HIGH = auto()
    MIN_ELEMENTS = auto()
    SAMPLE_SIZE = auto()
    REFRESH_EVERY = auto()
    PRUNE = auto()
    SPARSITY = auto()
    METHOD = auto()
    BITS = auto()
    EXPONENT_BITS = auto()
    MANTISSA_BITS = auto()
    SCALE_METHOD = auto()
    FIXED_SCALE = auto()
    ROUNDING = auto()
    UNDERFLOW = auto()
    CALLS = auto()
    DUE = auto()
    THRESHOLD = auto()
    IN_FORCE_PRUNE = auto()
    FORMAT_EXPONENT = auto()
    FORMAT_MANTISSA = auto()
    SCALE = auto()
    WARMUP = auto()
    TARGET = auto()
    GOOD_STEPS = auto()
    SEEN_CALLS = auto()
    SCHEDULE = auto()


SCHEDULE_ROWS = 8
SCHEDULE = slice(Plan.SCHEDULE, Plan.SCHEDULE + 2 * SCHEDULE_ROWS)
SPLIT = SCHEDULE.stop
PLAN_SIZE = SPLIT + 1

PRUNE_KINDS = ("none", "stochastic", "topk", "topk_stochastic")
METHODS = ("empirical", "lognormal", "gennorm", "normal", "mean")
SPLIT_METHODS = ("empirical", "lognormal", "normal")
SCALE_METHODS = ("max", "predicted", "error")
ROUNDINGS = ("nearest", "stochastic")
UNDERFLOWS = ("zero", "stochastic")

_REPORT = (
    "elements",
    "sparsity_wanted",
    "sparsity",
    "at_threshold",
    "cosine",
    "relative_error",
    "nonfinite",
    "compressed",
    "saturated",
    "bias",
)
LAYER_STATS_SIZE = STATS_SIZE + len(_REPORT)


def choice(value: str, names: tuple[str, ...], what: str) -> int:
    if value not in names:
        raise ValueError(f"expected {what} to be one of {', '.join(names)}; got {value!r}")
    return names.index(value)


def new_plan() -> torch.Tensor:
    plan = torch.zeros(PLAN_SIZE, dtype=torch.float64)
    plan[SCHEDULE] = -1
    plan[Plan.DUE] = 1
    return plan


def new_layer_stats() -> torch.Tensor:
    return torch.zeros(LAYER_STATS_SIZE, dtype=torch.float64)


def layer_report(plan: torch.Tensor, stats: torch.Tensor) -> dict:
    """What the last backward pass of a layer saw and did, as plain numbers."""
    sample = TensorStats(stats[:STATS_SIZE])
    report = dict(zip(_REPORT, stats[STATS_SIZE:].tolist(), strict=True))
    for name in ("elements", "nonfinite"):
        report[name] = int(report[name])
    for name in ("compressed", "saturated"):
        report[name] = bool(report[name])
    p = plan.tolist()
    exponent, mantissa = int(p[Plan.FORMAT_EXPONENT]), int(p[Plan.FORMAT_MANTISSA])
    report |= {
        "calls": int(p[Plan.CALLS]),
        "log_std": sample.log_std,
        "threshold": p[Plan.THRESHOLD],
        "format": f"1-{exponent}-{mantissa}" if exponent else None,
        "scale": p[Plan.SCALE] if exponent else None,
    }
    return report
