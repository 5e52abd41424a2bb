"""The `slimgrad` program, run as users run it: help, misuse, and what needs no file."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from program_runs import PROGRAM, fail, read_json, run, succeed
from scipy import integrate, special, stats

GOLDEN = Path(__file__).parent.parent / "golden"
SUBCOMMANDS = ["decode", "delta", "encode", "fit", "formats", "inspect", "join", "measure", "patch"]
SUBCOMMANDS += ["steps", "threshold"]


# ---- help, version, misuse ----------------------------------------------------------------------


def test_help_and_version():
    assert re.fullmatch(r"slimgrad \d+\.\d+\.\d+(\.dev\d+)?\n", succeed("--version"))
    top = succeed("--help")
    for name in SUBCOMMANDS:
        assert re.search(rf"^  {name} ", top, re.MULTILINE)
        assert "--json" in succeed(name, "--help")


def examples(name):
    """The worked example of --help: pairs of a command and the output that follows it."""
    text = succeed(name, "--help").split("Example:\n", 1)[1]
    blocks = re.split(r"^  \$ ", text, flags=re.MULTILINE)[1:]
    return [(block.split("\n", 1)[0], block.split("\n", 1)[1]) for block in blocks]


def words(text):
    return [word for word in text.split() if not re.fullmatch("-+", word)]


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_the_example_in_the_help_is_true(name, tmp_path):
    commands = examples(name)
    assert any(command.startswith(f"slimgrad {name}") for command, _ in commands)
    for command, shown in commands:
        if command.startswith("python "):
            code = re.fullmatch(r'python -c "(.*)"', command).group(1)
            subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
            continue
        printed = succeed(*command.split()[1:], cwd=tmp_path)
        assert len(words(printed)) == len(words(shown))
        for got, want in zip(words(printed), words(shown), strict=True):
            try:
                # What is zero up to rounding is not the same zero everywhere.
                assert float(got) == pytest.approx(float(want), rel=1e-3, abs=1e-6)
            except ValueError:
                assert got == want


def test_without_a_subcommand_prints_the_help_and_fails():
    done = run()
    assert done.returncode == 2
    assert done.stdout == b""
    assert b"Subcommands" in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["--no-such-flag"],
        ["no-such-subcommand"],
        ["formats", "--no-such-flag"],
        ["formats", "extra"],
        ["formats", "--bits", "9"],
        ["formats", "--bits", "1"],
        ["formats", "--bits", "x"],
        ["formats", "--log2-std", "0"],
        ["formats", "--log2-std", "-1"],
        ["formats", "--log2-std", "5:3"],
        ["formats", "--log2-std", "3:"],
        ["formats", "--log2-std", "nan"],
        ["formats", "--log2-std", "inf"],
        ["formats", "--format", "1-5"],
        ["formats", "--format", "1-7-6"],
        ["formats", "--format", "1-5-2", "--bits", "8"],
        ["threshold"],
        ["threshold", "--sparsity", "0.5"],
        ["threshold", "--sparsity", "0.5", "--log-mean", "0"],
        ["threshold", "--sparsity", "1", "--log-mean", "0", "--log-std", "1"],
        ["threshold", "--sparsity", "-0.1", "--log-mean", "0", "--log-std", "1"],
        ["threshold", "--sparsity", "nan", "--log-mean", "0", "--log-std", "1"],
        ["threshold", "--sparsity", "0.5", "--log-mean", "nan", "--log-std", "1"],
        ["threshold", "--sparsity", "0.5", "--log-mean", "0", "--log-std", "-1"],
        ["threshold", "--sparsity=0.5", "--log-mean=0", "--log-std=1", "--zero-fraction=2"],
        ["threshold", "--sparsity=0.5", "--log-mean=0", "--log-std=1", "--method=normal"],
        ["threshold", "no-such-file.npy", "--sparsity", "0.5"],
        ["threshold", "no-such-file.npy", "--sparsity", "0.5", "--method", "magic"],
        ["threshold", "no-such-file.npy", "--sparsity", "0.5", "--log-mean", "0"],
        ["steps"],
        ["steps", "no-such-activation"],
        ["steps", "gelu", "--bits", "0"],
        ["steps", "gelu", "--bits", "6"],
        ["steps", "gelu", "--interval", "1,-1"],
        ["steps", "gelu", "--interval", "1"],
        ["steps", "gelu", "--interval", "-inf,inf"],
        ["steps", "gelu", "--weight", "heavy"],
        ["measure"],
        ["measure", "no-such-file.npy"],
        ["measure", "no-such\nfile.npy"],
        ["measure", "/"],
        ["measure", "/dev/null"],
        ["fit"],
        ["fit", "no-such-file.npy"],
        ["fit", "/"],
    ],
    ids=" ".join,
)
def test_misuse_is_one_line_and_status_2(args):
    fail(*args)


def test_a_full_disk_is_an_error():
    with open("/dev/full", "wb") as full:
        done = subprocess.run([PROGRAM, "formats"], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr == b"slimgrad: cannot write to standard output\n"


# ---- formats ------------------------------------------------------------------------------------


def test_formats_prints_table_2_of_the_paper():
    lines = succeed("formats").splitlines()
    rows = {" ".join(line.split()[:3]): line.split()[3:] for line in lines if " to " in line}
    assert rows == {
        "2.5 to 4.5": ["1-3-0", "1-4-0", "1-4-1", "1-4-2", "1-5-2"],
        "3 to 5.5": ["1-3-0", "1-4-0", "1-5-0", "1-5-1", "1-5-2"],
    }


def golden_formats():
    golden = json.loads((GOLDEN / "fp_format.json").read_text())
    return [row for row in golden["rows"] if 2 <= row["N"] <= 8]


def test_formats_has_the_errors_of_the_golden_file():
    for row in golden_formats():
        out = read_json("formats", "--bits", row["N"], "--log2-std", row["sigma"])
        (choice,) = out["choices"]
        errors = {split["format"]: split["relative_error"] for split in choice["splits"]}
        want = {f"1-{f['n2']}-{f['n1']}": f["rtn_R"]["mean_abs"] for f in row["formats"]}
        assert want.items() <= {k: pytest.approx(v, rel=1e-9) for k, v in errors.items()}.items()
        assert choice["best"] == min(errors, key=errors.get)


def test_formats_evaluates_a_range_where_its_choice_was_made():
    choices = read_json("formats")["choices"]
    assert len(choices) == 10
    for choice in choices:
        assert choice["best"] == min(choice["splits"], key=lambda s: s["relative_error"])["format"]


def test_formats_describes_a_grid():
    out = read_json("formats", "--format", "1-3-1")
    # By the definition: zero, then 2^(e-4) (1 + m/2) for e = 1..7.
    assert out["values"] == [0] + [
        2.0 ** (e - 4) * (1 + m / 2) for e in range(1, 8) for m in (0, 1)
    ]
    assert (out["smallest"], out["largest"]) == (0.125, 12)
    assert out["octaves"] == pytest.approx(math.log2(96))
    assert "0.125 0.1875" in succeed("formats", "--format", "1-3-1")


# ---- threshold ----------------------------------------------------------------------------------


def lognormal_sparsity(log_mean, log_std, zero_fraction, alpha):
    a = (math.log(alpha) - log_mean) / log_std
    at = math.exp(log_std**2 / 2 - log_std * a) * special.ndtr(a - log_std)
    return zero_fraction + (1 - zero_fraction) * (special.ndtr(a) - at)


@pytest.mark.parametrize("zero_fraction", [0, 0.4])
@pytest.mark.parametrize("sparsity", [0.5, 0.85, 0.99])
def test_threshold_of_a_lognormal(sparsity, zero_fraction):
    args = ["--log-mean", -12, "--log-std", 2.5, "--zero-fraction", zero_fraction]
    (row,) = read_json("threshold", *args, "--sparsity", sparsity)["thresholds"]
    assert lognormal_sparsity(-12, 2.5, zero_fraction, row["threshold"]) == pytest.approx(sparsity)
    assert row["sparsity"] == pytest.approx(sparsity)
    assert row["sparsity"] + row["at_threshold"] + row["survivors"] == pytest.approx(1)
    assert not row["nothing_to_prune"]


def test_predictions_of_thresholds_are_called_so(tmp_path):
    law = succeed("threshold", "--log-mean", -12, "--log-std", 2.5, "--sparsity", 0.9)
    assert "expected sparsity" in law and "expected cosine" in law
    np.save(tmp_path / "x.npy", np.random.default_rng(1).normal(size=1000).astype(np.float32))
    text = succeed("threshold", tmp_path / "x.npy", "--sparsity", 0.9)
    head = next(line for line in text.splitlines() if line.startswith("method"))
    columns = [column.strip() for column in head.split("  ") if column.strip()]
    assert columns[-3:] == ["expected cosine", "sparsity on tensor", "cosine on tensor"]


# ---- steps --------------------------------------------------------------------------------------


def gelu_slope(x):
    return stats.norm.cdf(x) + x * stats.norm.pdf(x)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_steps_of_gelu(bits):
    out = read_json("steps", "gelu", "--bits", bits)
    # The errors of the paper's table.
    want = {1: 0.141047, 2: 0.040563, 3: 0.011898, 4: 0.003140}[bits]
    assert out["error"] == pytest.approx(want, abs=1e-6)
    assert len(out["levels"]) == 2**bits == len(out["borders"]) + 1
    edges = [-10, *out["borders"], 10]
    error = sum(
        integrate.quad(lambda x, level=level: (gelu_slope(x) - level) ** 2, low, high)[0]
        for low, high, level in zip(edges[:-1], edges[1:], out["levels"], strict=True)
    )
    assert out["error"] == pytest.approx(error, rel=1e-6)


def test_steps_knows_weights_intervals_and_names():
    uniform = read_json("steps", "silu", "--interval", "-3,4")
    normal = read_json("steps", "silu", "--interval", "-3,4", "--weight", "normal")
    assert uniform["interval"] == [-3, 4]
    assert uniform["borders"] != normal["borders"]
    assert -3 < uniform["borders"][0] < uniform["borders"][-1] < 4
    assert read_json("steps", "tanh")["even"]
    assert "|x|" in succeed("steps", "tanh")
    names = succeed("steps", "--list").split()
    assert {"relu", "gelu", "silu", "tanh"} <= set(names)
    assert read_json("steps", "--list")["activations"] == names
