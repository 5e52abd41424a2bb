"""The `slimgrad` program, run as users run it and compared with NumPy and SciPy.

The binary is the one installed beside this Python, or the one that SLIMGRAD_PROGRAM names; ctest
runs this file on the binary of its own build, which is how the sanitizers get to see it.
"""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, special, stats

PROGRAM = os.environ.get("SLIMGRAD_PROGRAM") or str(Path(sys.executable).parent / "slimgrad")
GOLDEN = Path(__file__).parent.parent / "golden"
SUBCOMMANDS = ["decode", "encode", "fit", "formats", "inspect", "measure", "steps", "threshold"]


def run(*args, cwd=None):
    return subprocess.run([PROGRAM, *map(str, args)], capture_output=True, cwd=cwd, timeout=60)


def succeed(*args, cwd=None):
    done = run(*args, cwd=cwd)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    return done.stdout.decode()


def read_json(*args):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(succeed(*args, "--json"), parse_constant=refuse)


def fail(*args, cwd=None):
    """The one line on stderr of a run that must end with status 2 and print nothing."""
    done = run(*args, cwd=cwd)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stdout == b""
    message = done.stderr.decode(errors="replace")
    assert message.startswith("slimgrad: ")
    assert message.endswith("\n")
    assert message.count("\n") == 1
    return message


def gradient(num_values=20_000, seed=0):
    """Lognormal magnitudes, a third zeros, as behind a ReLU."""
    rng = np.random.default_rng(seed)
    x = np.exp(rng.normal(-9, 2, num_values)) * rng.choice([-1, 1], num_values)
    x[rng.random(num_values) < 1 / 3] = 0
    return x


def save(path, array):
    np.save(path, array)
    return path


# ---- help, version, misuse ----------------------------------------------------------------------


def test_help_and_version():
    assert re.fullmatch(r"slimgrad \d+\.\d+\.\d+\n", succeed("--version"))
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


def real_sparsity(x, alpha):
    magnitude = np.abs(x.astype(np.float64))
    return np.mean(np.maximum(0, 1 - magnitude / alpha))


def real_cosine(x, alpha):
    magnitude = np.abs(x.astype(np.float64))
    square = magnitude @ magnitude
    low = magnitude <= alpha
    pruned = magnitude[~low] @ magnitude[~low] + alpha * magnitude[low].sum()
    return math.sqrt(square / pruned)


def test_threshold_of_a_file_has_every_method_side_by_side(tmp_path):
    x = gradient().astype(np.float32)
    path = save(tmp_path / "g.npy", x)
    (entry,) = read_json("threshold", path, "--sparsity", 0.85)["files"]
    rows = {row["method"]: row for row in entry["thresholds"]}
    assert list(rows) == ["empirical", "lognormal", "gennorm", "normal", "mean"]
    for row in rows.values():
        assert row["sparsity_on_tensor"] == pytest.approx(
            real_sparsity(x, row["threshold"]), abs=2e-3
        )
        assert row["cosine_on_tensor"] == pytest.approx(real_cosine(x, row["threshold"]), abs=2e-3)
    assert real_sparsity(x, rows["empirical"]["threshold"]) == pytest.approx(0.85, abs=2e-3)
    assert real_sparsity(x, rows["lognormal"]["threshold"]) == pytest.approx(0.85, abs=0.01)
    mean = np.abs(x.astype(np.float64)).mean()
    assert rows["mean"]["threshold"] == pytest.approx(mean / 0.15, rel=1e-5)
    one = read_json("threshold", path, "--sparsity", 0.85, "--method", "gennorm")["files"][0]
    assert one["thresholds"] == [rows["gennorm"]]
    table = succeed("threshold", path, "--sparsity", 0.85)
    assert all(re.search(rf"^{method} ", table, re.MULTILINE) for method in rows)


def test_threshold_says_when_the_zeros_are_enough(tmp_path):
    path = save(tmp_path / "g.npy", np.float32([0, 0, 0, 1, 2]))
    text = succeed("threshold", path, "--sparsity", 0.5)
    assert "60.0 % are zero already" in text
    for row in read_json("threshold", path, "--sparsity", 0.5)["files"][0]["thresholds"]:
        if "error" not in row:
            assert (row["threshold"], row["nothing_to_prune"]) == (0, True)
            assert row["sparsity"] == pytest.approx(0.6)
    law = ["--log-mean", "0", "--log-std", "1", "--zero-fraction", "0.6", "--sparsity", "0.5"]
    assert "nothing to prune" in succeed("threshold", *law)


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


# ---- measure ------------------------------------------------------------------------------------


def check_measured(got, x):
    """Against NumPy, by the rules of tensor_stats.h."""
    x = np.asarray(x, np.float32).ravel()
    finite = x[np.isfinite(x)].astype(np.float64)
    logs = np.log(np.abs(finite[finite != 0]))
    assert got["count"] == x.size
    assert got["nonfinite"] == x.size - finite.size
    assert got["zeros"] == np.sum(finite == 0)
    assert got["zero_fraction"] == pytest.approx(np.mean(finite == 0))
    assert got["log_mean"] == pytest.approx(logs.mean(), rel=1e-5, abs=1e-5)
    assert got["log_std"] == pytest.approx(logs.std(), rel=1e-5, abs=1e-5)
    assert got["log2_std"] == pytest.approx(logs.std() / math.log(2), rel=1e-5, abs=1e-5)
    assert got["max_abs"] == np.abs(finite).max()
    assert got["mean_abs"] == pytest.approx(np.abs(finite).mean(), rel=1e-6)
    assert got["mean_square"] == pytest.approx((finite**2).mean(), rel=1e-6)
    bins = (finite[finite != 0].astype(np.float32).view(np.uint32) & 0x7FFFFFFF) >> 20
    values, counts = np.unique(bins, return_counts=True)
    edges = (values.astype(np.uint32) << 20).view(np.float32)
    assert got["histogram"]["lower_edges"] == edges.tolist()
    assert got["histogram"]["counts"] == counts.tolist()
    assert got["histogram"]["total"] == logs.size


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_measure_agrees_with_numpy(dtype, tmp_path):
    x = (gradient(12_000) * 100).astype(dtype).reshape(30, 20, 20)
    x[0, 0, :3] = [np.nan, np.inf, -np.inf]
    for name, array in [("c", x), ("fortran", np.asfortranarray(x)), ("scalar", x[3, 3, 3] + 1)]:
        path = save(tmp_path / f"{name}.npy", array)
        (got,) = read_json("measure", path)["files"]
        assert (got["file"], got["dtype"]) == (str(path), np.dtype(dtype).name)
        assert got["shape"] == list(array.shape)
        check_measured(got, array)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_measure_reads_every_version_of_the_format(version, tmp_path):
    x = gradient(100).astype(np.float32)
    path = tmp_path / "x.npy"
    with open(path, "wb") as file:
        np.lib.format.write_array(file, x, version)
    check_measured(read_json("measure", path)["files"][0], x)


def test_measure_reads_bfloat16_if_told(tmp_path):
    bits = (gradient(5_000).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    path = save(tmp_path / "b.npy", bits)
    assert "--bfloat16" in fail("measure", path)
    (got,) = read_json("measure", path, "--bfloat16")["files"]
    assert got["dtype"] == "bfloat16"
    check_measured(got, (bits.astype(np.uint32) << 16).view(np.float32))


def test_measure_reads_the_bfloat16_of_ml_dtypes(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = gradient(5_000).astype(ml_dtypes.bfloat16)
    (got,) = read_json("measure", save(tmp_path / "b.npy", x), "--bfloat16")["files"]
    check_measured(got, x.astype(np.float32))


def test_measure_says_what_float32_cannot_hold(tmp_path):
    path = save(tmp_path / "x.npy", np.array([1e300, -1e39, 1e-300, 0, 1.5, 2]))
    (got,) = read_json("measure", path)["files"]
    assert (got["overflowed"], got["underflowed"]) == (2, 1)
    assert (got["nonfinite"], got["zeros"], got["max_abs"]) == (2, 2, 2)
    text = succeed("measure", path)
    assert "Too small for float32" in text
    assert "Too large for float32" in text
    assert "in float32" in fail("measure", save(tmp_path / "tiny.npy", np.array([1e-300])))


def test_measure_draws_a_histogram(tmp_path):
    x = np.float32([1e-42] + [2.0**-100] * 3 + [1.5] * 10 + [3e38])
    text = succeed("measure", save(tmp_path / "x.npy", x))
    bars = [line for line in text.splitlines() if "%" in line]
    assert len(bars) <= 20
    assert bars[0].split()[0] == "subnormal"
    assert max(line.count("#") for line in bars) == 50
    assert sum(float(re.search(r"([\d.]+) %", line)[1]) for line in bars) == pytest.approx(
        100, abs=1
    )


def test_measure_takes_several_files_and_prints_nothing_if_one_is_bad(tmp_path):
    good = [save(tmp_path / f"{i}.npy", gradient(100, i).astype(np.float32)) for i in range(3)]
    assert [f["file"] for f in read_json("measure", *good)["files"]] == [str(p) for p in good]
    zero = save(tmp_path / "zero.npy", np.zeros(4, np.float32))
    for command in ["measure", "fit"]:
        assert "zero.npy" in fail(command, *good, zero)
        assert "missing.npy" in fail(command, *good, tmp_path / "missing.npy")


# ---- fit ----------------------------------------------------------------------------------------


def scipy_laws(x):
    """The maximum-likelihood laws, location 0, in closed form."""
    magnitude, logs = np.abs(x), np.log(np.abs(x))
    return {
        "lognormal": (stats.lognorm(logs.std(), scale=math.exp(logs.mean())), False),
        "normal": (stats.norm(scale=math.sqrt((x**2).mean())), True),
        "laplace": (stats.laplace(scale=magnitude.mean()), True),
        "uniform": (stats.uniform(-magnitude.max(), 2 * magnitude.max()), True),
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fit_agrees_with_scipy(dtype, tmp_path):
    rng = np.random.default_rng(5)
    x = rng.laplace(scale=3e-4, size=4_001).astype(dtype)
    x[:10] = 0
    x[10:12] = [np.nan, np.inf]
    (got,) = read_json("fit", save(tmp_path / "x.npy", x))["files"]
    fits = {entry["family"]: entry for entry in got["fits"]}
    kept = x[12:].astype(np.float64)
    assert got["fitted_values"] == kept.size
    assert len(fits) == 7
    # A Laplace sample: the generalized normal contains the Laplace, so either may win.
    assert got["best"] in ("laplace", "gennorm")
    assert got["best"] == min(fits, key=lambda name: fits[name]["ks"])
    assert fits["laplace"]["params"]["scale"] == pytest.approx(np.abs(kept).mean(), rel=1e-6)
    assert fits["gennorm"]["params"]["shape"] == pytest.approx(1, abs=0.1)
    for name, (law, symmetric) in scipy_laws(kept).items():
        cdf = (lambda m, law=law: 2 * law.cdf(m) - 1) if symmetric else law.cdf
        want = stats.ks_1samp(np.abs(kept), cdf).statistic
        assert fits[name]["ks"] == pytest.approx(want, rel=1e-6)


def test_fit_uses_float64_as_it_is(tmp_path):
    x = 1e-200 * np.random.default_rng(1).normal(size=500)
    (got,) = read_json("fit", save(tmp_path / "x.npy", x))["files"]
    normal = next(entry for entry in got["fits"] if entry["family"] == "normal")
    assert normal["params"]["scale"] == pytest.approx(1e-200 * np.sqrt(np.mean((x * 1e200) ** 2)))


def test_fit_of_equal_magnitudes_says_which_families_have_none(tmp_path):
    path = save(tmp_path / "x.npy", np.float32([2, -2, 2]))
    (got,) = read_json("fit", path)["files"]
    assert any("error" in entry for entry in got["fits"])
    assert any(entry["family"] == got["best"] for entry in got["fits"])
    assert "lognormal" in succeed("fit", path)


# ---- unusable and damaged files ------------------------------------------------------------------


@pytest.mark.parametrize("command", [["measure"], ["fit"], ["threshold", "--sparsity", "0.9"]])
def test_unusable_tensors(command, tmp_path):
    cases = {
        "empty": np.zeros((3, 0), np.float32),
        "all 4 values are zero\n": np.float32([0, -0.0, 0, 0]),
        "all 2 values are NaN": np.float32([np.nan, np.inf]),
        "all 3 values are zero, NaN": np.float32([0, np.nan, np.inf]),
        "'<i8'": np.arange(4),
        "'|b1'": np.array([True]),
        "'<c8'": np.zeros(2, np.complex64),
        "'<U1'": np.array(["x"]),
        "'|O'": np.array([None]),
        "little-endian": np.ones(3, ">f4"),
        "record type": np.zeros(2, [("a", "<f4")]),
    }
    for message, array in cases.items():
        assert message in fail(*command, save(tmp_path / "x.npy", array))


def test_every_truncation_is_an_error(tmp_path):
    path = save(tmp_path / "x.npy", np.float32([1, 2, 3]))
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        fail("measure", path)
    path.write_bytes(whole + b"\0")
    assert "1 bytes follow" in fail("measure", path)


def test_no_changed_byte_crashes(tmp_path):
    path = save(tmp_path / "x.npy", np.float32([[1, 2, 3]]))
    whole = path.read_bytes()
    rng = np.random.default_rng(11)
    for i in range(128):
        for byte in {whole[i] ^ 1 << int(rng.integers(8)), int(rng.integers(256))}:
            path.write_bytes(whole[:i] + bytes([byte]) + whole[i + 1 :])
            done = run("measure", path)
            assert done.returncode in (0, 2), (i, byte, done.stderr)
            assert (done.stdout == b"") == (done.returncode == 2)


def test_absurd_headers(tmp_path):
    path = tmp_path / "x.npy"
    for shape in ["(4611686018427387905,)", "(4294967296, 4294967296)", "(99999999999999999999,)"]:
        text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        path.write_bytes(b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text + b"1234")
        fail("measure", path)
    path.write_bytes(b"\x93NUMPY\x02\0\xff\xff\xff\xff{}")
    assert "4294967295 bytes" in fail("measure", path)


def test_file_names_that_are_not_utf8(tmp_path):
    name = os.fsencode(tmp_path) + b"/\xff.npy"
    with open(name, "wb") as file:
        np.save(file, np.float32([1, 2]))
    done = subprocess.run([PROGRAM, "measure", name, "--json"], capture_output=True)
    assert done.returncode == 0
    assert json.loads(done.stdout)["files"][0]["count"] == 2
