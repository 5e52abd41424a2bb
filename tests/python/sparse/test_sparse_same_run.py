"""The same seed, the same run: in a second process, on a busy machine, with other threads."""

import contextlib
import json
import subprocess
import sys

import pytest

SCRIPT = """
import hashlib, json, sys
import torch, torch.nn.functional as F
import slimgrad as sg

torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(0)
blocks = []
for inputs, outputs in ((3, 16), (16, 32), (32, 64), (64, 64)):
    blocks += [torch.nn.Conv2d(inputs, outputs, 3, padding=1), torch.nn.ReLU()]
model = torch.nn.Sequential(*blocks, torch.nn.AvgPool2d(4), torch.nn.Flatten(),
                            torch.nn.Linear(64 * 16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
controller = sg.compress(model, sg.Prune(weight=.95, input=.9), min_elements=512)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for _ in range(5):
    x, y = torch.randn(16, 3, 16, 16), torch.randint(10, (16,))
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
digest = hashlib.sha256()
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
ways = {name: [row["way"], row["break_even"]] for name, row in controller.report().items()}
print(json.dumps({"bits": digest.hexdigest(), "ways": ways}))
"""


@contextlib.contextmanager
def a_busy_machine():
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        yield
    finally:
        for process in load:
            process.kill()
            process.wait()


def run(threads=1):
    command = [sys.executable, "-c", SCRIPT, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def quiet():
    return run()


def test_the_same_bits_on_a_busy_machine(quiet):
    with a_busy_machine():
        assert run() == quiet


def test_the_same_ways_with_other_threads(quiet):
    """The bits are torch's to keep: its dense sums may depend on the number of threads."""
    assert run(threads=2)["ways"] == quiet["ways"]


def test_the_run_has_both_ways(quiet):
    """Otherwise the tests above say nothing of choosing."""
    assert {way for way, _ in quiet["ways"].values()} == {"dense", "sparse"}
