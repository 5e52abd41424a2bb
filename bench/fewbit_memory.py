"""What training a transformer's feed-forward blocks keeps, and how much memory a process needs.

    python -m bench.fewbit_memory WAY [--quick]

prints the peak resident memory of one process that trains in one WAY, in MiB. The peak counts from
after the first step, so that neither compilation nor start-up is in it. Linux only.
"""

import argparse
import gc
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

SIZES = {True: (128, 1024, 2), False: (256, 8192, 4)}  # quick or not: width, rows, blocks
BUDGET = 0.5


class Block(nn.Module):
    """x + Linear(GELU(Linear(LayerNorm(x)))), four times as wide inside."""

    def __init__(self, width: int, activation: nn.Module, checkpointed: bool):
        super().__init__()
        self.body = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            activation,
            nn.Linear(4 * width, width),
        )
        self.checkpointed = checkpointed

    def forward(self, x):
        y = checkpoint(self.body, x, use_reentrant=False) if self.checkpointed else self.body(x)
        return x + y


def with_budget(function: Callable) -> Callable:
    """Compiled; of what eager mode would keep, about half may be kept, the rest is recomputed."""
    import torch._functorch.config as config

    compiled = torch.compile(function, fullgraph=True)

    def run(x):
        with config.patch(activation_memory_budget=BUDGET):
            return compiled(x)

    return run


def stack(way: str, quick: bool) -> tuple[nn.Module, Callable, torch.Tensor]:
    """The blocks, how to call them in this way, and their input."""
    import slimgrad as sg

    width, rows, depth = SIZES[quick]
    torch.manual_seed(0)
    activations = {
        "slimgrad, 3 bits": lambda: sg.nn.GELU(bits=3),
        "slimgrad, exact": lambda: sg.nn.GELU(bits="exact"),
    }
    make = activations.get(way, nn.GELU)
    blocks = [Block(width, make(), way == "torch.utils.checkpoint") for _ in range(depth)]
    model = nn.Sequential(*blocks)
    call = with_budget(model) if way.startswith("torch.compile") else model
    return model, call, torch.randn(rows, width)


WAYS = [
    "torch",
    "torch.utils.checkpoint",
    f"torch.compile, budget {BUDGET}",
    "slimgrad, 3 bits",
    "slimgrad, exact",
]


def stepper(way: str, quick: bool) -> Callable[[], None]:
    model, call, x = stack(way, quick)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        call(x).square().mean().backward()
        optimizer.step()

    return step


def bytes_saved(run: Callable, apart_from: Iterable[torch.Tensor] = ()) -> int:
    """Bytes that autograd keeps while `run` makes its result, each storage once."""
    lives_anyway = {tensor.untyped_storage().data_ptr() for tensor in apart_from}
    seen: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in lives_anyway:
            seen[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(tensor.untyped_storage().nbytes() for tensor in seen.values())


def saved_by_stack(way: str, quick: bool) -> float:
    """MiB without the parameters, which live anyway."""
    model, call, x = stack(way, quick)
    call(x)  # Compiles.
    return bytes_saved(lambda: call(x), model.parameters()) / 2**20


def peak_in_process(way: str, quick: bool) -> float:
    """MiB, from a new process."""
    command = [sys.executable, "-m", "bench.fewbit_memory", way] + (["--quick"] if quick else [])
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fewbit_memory")
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    step = stepper(arguments.way, arguments.quick)
    step()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
    for _ in range(2):
        step()
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
    print(int(peak) / 1024)


if __name__ == "__main__":
    main()
