"""GELU with 3 bits kept, against torch's, checkpointing and torch.compile's memory budget.

Forward, backward and both, float32, the gradient held by the caller. Then a block whose gradient
nobody holds, as in a network: there backward works in place. The unit is always torch's eager mode.
"""

import torch
from torch.utils.checkpoint import checkpoint

from bench.timing import Row, race


def kept_bytes(run) -> int:
    """Bytes that autograd keeps while `run` makes its result, each storage once."""
    seen: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(tensor.untyped_storage().nbytes() for tensor in seen.values())


def compiled_with_budget(function, budget: float):
    import torch._functorch.config as config

    def run(x):
        with config.patch(activation_memory_budget=budget):
            return compiled(x)

    compiled = torch.compile(function, fullgraph=True)
    return run


def run(quick: bool) -> list[Row]:
    import slimgrad.functional as F

    size = 1 << 20 if quick else 1 << 24
    seconds = 1.0 if quick else 8.0
    x = torch.randn(size, requires_grad=True)
    gradient = torch.randn(size)
    gelu = torch.nn.functional.gelu
    functions = {
        "torch": gelu,
        "slimgrad, 3 bits": lambda x: F.gelu(x, bits=3),
        "slimgrad, 1 bit": lambda x: F.gelu(x, bits=1),
        "slimgrad, exact": lambda x: F.gelu(x, bits="exact"),
        "torch.utils.checkpoint": lambda x: checkpoint(gelu, x, use_reentrant=False),
        "torch.compile, budget 0.5": compiled_with_budget(gelu, 0.5),
    }
    case = f"GELU, {size >> 20} Mi float32"
    names = {
        name: f"{name} ({kept_bytes(lambda f=f: f(x)) / size:.3f} B kept an element)"
        for name, f in functions.items()
    }
    unit = names["torch"]

    def both(f):
        x.grad = None
        f(x).backward(gradient)

    rows = race(
        "fewbit",
        f"{case}, forward",
        unit,
        {names[n]: lambda f=f: f(x) for n, f in functions.items()},
        seconds,
    )
    outputs = {n: f(x) for n, f in functions.items() if n != "torch.utils.checkpoint"}
    rows += race(
        "fewbit",
        f"{case}, backward",
        unit,
        {
            names[n]: lambda y=y: torch.autograd.grad(y, x, gradient, retain_graph=True)
            for n, y in outputs.items()
        },
        seconds,
    )
    outputs.clear()
    rows += race(
        "fewbit",
        f"{case}, forward and backward",
        unit,
        {names[n]: lambda f=f: both(f) for n, f in functions.items()},
        seconds,
    )
    return rows + run_block(quick, seconds)


def run_block(quick: bool, seconds: float) -> list[Row]:
    """A transformer's feed-forward part, forward and backward, and what all of it keeps."""
    import slimgrad as sg

    width, rows = (256, 1024) if quick else (512, 8192)
    torch.manual_seed(0)
    x = torch.randn(rows, width)

    def block(activation):
        return torch.nn.Sequential(
            torch.nn.LayerNorm(width),
            torch.nn.Linear(width, 4 * width),
            activation,
            torch.nn.Linear(4 * width, width),
        )

    eager = block(torch.nn.GELU())
    models = {
        "torch": eager,
        "slimgrad, 3 bits": block(sg.nn.GELU(bits=3)),
        "slimgrad, exact": block(sg.nn.GELU(bits="exact")),
        "torch.utils.checkpoint": lambda x: checkpoint(eager, x, use_reentrant=False),
        "torch.compile, budget 0.5": compiled_with_budget(eager, 0.5),
    }
    alternatives = {}
    for name, model in models.items():
        kept = kept_bytes(lambda model=model: model(x)) / 2**20
        label = f"{name} ({kept:.0f} MiB kept)"
        alternatives[label] = lambda model=model: model(x).sum().backward()
        if name == "torch":
            unit = label
    case = f"LayerNorm-Linear-GELU-Linear, {rows} x {width}"
    return race("fewbit", case, unit, alternatives, seconds)
