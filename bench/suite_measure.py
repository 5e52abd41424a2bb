"""measure: all statistics in one pass, against a copy of the tensor and torch's own operators; and
what follows from the statistics.

The unit is `copy_` of the same tensor: what it costs to touch the memory once.
"""

import torch

import slimgrad as sg
from bench.timing import Row, race

ops = torch.ops.slimgrad


def torch_log_moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two of the eight statistics, in the obvious way."""
    log = x.abs().log_()
    return log.mean(), log.std()


def run(quick: bool) -> list[Row]:
    measure = torch.ops.slimgrad.measure
    rows = []
    num_values = 1 << 20 if quick else 1 << 24
    for dtype in [torch.float32, torch.bfloat16, torch.float16]:
        x = torch.exp(2 * torch.randn(num_values) - 4)
        x = (x * torch.sign(torch.randn(num_values))).to(dtype)
        target = torch.empty_like(x)
        alternatives = {
            "copy_": lambda x=x, target=target: target.copy_(x),
            "slimgrad.measure": lambda x=x: measure(x),
            "torch: mean and std of log|x|": lambda x=x: torch_log_moments(x),
        }
        case = f"{num_values >> 20} Mi {str(dtype).removeprefix('torch.')}"
        rows += race("measure", case, "copy_", alternatives, seconds=0.5 if quick else 4.0)
    return rows + planning(quick)


def planning(quick: bool) -> list[Row]:
    """A threshold from statistics costs the same for any tensor; torch's ways to one do not."""
    x = torch.exp(2 * torch.randn(1 << (18 if quick else 22)) - 4)
    stats = sg.measure(x)
    alternatives = {"torch.topk of the 4 Mi values": lambda: x.topk(len(x) // 10, sorted=False)}
    for method in ("empirical", "lognormal", "gennorm", "normal"):
        alternatives[f"threshold, {method}"] = lambda method=method: sg.threshold(
            stats, 0.9, method
        )
    unit = "threshold, empirical"
    rows = race("plan", "threshold for a sparsity of 0.9", unit, alternatives, 0.5)
    million = x[:1_000_000]
    fits = {
        f"fit of 1,000,000 values, {family}": lambda family=family: ops.fit(million, family)
        for family in ("gennorm", "lognormal", "laplace")
    }
    return rows + race("plan", "maximum likelihood", next(iter(fits)), fits, 1.0)
