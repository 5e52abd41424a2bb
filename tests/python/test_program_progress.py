"""The line of progress, and colours, seen through a pseudo-terminal."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

import numpy as np
import pytest
from program_runs import PROGRAM, run, safetensors, save

WIDTH = 60
NUM_LARGE = 17 << 20  # values; 68 MiB, and silence is up to 64


def on_a_terminal(*args):
    """Everything that appears on a terminal, which stderr is; stdout is not."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
    running = subprocess.Popen(
        [PROGRAM, *map(str, args)], stdout=subprocess.DEVNULL, stderr=theirs, close_fds=True
    )
    os.close(theirs)
    seen = b""
    try:
        while piece := os.read(ours, 4096):
            seen += piece
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert running.wait(timeout=120) == 0, seen
    return seen.decode()


def lines(seen):
    """What was shown, one after the other; it has to end with a wiped line."""
    assert seen.endswith("\r\x1b[K")
    shown = [line for line in seen.split("\r\x1b[K") if line]
    assert all(len(line.encode()) < WIDTH and line.isprintable() for line in shown)
    return shown


def percents(shown):
    """Each beside a bar of a quarter of the line, filled as far."""
    found = []
    for line in shown:
        percent, full, empty = re.search(r": (\d+) % \[(#*)( *)\]", line).groups()
        inside = len(full + empty)
        assert inside == (WIDTH - 1) // 4 - 2
        assert len(full) == inside * int(percent) // 100
        found.append(int(percent))
    assert found == sorted(found)
    assert all(0 <= percent <= 100 for percent in found)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files that are quickly made, read and coded."""
    folder = tmp_path_factory.mktemp("progress")
    values = np.ones(NUM_LARGE, "f4")
    values[::3] = 2
    save(folder / "large.npy", values)
    parts = {f"layer.{i}": ("F32", part) for i, part in enumerate(np.split(values, 4))}
    parts["\x1b[2J" + "long name " * 20] = ("F32", values[:5])
    safetensors(folder / "large.safetensors", parts)
    save(folder / "small.npy", values[:1000])
    return folder


@pytest.mark.parametrize("suffix", ["npy", "safetensors"])
def test_encode_decode_and_inspect(folder, suffix):
    source, coded = folder / f"large.{suffix}", folder / f"{suffix}.sg"
    encoding = lines(on_a_terminal("encode", source, coded))
    assert max(percents(encoding)) >= 90
    decoding = lines(on_a_terminal("decode", coded, folder / f"back.{suffix}"))
    assert max(percents(decoding)) >= 90
    if suffix == "safetensors":
        # Each of its tensors is short; together they are not.
        for shown in (encoding, decoding):
            text = "\n".join(shown)
            assert all(f"layer.{i}" in text for i in range(4))
    assert on_a_terminal("inspect", coded) == ""  # it is small


@pytest.mark.parametrize("command", [["measure"], ["threshold", "--sparsity", "0.5"]])
@pytest.mark.parametrize("suffix", ["npy", "safetensors"])
def test_measure_and_threshold(folder, command, suffix):
    shown = lines(on_a_terminal(*command, folder / f"large.{suffix}"))
    assert all(line.startswith("measuring ") for line in shown)
    assert len(percents(shown)) > 20


def test_fit_says_which_family(tmp_path):
    values = np.random.default_rng(1).normal(size=1 << 20).astype("f4")
    source = safetensors(tmp_path / "x.safetensors", {"w": ("F32", values)})
    shown = lines(on_a_terminal("fit", source))
    percents(shown)
    assert all(line.startswith("fitting x.safetensors: ") for line in shown)
    for word in ["sorting", "lognormal", "gennorm"]:
        assert any(line.endswith(f", w, {word}") for line in shown), shown


def test_silence(folder, tmp_path):
    large, small = folder / "large.npy", folder / "small.npy"
    assert on_a_terminal("measure", small) == ""
    for args in (["measure", large], ["encode", large, tmp_path / "x.sg"]):
        assert on_a_terminal(*args, "--quiet") == ""
        assert run(*args).stderr == b""


def shown_in_colour(*args, status=0, **environment):
    """Both outputs on a terminal."""
    ours, theirs = pty.openpty()
    env = {"PATH": os.environ["PATH"], "TERM": "xterm", **environment}
    running = subprocess.Popen([PROGRAM, *args], stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    seen = b""
    try:
        while piece := os.read(ours, 4096):
            seen += piece
    except OSError:
        pass
    os.close(ours)
    assert running.wait(timeout=60) == status
    return seen.decode().replace("\r\n", "\n")


def test_colours_are_for_terminals_that_want_them():
    command = ["threshold", "--log-mean", "0", "--log-std", "1", "--sparsity", "0.5"]
    plain = run(*command).stdout.decode()
    assert "\x1b" not in plain
    titles, rest = plain.split("\n", 1)
    assert shown_in_colour(*command) == f"\x1b[1m{titles}\n\x1b[0m{rest}"
    assert shown_in_colour("fit", status=2).startswith("\x1b[1;31mslimgrad:\x1b[0m ")
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert shown_in_colour(*command, **environment) == plain
        assert shown_in_colour("fit", status=2, **environment).startswith("slimgrad: ")
    assert shown_in_colour(*command, NO_COLOR="") != plain
    assert "\x1b" not in shown_in_colour("steps", "--list", "--json")
