"""Checkpoints of `slimgrad-train`: interrupted inside of an epoch, resumed, the same to the bit."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from trainer_runs import PROGRAM, Lines, lines_of, run

ROOT = Path(__file__).parents[2]
SIZE = ["--train-size", "24", "--test-size", "4", "--threads", "1", "--min-accuracy", "0"]
SHORT = [*SIZE, "--batch", "4", "--epochs", "3"]


@pytest.mark.parametrize(
    "args",
    [
        ["--gradients", "prune:0.9+fp4", "--allocation", "min_cosine", "--augment", "yes"],
        ["--gradients", "1-3-0", "--refresh", "epoch", "--optimizer", "sgd"],
        ["--gradients", "sparse:0.9:0.5", "--model", "resnet20", "--saved", "4"],
        ["--gradients", "fp6", "--model", "gpt", "--scale", "dynamic:2^16:2", "--activations", "2"],
        ["--gradients", "none", "--probe-at", "3", "9"],
    ],
)
def test_goes_on_to_the_bit(args, tmp_path):
    command = [*SHORT, *args]
    whole, _ = lines_of(tmp_path / "whole", *command)
    kept = ["--checkpoint", tmp_path / "saved", "--out", tmp_path / "parts"]
    for steps in (8, 12):  # inside of the second epoch, and at its end
        done = run(*command, *kept, "--stop-after-steps", steps, *(["--resume"] * (steps > 8)))
        assert done.returncode == 3, done.stderr
        assert "--resume" in done.stderr.splitlines()[-1]
    # What was written after the checkpoint is written again.
    with open(tmp_path / "parts", "a") as file:
        file.write('{"kind":"half a li')
    assert run(*command, *kept, "--resume").returncode == 0
    parts = Lines(tmp_path / "parts")
    assert parts.one("end")["resumed"] == 2
    assert parts.untimed() == whole.untimed()
    assert not list((tmp_path / "saved").glob("*.new"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_writes_a_checkpoint(number, tmp_path):
    # So long that the signal comes before its end.
    command = [*SIZE, "--batch", "4", "--epochs", "10000", "--gradients", "none", "fp6"]
    command += ["--checkpoint", str(tmp_path / "saved")]
    with subprocess.Popen([PROGRAM, *command], stderr=subprocess.PIPE, text=True) as process:
        process.stderr.readline()  # it is training
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 3
    assert said.splitlines()[-1].startswith("slimgrad-train: interrupted")
    assert (tmp_path / "saved" / "run1.checkpoint").exists()
    done = run(*command, "--resume", "--rate", "0.5")
    assert done.returncode == 2 and "rate 0.003, got 0.5" in done.stderr


def test_finished_runs_are_not_trained_again(tmp_path):
    command = [*SHORT, "--gradients", "none", "fp6"]
    whole, _ = lines_of(tmp_path / "whole", *command)
    kept = ["--checkpoint", tmp_path / "saved", "--out", tmp_path / "parts"]
    # Both runs have 18 steps: the first is stopped in its 18th, the second then, too.
    assert run(*command, *kept, "--stop-after-steps", "18").returncode == 3
    assert run(*command, *kept, "--resume", "--stop-after-steps", "18").returncode == 3
    done = run(*command, *kept, "--resume")
    assert done.returncode == 0
    assert Lines(tmp_path / "parts").untimed() == whole.untimed()
    again = run(*command, *kept, "--resume")
    assert again.returncode == 0 and "ETA" not in again.stderr
    assert again.stdout.count("fp6") == 1  # in the table


def test_refuses_to_go_on_with_something_else(tmp_path):
    usual = {"--seed": 1, "--batch": 4, "--gradients": "fp6", "--model": "cnn"}

    def train(options, *more):
        words = [word for option in options.items() for word in option]
        return run(*SIZE, *words, "--checkpoint", tmp_path, *more)

    assert train(usual, "--stop-after-steps", "2").returncode == 3
    for change, said in [
        ({"--seed": 2}, "data_hash"),
        ({"--batch": 5}, "batch 4, got 5"),
        ({"--gradients": "fp4"}, 'gradients "fp6", got "fp4"'),
        ({"--model": "mlp"}, 'model "cnn", got "mlp"'),
    ]:
        done = train(usual | change, "--resume")
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert said in done.stderr


def test_refuses_what_is_no_checkpoint(tmp_path):
    command = [*SHORT, "--gradients", "fp6", "--checkpoint", tmp_path, "--out", tmp_path / "out"]
    done = run(*command, "--resume")
    assert done.returncode == 2 and "no checkpoint in" in done.stderr
    assert run(*command, "--stop-after-steps", "2").returncode == 3
    done = run(*command)  # would write over it
    assert done.returncode == 2 and "continue it with --resume, or remove it" in done.stderr
    whole = (tmp_path / "run1.checkpoint").read_bytes()
    (tmp_path / "out").write_text("")
    done = run(*command, "--resume")
    assert done.returncode == 2 and "--out: expected the file" in done.stderr
    for damaged in (whole[: len(whole) // 2], b"", b"PK" + bytes(1000)):
        (tmp_path / "run1.checkpoint").write_bytes(damaged)
        done = run(*command, "--resume")
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert "expected a checkpoint" in done.stderr


# ---- the list of runs ---------------------------------------------------------------------------


def run_list(tmp_path, *args):
    environment = {
        **os.environ,
        "SLIMGRAD_TRAIN": PROGRAM,
        "RESULTS": str(tmp_path / "results"),
        "CHECKPOINTS": str(tmp_path / "saved"),
    }
    return subprocess.Popen(
        [ROOT / "scripts" / "run-list", *map(str, args)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_list_of_runs_can_be_stopped(tmp_path):
    size = "--train-size 16 --test-size 4 --batch 4 --epochs"
    runs = tmp_path / "runs.txt"
    runs.write_text(
        f"# a list\n\nshort {size} 1 --gradients fp6\nlong {size} 10000 --gradients none\n"
    )
    with run_list(tmp_path, runs, "DATA") as process:
        assert process.stdout.readline().startswith("short: ")
        while not (tmp_path / "saved" / "long" / "run1.checkpoint").exists():
            assert process.poll() is None
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 3 and "stopped in long" in said
    assert not (tmp_path / "saved" / "short").exists()
    assert Lines(tmp_path / "results" / "short.jsonl").one("end")["steps"] == 4
    runs.write_text(runs.read_text().replace("10000", "9999"))  # refused: another run
    with run_list(tmp_path, runs, "DATA") as process:
        said, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "epochs 10000, got 9999" in errors
    assert "short: done before" in said and "(goes on)" in said


def test_lines_of_a_list_share_arguments(tmp_path):
    runs = tmp_path / "runs.txt"
    runs.write_text("@size --epochs 3 --target a=1 b=2\nmore @size --seed 2 --epochs 9\n")
    with run_list(tmp_path, "--show", runs, "folder") as process:
        said, _ = process.communicate(timeout=60)
    assert said == "more --epochs 9 --target a=1 b=2 --seed 2\n" and process.returncode == 0
    runs.write_text("one @other --epochs 1\n")
    with run_list(tmp_path, runs, "folder") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2 and "names no @other above this line" in errors


def test_the_list_of_results_can_be_parsed():
    """Everything but the data, which are looked for last. Runs that differ in --gradients alone go
    into one command; one that has no option of a new value is left out."""
    names, commands, checked = [], {}, set()
    shown = subprocess.run(
        [ROOT / "scripts" / "run-list", "--show", ROOT / "results" / "runs.txt", "/no/such/folder"],
        capture_output=True,
        text=True,
        check=True,
    )
    for line in shown.stdout.splitlines():
        name, *args = line.split()
        names.append(name)
        options = dict(re.findall(r"(--\S+) ?(.*?)(?= --|$)", " ".join(args)))
        gradients = options.pop("--gradients")
        options.setdefault("--data", "text:/no/such/folder")
        commands.setdefault(tuple(options.items()), set()).add(gradients)
    assert len(names) == len(set(names)) > 50
    for options, gradients in commands.items():
        if checked.issuperset(options):
            continue
        checked.update(options)
        words = " ".join(f"{option} {value}" for option, value in options).split()
        done = run(*words, "--gradients", *gradients, "--out", "/dev/null")
        assert done.returncode == 2 and "no such file: /no/such/folder" in done.stderr, words
