"""GELU with 3 bits kept, against torch's, checkpointing and torch.compile's memory budget.

First GELU alone: forward, then backward as autograd calls it. In a network the gradient that comes
in is nobody else's: then a few-bit backward writes over it, while torch's always makes a new
tensor; a caller that holds the gradient costs a new tensor here too. Then both through autograd,
and last the training of a transformer's feed-forward blocks, with what autograd keeps and the peak
resident memory of a process that does nothing else. The unit is always torch's eager mode.
"""

import torch
from torch.utils.checkpoint import checkpoint

from bench.fewbit_memory import (
    WAYS,
    bytes_saved,
    peak_in_process,
    saved_by_stack,
    stepper,
    with_budget,
)
from bench.timing import Row, race


def run(quick: bool) -> list[Row]:
    import slimgrad.functional as F

    size = 1 << 20 if quick else 1 << 24
    seconds = 1.0 if quick else 5.0
    gelu = torch.nn.functional.gelu
    functions = {
        "torch": gelu,
        "torch.utils.checkpoint": lambda x: checkpoint(gelu, x, use_reentrant=False),
        "torch.compile, budget 0.5": with_budget(gelu),
        "slimgrad, 3 bits": lambda x: F.gelu(x, bits=3),
        "slimgrad, 1 bit": lambda x: F.gelu(x, bits=1),
        "slimgrad, exact": lambda x: F.gelu(x, bits="exact"),
    }
    case = f"GELU, {size >> 20} Mi float32"
    return (
        forward_rows(f"{case}, forward", functions, size, seconds)
        + backward_rows(f"{case}, backward", size, seconds)
        + chain_rows(
            f"{case}, times a constant, sum; forward and backward", functions, size, seconds
        )
        + block_rows(quick, seconds)
    )


def forward_rows(case: str, functions: dict, size: int, seconds: float) -> list[Row]:
    x = torch.randn(size, requires_grad=True)
    labelled = {
        f"{name} ({bytes_saved(lambda f=f: f(x)) / size:.3f} B kept an element)": f
        for name, f in functions.items()
    }
    runs = {label: lambda f=f: f(x) for label, f in labelled.items()}
    return race("fewbit", case, next(iter(runs)), runs, seconds)


def backward_rows(case: str, size: int, seconds: float) -> list[Row]:
    from slimgrad.nn.step_tables import table_for

    ops = torch.ops.slimgrad
    x, gradient = torch.randn(size), torch.randn(size)
    y = torch.nn.functional.gelu(x)
    ours = torch.zeros(size)  # zeros stay zeros, however often they are multiplied
    table = table_for("gelu", {}, 3)
    codes = ops.stepwise_codes(x, table.borders, table.even)
    bit = ops.stepwise_codes(x, [-0.75], False)
    runs = {
        "torch": lambda: torch.ops.aten.gelu_backward(gradient, x),
        "slimgrad, 3 bits": lambda: ops.stepwise_backward_(ours, codes, table.levels),
        "slimgrad, 3 bits, gradient held": lambda: ops.stepwise_backward(
            gradient, codes, table.levels, [1]
        ),
        "slimgrad, exact": lambda: ops.invertible_backward_(ours, y, bit, "gelu"),
        "slimgrad, exact, gradient held": lambda: ops.invertible_backward(gradient, y, bit, "gelu"),
    }
    return race("fewbit", case, "torch", runs, seconds)


def chain_rows(case: str, functions: dict, size: int, seconds: float) -> list[Row]:
    x = torch.randn(size, requires_grad=True)
    factor = torch.randn(size)

    def both(f):
        x.grad = None
        (f(x) * factor).sum().backward()

    runs = {name: lambda f=f: both(f) for name, f in functions.items()}
    return race("fewbit", case, "torch", runs, seconds)


def block_rows(quick: bool, seconds: float) -> list[Row]:
    labels = {
        way: f"{way} ({saved_by_stack(way, quick):.0f} MiB kept, "
        f"{peak_in_process(way, quick):.0f} MiB peak resident)"
        for way in WAYS
    }
    runs = {labels[way]: stepper(way, quick) for way in WAYS}
    case = "feed-forward blocks, a training step"
    return race("fewbit", case, labels["torch"], runs, seconds, min_rounds=4)
