"""The launch path of CUDA: a driver of our own (tests/testdevice/driver) in place of NVIDIA's.
Where torch was built for CUDA, that build is tested, too, as far as ATen's operators have no part.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import testdevice
import torch

atens_operators = pytest.mark.skipif(
    torch.version.cuda is not None, reason="this build's operators for CUDA need a GPU"
)

PROGRAM = """
import testdevice, torch
device = testdevice.load("cuda")
x = torch.arange(-5000.0, 5001.0).bfloat16()
ops = torch.ops.slimgrad
pruned = ops.prune(x.to(device), 2000.0, 3)
words = ops.pack_saved(x.to(device), 4, 0, "stochastic", 1, 2)
assert pruned.device == device
assert torch.equal(pruned.cpu(), ops.prune(x, 2000.0, 3))
assert torch.equal(words.cpu(), ops.pack_saved(x, 4, 0, "stochastic", 1, 2))
print("done")
"""


def run(tmp_path, *, program=PROGRAM, **environment):
    log = tmp_path / "calls.txt"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(testdevice.__file__).parents[1]),
            "FAKE_CUDA_LOG": str(log),
            **environment,
        },
    )
    return done, log.read_text().splitlines() if log.exists() else []


def test_names_grid_stream_and_arguments(tmp_path):
    """A result with the CPU's bits has had the right arguments; the driver checks the rest."""
    done, calls = run(tmp_path)
    assert done.stdout == "done\n", done.stderr
    assert calls == [
        "load code -> 0",
        "launch slimgrad_prune_bf16 3 128 -> 0",
        "fill 0 4 -> 0",
        "launch slimgrad_pack_saved4_bf16 5 128 -> 0",
    ]


def test_an_old_driver_gets_ptx(tmp_path):
    done, calls = run(tmp_path, FAKE_CUDA="only ptx")
    assert done.stdout == "done\n", done.stderr
    assert calls[:2] == ["load code -> 222", "load ptx -> 0"]


ERRORS = """
import os, testdevice, torch
x = torch.arange(10.0).to(testdevice.load("cuda"))
for way in ("capturing", "no image", "no kernel", "launch fails"):
    os.environ["FAKE_CUDA"] = way
    try:
        torch.ops.slimgrad.prune(x, 2.0, 3)
    except RuntimeError as error:
        print(str(error).splitlines()[0])
del os.environ["FAKE_CUDA"]
torch.ops.slimgrad.prune(x, 2.0, 3)
"""


def test_errors_in_a_sentence_each(tmp_path):
    """None of them is the last word: the next call tries again."""
    done, calls = run(tmp_path, program=ERRORS)
    assert done.returncode == 0, done.stderr
    for line, message in zip(
        done.stdout.splitlines(),
        [
            "expected device kernels to be loaded before a CUDA graph is captured",
            "CUDA_ERROR_UNSUPPORTED_PTX_VERSION: the driver is too old, or the GPU older than",
            "finding the kernel slimgrad_",
            "starting the kernel slimgrad_prune_f32: CUDA's driver says CUDA_ERROR_LAUNCH_FAILED",
        ],
        strict=True,
    ):
        assert message in line
    assert calls[-1] == "launch slimgrad_prune_f32 1 128 -> 0"


def test_no_driver(tmp_path):
    program = PROGRAM.replace('load("cuda")', 'load("cuda", with_driver=False)')
    done, _ = run(tmp_path, program=program)
    assert "expected a CUDA driver, got libcuda.so.1" in done.stderr.splitlines()[-1]


WITHOUT_KERNELS = """
import testdevice, torch
built_in, wanted = torch.ops.slimgrad._device_kernels()
device = testdevice.load("cuda", with_launcher=False)
x = torch.arange(8.0).to(device)
print(built_in, wanted, torch.ops.slimgrad.prune(x, 2.0, 3).cpu().tolist())
"""


def test_a_build_without_device_kernels_says_so(tmp_path):
    done, _ = run(tmp_path, program=WITHOUT_KERNELS)
    if "True" in done.stdout:
        pytest.skip("this build has device kernels")
    assert "expected a build with device kernels, got one without" in done.stderr.splitlines()[-1]
    assert "SLIMGRAD_DEVICE_KERNELS=0" in done.stderr.splitlines()[-1]


@atens_operators
def test_the_switch_takes_atens_operators(tmp_path):
    done, calls = run(tmp_path, program=WITHOUT_KERNELS, SLIMGRAD_DEVICE_KERNELS="0")
    assert "False [0.0, " in done.stdout and calls == [], done.stderr
