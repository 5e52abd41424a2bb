"""slimgrad measure, fit and threshold of .npy files, compared with NumPy and SciPy."""

import math
import re

import numpy as np
import pytest
from program_runs import bfloat16, fail, gradient, read_json, save, succeed
from scipy import stats

# ---- threshold ----------------------------------------------------------------------------------


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
    bits = bfloat16(gradient(5_000))
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
