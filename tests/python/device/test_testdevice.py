"""The test device itself: what it counts, and that the host cannot touch its memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import testdevice
import torch


@pytest.fixture(scope="module")
def device():
    return testdevice.load()


def test_counts_copies_and_waits(device):
    x = torch.arange(6.0).to(device)
    testdevice.reset()
    assert x.cpu().tolist() == [0, 1, 2, 3, 4, 5]
    assert x[3].item() == 3
    counts = testdevice.counts()
    assert (counts["copies_to_host"], counts["waits"], counts["kernels"]) == (2, 2, 0)
    testdevice.reset()
    assert set(testdevice.counts().values()) == {0}


def test_names_what_falls_back(device):
    x = torch.arange(6.0).to(device)
    testdevice.reset()
    assert (x * 2).cpu().tolist() == [0, 2, 4, 6, 8, 10]
    assert testdevice.counts()["fallbacks"] == sum(testdevice.fallback_names().values()) > 0
    assert all(name.startswith("aten::") for name in testdevice.fallback_names())


def test_strict(device):
    x = torch.arange(6.0).to(device)
    with testdevice.strict():
        for copy in (x.cpu, x[0].item):
            with pytest.raises(RuntimeError, match="testdevice"):
                copy()
    assert x[1].item() == 1


PEEK = """
import testdevice, torch
x = torch.ones(5).to(testdevice.load())
torch.ops.slimgrad.prune(x, 0.5, 1)
print("before", flush=True)
torch.ops.testdevice.peek(x)
print("after")
"""


def test_a_host_access_is_a_fault():
    path = str(Path(testdevice.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PEEK],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout == "before\n" and done.returncode == -11
