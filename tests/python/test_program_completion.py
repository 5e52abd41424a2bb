"""The scripts of `slimgrad completion`, in a real bash, and in zsh and fish where they are."""

import re
import shutil
import subprocess

import numpy as np
import pytest
from completion_shell import complete, offered
from program_runs import fail, read_json, run, save, succeed


@pytest.fixture(scope="module")
def script():
    return succeed("completion", "bash")


def test_subcommands(script):
    listed = succeed("--help").split("Subcommands:\n")[1]
    named = set(re.findall(r"^  ([a-z]+) ", listed, re.MULTILINE))
    assert complete(script, "slimgrad ") == named | {"--help", "--version"}
    assert complete(script, "slimgrad en") == {"encode"}
    assert complete(script, "slimgrad completion ") == {"bash", "zsh", "fish"}
    assert complete(script, "slimgrad no-such-command ") == set()


def test_every_flag_of_the_help_is_offered(script):
    for name in complete(script, "slimgrad ") - {"--help", "--version"}:
        options = succeed(name, "--help").split("Options:\n")[1].split("\n\n")[0]
        listed = set(re.findall(r"^  (?:-h,)?(--[a-z0-9-]+)", options, re.MULTILINE))
        assert complete(script, f"slimgrad {name} -") == listed, name


def test_values_of_a_flag(script):
    modes = {"lossless", "uniform", "float", "pruned", "topk"}
    assert complete(script, "slimgrad encode a.npy --mode ") == modes
    assert complete(script, "slimgrad encode a.npy --mode=") == modes
    assert complete(script, "slimgrad encode --mode=u") == {"uniform"}
    assert complete(script, "slimgrad encode --bits ") == set()
    assert complete(script, "slimgrad encode --mode uniform --coder h") == {"huffman"}
    assert complete(script, "slimgrad steps mi") == {"mish"}


@pytest.mark.parametrize("flag", ["--mode", "--coder", "--model", "--survivors"])
def test_what_is_offered_is_accepted(script, flag, tmp_path):
    source = save(tmp_path / "x.npy", np.float32([1, -2, 0, 4]))
    values = complete(script, f"slimgrad encode {flag} ")
    assert values
    for value in values:
        modes = {"--mode": ["--bits", "2"] * (value == "topk"), "--survivors": ["--mode", "pruned"]}
        mode = modes.get(flag, ["--mode", "uniform"])
        succeed("encode", source, tmp_path / "x.sg", *mode, flag, value)


def test_the_offers_of_threshold_and_steps_are_accepted(script):
    law = ["--log-mean", 0, "--log-std", 1, "--sparsity", 0.5]
    for method in complete(script, "slimgrad threshold --method "):
        done = run("threshold", *law, "--method", method)
        assert done.returncode == 0 or b"FILE" in done.stderr or b"lognormal" in done.stderr
    weights = complete(script, "slimgrad steps gelu --weight ")
    assert {read_json("steps", "gelu", "--weight", w)["weight"] for w in weights} == weights
    assert complete(script, "slimgrad steps ") == set(succeed("steps", "--list").split())


def test_files_with_the_endings_that_are_read(script, tmp_path):
    for name in ["g.npy", "m.safetensors", "c.sg", "notes.txt", "two words.npy"]:
        (tmp_path / name).touch()
    (tmp_path / "folder.npy").mkdir()
    inputs = {"g.npy", "two words.npy", "m.safetensors", "folder.npy"}
    assert complete(script, "slimgrad measure ", tmp_path) == inputs
    assert complete(script, "slimgrad measure g.npy --quiet ", tmp_path) == inputs
    assert complete(script, "slimgrad inspect ", tmp_path) == {"c.sg", "folder.npy"}
    assert complete(script, "slimgrad fit g", tmp_path) == {"g.npy"}
    assert offered(script, "slimgrad", "fit", "two w", cwd=tmp_path) == {"two words.npy"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_reads_its_script(shell, tmp_path):
    (tmp_path / "script").write_text(succeed("completion", shell))
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n", tmp_path / "script"], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_another_shell_is_refused_with_those_there_are():
    message = fail("completion", "tcsh")
    assert all(shell in message for shell in ("tcsh", "bash", "zsh", "fish"))


@pytest.mark.parametrize("command", ["doctor", "estimate", "report"])
def test_commands_of_python_are_named(command):
    assert f"python -m slimgrad {command}" in fail(command)
