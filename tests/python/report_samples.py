"""What the tests of reports share: a run of the trainer, a run of one's own, and tensors."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from controller_samples import make, train

import slimgrad as sg

# slimgrad-train --model mlp --train-size 640 --test-size 400 --epochs 3 --batch 64 --threads 1
#   --gradients none fp4 prune:0.9+fp4 --probe-at 12 --min-accuracy 0 --out tests/golden/runs.jsonl
TRAINER_RUNS = Path(__file__).parents[1] / "golden" / "runs.jsonl"


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def own_run(path, gradients=None, steps=4):
    """A short training that logs after every step, with histograms after the last."""
    model, controller = make(gradients or [sg.Prune(0.8), "fp6"])
    for step in range(steps):
        loss = train(model, 1, first=step)[0]
        last = step == steps - 1
        controller.log(path, histograms=last, loss=loss, accuracy=0.1 * step, seconds=0.5)
    return controller


def tensors(folder):
    """A normal one and a lognormal one, with zeros."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(20_000, generator=generator)
    np.save(folder / "normal.npy", x.numpy())
    heavy = torch.exp(2 * x) * (torch.rand(20_000, generator=generator) > 0.25)
    np.save(folder / "lognormal.npy", heavy.double().numpy())
    return sorted(folder.glob("*.npy"))


def figures_in(page):
    """By name, the variants of the figures of a page, as plotly gets them."""
    text = Path(page).read_text(encoding="utf-8")
    start = text.index('id="figures">') + len('id="figures">')
    return json.loads(text[start : text.index("</script>", start)])


def trace(figures, name, variant=0, panel=0, run=None):
    found = figures[name][variant]["panels"][panel]["data"]
    return found[0] if run is None else next(t for t in found if t["name"] == run)


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "slimgrad", "report", *map(str, arguments)],
        capture_output=True,
        text=True,
    )
