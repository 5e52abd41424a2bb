"""The `slimgrad-train` program, run as users run it, at a size that takes seconds.

The binary is the one installed beside this Python, or the one that SLIMGRAD_TRAIN names.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = os.environ.get("SLIMGRAD_TRAIN") or str(Path(sys.executable).parent / "slimgrad-train")
TINY = ["--images", "192", "--test-images", "100", "--epochs", "1", "--min-accuracy", "0"]


def run(*args, cwd=None):
    return subprocess.run(
        [PROGRAM, *map(str, args)], capture_output=True, text=True, cwd=cwd, timeout=600
    )


def results(tmp_path, *args):
    """The JSON and the standard output of a run that must succeed."""
    out = tmp_path / "runs.json"
    done = run(*args, "--out", out)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), done


def test_compares_plain_and_compressed_training(tmp_path):
    found, done = results(tmp_path, *TINY, "--seed", "3", "--threads", "2")
    assert (found["seed"], found["threads"], found["training_images"]) == (3, 2, 192)
    plain, fp6, pruned = found["runs"]
    assert [r["gradients"] for r in found["runs"]] == ["none", "fp6", "prune:0.85"]

    assert plain["layers"] == []
    assert plain["bits_per_value"] == 32
    # 640 of some two million values, those behind the last layer, are too few to compress.
    assert 6 < fp6["bits_per_value"] < 6.02
    assert [layer["layer"] for layer in fp6["layers"]] == [
        *("conv1", "conv2", "conv3", "conv4", "conv5"),
        "linear6",
    ]
    assert fp6["layers"][-1]["compressed_values"] == 0
    assert all(layer["last_format"].startswith("1-") for layer in fp6["layers"][:-1])
    assert pruned["sparsity_wanted"] == 0.85
    assert abs(pruned["sparsity"] - 0.85) < 0.005
    assert 0 < pruned["bits_per_value"] < 6
    for layer in pruned["layers"][:-1]:
        assert layer["worst_sparsity_miss"] < 0.02
        assert 0.5 < layer["cosine"] < 1

    # The first step sees the same weights and images, so the runs cannot be far apart.
    losses = [r["loss_by_epoch"] for r in found["runs"]]
    assert all(len(loss) == 1 and abs(loss[0] - losses[0][0]) < 0.5 for loss in losses)
    for name in ("gradients", "none", "fp6", "prune:0.85", "32.00"):
        assert name in done.stdout
    # Not a terminal: one line an epoch.
    assert "\r" not in done.stderr
    assert done.stderr.count("ETA") == 3


def test_trains_with_a_sparse_backward_pass(tmp_path):
    found, _ = results(tmp_path, *TINY, "--gradients", "none", "sparse:0.9:0")
    plain, sparse = found["runs"]
    assert sparse["gradients"] == "sparse:0.9:0"
    assert len(sparse["test_accuracy_by_epoch"]) == len(sparse["seconds_by_epoch"]) == 1
    # The same weights and images; pruned weight gradients are noisier, not different on average.
    assert abs(sparse["loss_by_epoch"][0] - plain["loss_by_epoch"][0]) < 0.5


def test_a_run_can_be_repeated(tmp_path):
    command = [*TINY, "--gradients", "prune:0.9+fp4", "--threads", "1"]
    first, second = (results(tmp_path, *command)[0]["runs"][0] for _ in range(2))
    for timing in ("mean_step_seconds", "median_step_seconds", "seconds_by_epoch"):
        assert first.pop(timing)
        second.pop(timing)
    assert first == second
    other = results(tmp_path, *command, "--seed", "9")[0]["runs"][0]
    assert other["loss_by_epoch"] != first["loss_by_epoch"]


def test_a_linear_model_fails_where_the_network_learns(tmp_path):
    size = ["--images", "2000", "--test-images", "500", "--batch", "32", "--min-accuracy", "0"]
    size += ["--threads", "1"]  # quickest where other tests run beside this one
    linear = ["--model", "linear", "--epochs", "5"]
    found, _ = results(tmp_path, *size, *linear, "--gradients", "none")
    assert found["runs"][0]["test_accuracy"] < 0.45
    found, _ = results(tmp_path, *size, "--epochs", "4", "--gradients", "prune:0.85")
    assert found["runs"][0]["test_accuracy"] > 0.7


def test_says_so_if_training_does_not_learn():
    done = run(*TINY[:-1], "0.99", "--gradients", "fp6")
    assert done.returncode == 1
    assert "did not learn" in done.stderr.splitlines()[-1]
    assert "fp6" in done.stdout  # the table is there all the same


def test_says_so_if_training_diverges():
    done = run(*TINY, "--gradients", "none", "--rate", "1e30")
    assert done.returncode == 1
    assert "not finite" in done.stderr


@pytest.mark.parametrize(
    "args, word",
    [
        (["--gradients", "fp99"], "fp99"),
        (["--gradients", "prune:1.5"], "prune:1.5"),
        (["--gradients"], "--gradients"),
        (["--epochs", "0"], "--epochs"),
        (["--epochs", "-1"], "--epochs"),
        (["--seed", "-1"], "--seed: expected a number that is not negative, got -1"),
        (["--seed", "1.5"], "--seed"),
        (["--images", "-1"], "--images"),
        (["--test-images", "-1"], "--test-images"),
        (["--threads", "-1"], "--threads"),
        (["--min-accuracy", "-1"], "--min-accuracy"),
        (["--epochs", "x"], "--epochs"),
        (["--threads", "0"], "--threads"),
        (["--model", "transformer"], "transformer"),
        (["--min-accuracy", "2"], "--min-accuracy"),
        (["--images", "10", "--batch", "64"], "batch"),
        (["--out", "/no/such/folder/runs.json"], "/no/such/folder"),
        (["--nonsense"], "--nonsense"),
        (["extra"], "extra"),
    ],
)
def test_refuses_misuse(args, word):
    done = run(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("slimgrad-train: ") and done.stderr.count("\n") == 1
    assert word in done.stderr


def test_helps():
    done = run("--help")
    assert done.returncode == 0
    assert "Example" in done.stdout and "--gradients" in done.stdout
    assert run("--version").stdout.startswith("slimgrad-train ")
