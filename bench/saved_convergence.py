"""Does training with packed saved tensors reach the same loss? A small GPT and a small ResNet.

    python -m bench.saved_convergence --out FILE [--data TEXT] [--images DIR]

Every run of a model starts from the same weights and sees the same batches for a seed; only what
backward keeps differs. Reported are the mean loss over the last tenth of the steps, and what was
held out: the loss of the GPT on the last tenth of the text, the accuracy of the ResNet on test
images; then mean and standard deviation over seeds, and the difference from the plain run with the
same seed, which is what to read: seeds differ in weights and batches.

TEXT is a text file, otherwise the text is generated; DIR holds CIFAR-10's binary version
(data_batch_1.bin, ..., test_batch.bin), otherwise the images are noisy patterns. What is already in
--out is not run again, so a long run can be stopped, or cut up with --limit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from bench.fewbit_convergence import generated_text, spread
from bench.saved_models import GPT, ResNet
from bench.time_to_accuracy import read_batches
from bench.timing import commit

PLAIN = "plain"
LENGTH = 64


def settings() -> dict[str, dict]:
    """By name: what compress() is given."""
    import slimgrad as sg

    return {
        PLAIN: {},
        "saved=exact": {"saved": "exact"},
        "saved=8": {"saved": 8},
        "saved=4": {"saved": 4},
        "saved=2": {"saved": 2},
        "saved=4, activations=3": {"saved": 4, "activations": 3},
        "saved=4, activations=3, Prune(weight=0.9, input=0)": {
            "saved": 4,
            "activations": 3,
            "gradients": sg.Prune(weight=0.9, input=0),
        },
        "saved=2, groups of 32": {"saved": sg.Saved(bits=2, group=32)},
    }


@dataclass
class Task:
    """model: from a batch to its loss. held_out: of the trained model, and what it is."""

    model: nn.Module
    batch: Callable[[], tuple]
    held_out: Callable[[], float]
    rate: float


def text_task(text: str, _: Path | None, seed: int) -> Task:
    symbols = {c: i for i, c in enumerate(sorted(set(text)))}
    data = torch.tensor([symbols[c] for c in text])
    training, testing = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]
    generator = torch.Generator().manual_seed(seed)
    model = GPT(len(symbols), LENGTH, width=64, depth=3, heads=2)

    def rows(source, start):
        chosen = torch.stack([source[s : s + LENGTH + 1] for s in start])
        return chosen[:, :-1], chosen[:, 1:]

    def batch():
        return rows(training, torch.randint(len(training) - LENGTH, (16,), generator=generator))

    def held_out():
        start = range(0, min(len(testing) - LENGTH - 1, 256 * LENGTH), LENGTH)
        return model(*rows(testing, start)).item()

    return Task(model, batch, held_out, 2e-3)


def _pattern_images(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    patterns = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    return patterns[labels] + 2 * torch.randn(count, 3, 32, 32, generator=generator), labels


def image_task(_: str, folder: Path | None, seed: int) -> Task:
    if folder is None:
        (images, labels), (test_images, test_labels) = (_pattern_images(n, n) for n in (2048, 512))
    else:
        images, labels = read_batches(sorted(folder.rglob("data_batch_*.bin")), 20000)
        test_images, test_labels = read_batches(sorted(folder.rglob("test_batch.bin")), 2000)
    generator = torch.Generator().manual_seed(seed)
    model = ResNet(8, [1, 1, 1], 10, large_stem=False)

    def batch():
        picked = torch.randint(len(images), (32,), generator=generator)
        return images[picked].contiguous(), labels[picked]

    def held_out():
        pairs = zip(test_images.split(500), test_labels.split(500), strict=True)
        right = sum((model.logits(x).argmax(1) == y).sum().item() for x, y in pairs)
        return right / len(test_labels)

    return Task(model, batch, held_out, 3e-3)


TASKS = {"gpt": text_task, "resnet": image_task}


def train(task: Task, options: dict, seed: int, steps: int) -> dict[str, float]:
    import slimgrad as sg

    if options:
        sg.compress(task.model, seed=seed, **options)
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=task.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, task.rate, steps)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = task.model(*task.batch())
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    task.model.eval()
    with torch.no_grad():
        held_out = task.held_out()
    return {"loss": statistics.mean(losses[-max(1, steps // 10) :]), "held_out": held_out}


def print_table(rows: list[dict]) -> None:
    print(f"{'model':<8} {'setting':<50} {'loss':<17} less plain's, by seed; and held out")
    plain = {row["model"]: row["runs"] for row in rows if row["setting"] == PLAIN}
    for row in rows:
        cells = []
        for field in ("loss", "held_out"):
            own = [run[field] for run in row["runs"]]
            cells.append(spread(own))
            if row["setting"] != PLAIN:
                pairs = zip(own, plain[row["model"]], strict=True)
                cells.append(spread([ours - run[field] for ours, run in pairs]))
        print(f"{row['model']:<8} {row['setting']:<50} {'  '.join(cells)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.saved_convergence")
    parser.add_argument("--data", type=Path, help="a text file")
    parser.add_argument("--images", type=Path, help="a folder with CIFAR-10's binary version")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--setting", action="append", choices=settings(), help="default: all")
    parser.add_argument("--limit", type=int, help="stop after this many new rows of the table")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.images and not list(arguments.images.rglob("data_batch_*.bin")):
        parser.error(f"--images: expected data_batch_1.bin in {arguments.images}")
    torch.set_num_threads(1)  # so small a network gains nothing from a second one
    text = arguments.data.read_text() if arguments.data else generated_text()
    command = "python -m bench.saved_convergence"
    command += f" --data {arguments.data.name}" if arguments.data else ""
    command += " --images DIR" if arguments.images else ""
    command += f" --steps {arguments.steps} --seeds {arguments.seeds} --out {arguments.out}"
    record = {"command": command, "torch": torch.__version__, "rows": []}
    if arguments.out and arguments.out.exists():
        before = json.loads(arguments.out.read_text())
        if any(before[key] != record[key] for key in ("command", "torch")):
            parser.error(f"{arguments.out} holds the rows of another command: {before['command']}")
        record = before
    done = {(row["model"], row["setting"]) for row in record["rows"]}
    wanted = [(model, name) for name in arguments.setting or settings() for model in TASKS]
    for model, setting in [key for key in wanted if key not in done][: arguments.limit]:
        runs, began, measured = [], time.process_time(), commit()
        for seed in range(arguments.seeds):
            torch.manual_seed(seed)
            task = TASKS[model](text, arguments.images, seed)
            runs.append(train(task, settings()[setting], seed, arguments.steps))
        seconds = time.process_time() - began
        row = {"model": model, "setting": setting, "commit": measured, "cpu_seconds": seconds}
        record["rows"].append({**row, "runs": runs})
        print(f"{model}, {setting}: {seconds:.0f} s", flush=True)
        if arguments.out:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    print_table(record["rows"])


if __name__ == "__main__":
    main()
