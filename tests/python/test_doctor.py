"""python -m slimgrad doctor: what it says, what it finds, and that it looks at every kernel."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from slimgrad.doctor import checks, command, facts, self_test

ROOT = Path(__file__).resolve().parents[2]
ops = torch.ops.slimgrad


def doctor(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "slimgrad", "doctor", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
    )


@pytest.fixture
def two_checks(monkeypatch):
    """The command with a short self-test."""
    few = list(checks.checks())[:2]
    monkeypatch.setattr(self_test, "checks", lambda: iter(few))
    return few


def run(capsys, *words):
    import argparse

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    status = command.run(parser.parse_args(words))
    return status, capsys.readouterr().out


def test_as_users_run_it():
    done = doctor("--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0, found
    assert found["ok"] and found["problems"] == []
    assert found["versions"]["torch"] == torch.__version__
    assert set(found["kernels"]["usable"]) <= set(found["kernels"]["compiled"])
    assert found["kernels"]["selected"] == found["kernels"]["usable"][1]
    assert [row["kernels"] for row in found["self_test"]] == found["kernels"]["usable"]
    assert all(row["checks"] == len(list(checks.checks())) for row in found["self_test"])
    assert all(row["failed"] == {} for row in found["self_test"])
    assert found["programs"]["slimgrad"] == found["versions"]["slimgrad"]
    built_in, wanted = ops._device_kernels()
    assert found["gpu"]["kernels_built_in"] is built_in and found["gpu"]["kernels_wanted"] is wanted


def test_text_says_the_same(capsys, two_checks):
    status, text = run(capsys)
    assert status == 0
    assert text.endswith("All is well.\n")
    assert "\x1b" not in text
    words = ("slimgrad ", "torch ", "threads ", "huge pages ", "device kernels", "scalar: 2 of 2")
    for word in words:
        assert word in text


def test_a_kernel_that_differs_is_found(capsys, monkeypatch):
    def wrong():
        selected = ops._kernel_sets()[0]
        return [torch.tensor([1.0, 2.0 if selected == "scalar" else 2.5])]

    def unfit():
        raise RuntimeError("out of order")

    bad = [checks.Check("wrong", (), wrong), checks.Check("unfit", (), unfit)]
    bad.append(checks.Check("near", (), wrong, tolerance=0.5))
    monkeypatch.setattr(self_test, "checks", lambda: iter(bad))
    status, text = run(capsys, "--json")
    found = json.loads(text)
    assert status == 1 and not found["ok"]
    scalar, *others = found["self_test"]
    assert scalar["failed"] == {"unfit": "RuntimeError: out of order"} and scalar["checks"] == 3
    assert others
    for row in others:
        assert row["failed"] == {"wrong": "result 0: 1 bytes of 8 differ"}
    status, text = run(capsys)
    assert status == 1
    assert "wrong: result 0" in text and "All is not well." in text


def test_problems_are_named(capsys, monkeypatch, two_checks):
    monkeypatch.setattr(facts, "programs", lambda: {"slimgrad": "9.9.9", "slimgrad-train": None})
    status, text = run(capsys, "--json")
    problems = " ".join(json.loads(text)["problems"])
    assert status == 1
    assert "slimgrad is of version 9.9.9" in problems and "slimgrad-train" in problems


def test_it_leaves_what_was_selected_and_the_threads():
    before, threads = ops._kernel_sets()[0], torch.get_num_threads()
    ops._select_kernel_set("scalar")
    try:
        self_test.self_test(list(checks.checks())[:1])
        assert ops._kernel_sets()[0] == "scalar"
    finally:
        ops._select_kernel_set("best")
    assert ops._kernel_sets()[0] == before
    assert torch.get_num_threads() == threads


def test_a_set_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"\[kernels\] expected .* or scalar .*, got 'mmx'"):
        ops._select_kernel_set("mmx")


def test_the_environment_chooses():
    code = "import slimgrad, torch; print(torch.ops.slimgrad._kernel_sets()[0])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "SLIMGRAD_KERNELS": "scalar"},
    )
    assert done.stdout == "scalar\n", done.stderr


def test_every_kernel_with_several_versions_is_named_by_a_check():
    """Files that choose between versions; a new one belongs into a check."""
    several = re.compile(r"HWY_EXPORT|use_scalar\(\)|use_avx2\(\)")
    files = {
        f"{file.parent.name}/{file.stem}"
        for layer in ("kernels", "arrays")
        for file in (ROOT / "src" / layer).glob("*/*.cc")
        if several.search(file.read_text())
    }
    named = {name for check in checks.checks() for name in check.kernels}
    assert files == named


def test_colours_on_a_terminal_alone(monkeypatch):
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert command.wants_colours(terminal)
        monkeypatch.setenv("NO_COLOR", "1")
        assert not command.wants_colours(terminal)
        monkeypatch.setenv("NO_COLOR", "")
        assert command.wants_colours(terminal)
        monkeypatch.setenv("TERM", "dumb")
        assert not command.wants_colours(terminal)
    os.close(ours)
    with open(os.devnull, "w") as nobody:
        monkeypatch.setenv("TERM", "xterm")
        assert not command.wants_colours(nobody)
