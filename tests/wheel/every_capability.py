"""A few lines of every capability, in an environment where slimgrad came from a wheel.

every_capability.py SCRIPTS [--hidden | --source]: SCRIPTS holds the programs; with --hidden it must
be so that nothing of what built the wheel can be seen, with --source it was built where it is.
"""

import ctypes.util
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import numpy
import torch
from torch import nn

import slimgrad as sg

scripts, hidden = Path(sys.argv[1]), "--hidden" in sys.argv
if hidden:
    try:
        ctypes.CDLL("libhwy.so.1")
    except OSError:
        pass
    else:
        raise SystemExit("libhwy.so.1 can still be loaded: nothing is hidden")
# A wheel is for one release of torch; what is built from source for the one that was there.
pinned = any(r.startswith("torch==") for r in requires("slimgrad"))
assert pinned == ("--source" not in sys.argv), requires("slimgrad")

torch.manual_seed(0)
gradient = torch.randn(64, 1024) ** 3

# Measuring and deciding.
stats = sg.measure(gradient)
assert stats.count == gradient.numel()
assert sg.fit(gradient, "lognormal").ks(gradient) < sg.fit(gradient, "normal").ks(gradient)
format = sg.best_format(6, stats)
alpha = sg.threshold(stats, 0.85)
assert len(sg.steps("gelu", bits=3).levels) == 8

# Applying.
assert abs((sg.prune(gradient, alpha, seed=1) == 0).double().mean() - 0.85) < 0.01
packed = sg.pack(gradient, format, sg.gradient_scale(stats, format))
assert packed.nbytes <= gradient.numel() * 6 // 8 + 8 and packed.unpack().shape == gradient.shape

# Coding.
assert torch.equal(sg.decode(sg.encode(gradient)), gradient)

# Training: gates, few-bit activations, sparse products.
images, labels = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
gated, sparse = [sg.Prune(0.8), "fp6"], sg.Prune(weight=0.9, input=0.5)
for gradients, activations, kept in ((gated, 3, 8), (sparse, None, "exact")):
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.GELU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(25088, 10)
    )
    controller = sg.compress(model, gradients, activations=activations, saved=kept, seed=1)
    nn.functional.cross_entropy(model(images), labels).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert controller.summary()

# The page of a run, with the files that it is made of.
controller.log("run.jsonl", histograms=True)
subprocess.run(
    [sys.executable, "-m", "slimgrad", "report", "run.jsonl"], check=True, capture_output=True
)
assert "Plotly" in Path("report.html").read_text(encoding="utf-8")

# The programs.
numpy.save("gradient.npy", gradient.numpy())
for command in (
    "slimgrad encode gradient.npy gradient.sg",
    "slimgrad decode gradient.sg back.npy",
    "slimgrad-train --images 64 --test-images 32 --epochs 1 --min-accuracy 0",
):
    subprocess.run(f"{scripts}/{command}", shell=True, check=True, capture_output=True)
assert (numpy.load("back.npy") == gradient.numpy()).all()
for name in ("gradient.npy", "gradient.sg", "back.npy", "run.jsonl", "report.html"):
    Path(name).unlink()
where = " where nothing of the build can be seen" if hidden else ""
print(f"{'wheel' if pinned else 'sdist'}: every capability runs{where}")
