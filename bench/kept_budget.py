"""The error of gradients with a budget, and with the same bits for all tensors.

    python -m bench.kept_budget --out results/kept_budget.json [--data TEXT] [--images DIR]

The networks and data are those of bench.kept_convergence, after some plain training steps. The same
batch is taken with every way; the error is that of all parameters' gradients together, relative to
the plain ones, as the root of the mean square over draws.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch

from bench.fewbit_convergence import generated_text
from bench.kept_convergence import TASKS, Task
from bench.timing import write_json

BUDGETS = (0.1, 0.15, 0.2)
UNIFORM = (2, 4, 8)


def gradients(task: Task, batch: tuple) -> torch.Tensor:
    task.model.zero_grad()
    task.model(*batch).backward()
    return torch.cat([p.grad.flatten() for p in task.model.parameters()]).double()


def trained(task: Task, steps: int) -> None:
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=task.rate)
    for _ in range(steps):
        optimizer.zero_grad()
        task.model(*task.batch()).backward()
        optimizer.step()


def measure(task: Task, kept, batch: tuple, plain: torch.Tensor, draws: int) -> dict:
    """share: of the bytes of what is packed."""
    import slimgrad as sg

    controller = sg.compress(task.model, kept=kept, seed=0)
    gradients(task, batch)  # A budget measures; running means move alike in every way.
    errors = [(gradients(task, batch) - plain).norm() / plain.norm() for _ in range(draws)]
    tally = controller.kept.tally
    bits = [width for own in controller.kept.bits().values() for width in own]
    controller.remove()
    return {
        "share": tally.bytes / tally.plain_bytes,
        "error": statistics.mean(e.item() ** 2 for e in errors) ** 0.5,
        "bits": {str(width): bits.count(width) for width in sorted(set(bits))},
    }


def rows_of(name: str, task: Task, steps: int, draws: int) -> list[dict]:
    """Uniform bits, and budgets: those above, and as many bytes as each width takes."""
    import slimgrad as sg

    trained(task, steps)
    batch = task.batch()
    plain = gradients(task, batch)
    rows, shares = [], {}
    for bits in UNIFORM:
        found = measure(task, bits, batch, plain, draws)
        shares[f"budget of {bits} bits"] = found["share"]
        rows.append({"model": name, "way": f"kept={bits}", **found})
    budgets = shares | {f"budget={budget}": budget for budget in BUDGETS}
    for way, budget in sorted(budgets.items(), key=lambda item: item[1]):
        found = measure(task, sg.Keep(budget=budget), batch, plain, draws)
        rows.append({"model": name, "way": way, **found})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.kept_budget")
    parser.add_argument("--data", type=Path, help="a text file")
    parser.add_argument("--images", type=Path, help="a folder with CIFAR-10's binary version")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    text = arguments.data.read_text() if arguments.data else generated_text()
    rows = []
    for name, make in TASKS.items():
        torch.manual_seed(0)
        task = make(text, arguments.images, 0)
        rows += rows_of(name, task, arguments.steps, arguments.draws)
    for row in rows:
        print(f"{row['model']:<8} {row['way']:<18} {row['share']:.4f} {row['error']:.5f}")
    if arguments.out:
        command = "python -m bench.kept_budget"
        command += f" --data {arguments.data.name}" if arguments.data else ""
        command += " --images DIR" if arguments.images else ""
        command += f" --steps {arguments.steps} --draws {arguments.draws} --out {arguments.out}"
        write_json(arguments.out, command, rows, line_each=True)


if __name__ == "__main__":
    main()
