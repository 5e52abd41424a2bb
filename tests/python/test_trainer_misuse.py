"""What `slimgrad-train` says when it is told something wrong, or training goes wrong."""

import re

import pytest
from completion_shell import complete
from trainer_runs import TINY, run, write_cifar10


def test_says_so_if_training_does_not_learn():
    done = run(*TINY[:-1], "0.99", "--gradients", "fp6", "--threads", "1")
    assert done.returncode == 1
    assert "did not learn" in done.stderr.splitlines()[-1]
    assert "fp6" in done.stdout  # the table is there all the same


def test_says_so_if_training_diverges(tmp_path):
    out = tmp_path / "out"
    done = run(*TINY, "--gradients", "none", "--rate", "1e30", "--threads", "1", "--out", out)
    assert done.returncode == 1
    assert "not finite" in done.stderr
    assert '"kind":"end"' in out.read_text() and '"diverged":true' in out.read_text()


@pytest.mark.parametrize(
    "args, word",
    [
        (["--gradients", "fp99"], "fp99"),
        (["--gradients", "prune:1.5"], "prune:1.5"),
        (["--gradients"], "--gradients"),
        (["--scale", "static:x", "--gradients", "fp4"], "static:x"),
        (["--epochs", "0"], "--epochs"),
        (["--seed", "-1"], "--seed: expected a number that is not negative, got -1"),
        (["--images", "-1"], "--train-size"),
        (["--model", "transformer"], "transformer"),
        (["--model", "gpt", "--data", "glyphs"], "expected text"),
        (["--data", "grammar"], "expected images"),
        (["--data", "mnist"], "mnist"),
        (["--data", "cifar10:/no/such/folder"], "/no/such/folder/data_batch_1.bin"),
        (["--data", "text:/no/such/file", "--model", "gpt"], "/no/such/file"),
        (["--model", "mlp", "--norm", "none"], "--norm"),
        (["--activations", "exact", "--nonlinearity", "tanh"], "tanh"),
        (["--probe-at", "1"], "--out"),
        (["--resume"], "--checkpoint"),
        (["--gradients", "fp4", "--prune", "topk"], "prune"),
        (["--gradients", "prune:0.9", "--rounding", "nearest"], "rounding"),
        (["--momentum", "0.5"], "--momentum"),
        (["--probe", "fits"], "--probe-at"),
        (["--images", "10", "--batch", "64"], "batch"),
        (["--images", "64", "--out", "/no/such/folder/runs.jsonl"], "/no/such/folder"),
        (["--images", "64", "--checkpoint", "/dev/null/folder"], "/dev/null/folder"),
        (["--nonsense"], "--nonsense"),
        (["extra"], "extra"),
    ],
)
def test_refuses_misuse(args, word):
    done = run(*args)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("slimgrad-train: ") and done.stderr.count("\n") == 1
    assert word in done.stderr


def test_refuses_truncated_data(tmp_path):
    data = write_cifar10(tmp_path / "data")
    path = tmp_path / "data" / "data_batch_4.bin"
    path.write_bytes(path.read_bytes()[:-1])
    done = run("--data", data)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert (
        f"data_batch_4.bin: expected whole records of 3073 bytes, got {4 * 3073 - 1}" in done.stderr
    )


def test_helps():
    done = run("--help")
    assert done.returncode == 0
    assert "Example" in done.stdout and "--gradients" in done.stdout
    assert run("--version").stdout.startswith("slimgrad-train ")


def test_bash_completes_what_the_help_says():
    script = run("--completion", "bash").stdout
    help = run("--help").stdout
    flags = complete(script, "slimgrad-train --")
    assert flags == set(re.findall(r"(?<![\w-])--[a-z0-9][a-z0-9-]*", help.split("Examples:")[0]))
    described = re.split(r"^  (?=-)", help, flags=re.MULTILINE)
    for flag in sorted(flags - {"--help", "--version"}):
        (text,) = [part for part in described if re.match(rf"\S*{flag}(?![\w-])", part)]
        for value in complete(script, f"slimgrad-train {flag} ", cwd="/"):
            assert value in text or flag in ("--out", "--checkpoint", "--gradients"), (flag, value)
    assert complete(script, "slimgrad-train --gradients none fp4 f") == {
        f"fp{n}" for n in range(2, 9)
    }
    assert complete(script, "slimgrad-train --gradients none --sav") == {"--saved"}
    assert complete(script, "slimgrad-train --optimizer=s") == {"sgd"}


def test_another_shell_is_refused():
    done = run("--completion", "tcsh")
    assert done.returncode == 2
    assert "--completion: tcsh not in {bash,zsh,fish}" in done.stderr
