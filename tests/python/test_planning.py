"""Thresholds, allocation, formats and step tables as Python users call them.

The C++ tests hold the mathematics against the golden values; here SciPy and Monte Carlo check other
points through the whole stack, and the errors users will meet.
"""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

import slimgrad as sg


def lognormal_sparsity(alpha, mu, sigma, zeros=0.0):
    """P(T = 0) = int_0^1 F(alpha e) de, Eq. (6), by quadrature."""
    law = stats.lognorm(s=sigma, scale=math.exp(mu))
    value, _ = integrate.quad(lambda e: law.cdf(alpha * e), 0, 1, epsabs=1e-12, limit=500)
    return zeros + (1 - zeros) * value


def lognormal_tensor(n, mu, sigma, seed=0, zeros=0.0):
    rng = np.random.default_rng(seed)
    x = rng.choice([-1, 1], n) * np.exp(mu + sigma * rng.standard_normal(n))
    x[: int(zeros * n)] = 0
    return torch.from_numpy(x.astype(np.float32))


@settings(max_examples=60, deadline=None)
@given(
    mu=st.floats(-12, 3),
    sigma=st.floats(0.2, 4),
    sparsity=st.floats(0.05, 0.995),
    zeros=st.floats(0, 0.9),
)
def test_lognormal_threshold_against_quadrature(mu, sigma, sparsity, zeros):
    what = dict(log_mean=mu, log_std=sigma, zero_fraction=zeros)
    if sparsity <= zeros:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sg.SparsityWarning)
            assert sg.threshold(what, sparsity, "lognormal") == 0
        return
    alpha = sg.threshold(what, sparsity, "lognormal")
    assert lognormal_sparsity(alpha, mu, sigma, zeros) == pytest.approx(sparsity, abs=1e-8)
    assert sg.expected_sparsity(what, alpha, "lognormal") == pytest.approx(sparsity, abs=1e-12)


def prune_by_definition(x, alpha, rng):
    keep = rng.random(x.shape) * alpha <= np.abs(x)
    return np.where(np.abs(x) > alpha, x, np.where(keep, np.sign(x) * alpha, 0))


@pytest.mark.parametrize("sparsity", [0.7, 0.85, 0.95])
def test_a_pruned_tensor_has_the_promised_sparsity_and_cosine(sparsity):
    x = lognormal_tensor(400_000, -6, 1.5, zeros=0.2)
    measured = sg.measure(x)
    alpha = sg.threshold(measured, sparsity)
    pruned = prune_by_definition(x.double().numpy(), alpha, np.random.default_rng(1))
    # Zeros are 400,000 Bernoulli draws: one standard error is below 0.0008.
    assert np.mean(pruned == 0) == pytest.approx(sparsity, abs=0.0032)
    cosine = pruned @ x.double().numpy() / np.linalg.norm(pruned) / np.linalg.norm(x.double())
    assert sg.expected_cosine(measured, alpha) == pytest.approx(cosine, abs=2e-3)


def test_the_methods_differ_as_they_should_on_a_laplace_tensor():
    x = torch.from_numpy(np.random.default_rng(5).laplace(size=500_000).astype(np.float32))
    measured = sg.measure(x)
    achieved = {}
    for method in ("empirical", "gennorm", "lognormal", "normal"):
        alpha = sg.threshold(measured, 0.8, method)
        achieved[method] = (1 - x.abs() / alpha).clamp(min=0).mean().item()
    assert achieved["empirical"] == pytest.approx(0.8, abs=2e-3)
    assert achieved["gennorm"] == pytest.approx(0.8, abs=4e-3)
    assert abs(achieved["lognormal"] - 0.8) > 0.01


def test_a_sparsity_that_is_there_already_is_reported():
    x = torch.tensor([0.0, 0.0, 0.0, 1.0])
    with pytest.warns(sg.SparsityWarning, match=r"0\.75 of the values are zero already"):
        assert sg.threshold(sg.measure(x), 0.5) == 0


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: sg.threshold(dict(log_mean=0, log_std=1), 1.0, "lognormal"), "0 <= sparsity < 1"),
        (lambda: sg.threshold(dict(log_mean=0, log_std=1), 0.5, "empirical"), "histogram"),
        (lambda: sg.threshold(dict(log_mean=0), 0.5, "lognormal"), "log_std"),
        (lambda: sg.threshold(0.5, 0.5), "TensorStats"),
        (lambda: sg.threshold(dict(log_mean=0, log_std=1), 0.5, "median"), "one of empirical"),
        (lambda: sg.expected_sparsity(sg.measure(torch.ones(3)), -1.0), "threshold >= 0"),
        (lambda: sg.allocate([], 0.5), "at least one layer"),
        (lambda: sg.FloatFormat("1-5-3"), "8 bits"),
        (lambda: sg.FloatFormat("e5m2"), "1-5-2"),
        (lambda: sg.best_format(9, 3.0), "2 to 8 bits"),
        (lambda: sg.relative_error("1-5-2", -1.0), "log2_std > 0"),
        (lambda: sg.gradient_scale(sg.measure(torch.ones(3)), "1-5-2", "top"), "one of max"),
        (lambda: sg.steps("gelu", bits=6), "bits"),
        (lambda: sg.steps("swoosh"), "swoosh"),
        (lambda: sg.fit(torch.zeros(4), "normal"), "non-zero"),
        (lambda: sg.fit(torch.ones(4), "weibull"), "lognormal"),
        (lambda: sg.Distribution("gennorm", scale=1.0), "shape"),
    ],
)
def test_misuse_is_a_value_error_that_says_what_was_expected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_allocation_spreads_the_budget():
    layers = [
        dict(log_mean=-6, log_std=1.0, count=4000),
        dict(log_mean=-7, log_std=1.5, count=2000),
        dict(log_mean=-8, log_std=2.0, count=1000),
    ]
    found = sg.allocate(layers, 0.8, cap=1.0)
    assert sum(s * layer["count"] for s, layer in zip(found, layers, strict=True)) / 7000 == (
        pytest.approx(0.8, abs=1e-12)
    )
    assert max(found.cosines) - min(found.cosines) < 1e-9
    assert min(found.cosines) > min(sg.allocate(layers, 0.8, "uniform").cosines)
    aimed = sg.allocate(layers, 0.7, targets={0: 0.95})
    assert aimed.cosines[0] == pytest.approx(0.95, abs=1e-9)
    measured = [sg.measure(lognormal_tensor(20_000, 0, s)) for s in (0.5, 2.0)]
    assert sum(sg.allocate(measured, 0.8)) / 2 == pytest.approx(0.8, abs=1e-9)


def test_formats():
    format = sg.FloatFormat("1-3-1")
    assert (format.exponent_bits, format.mantissa_bits, format.bits) == (3, 1, 6 - 1)
    assert format.values()[:4] == [0.0, 0.125, 0.1875, 0.25]
    assert format == sg.FloatFormat("1-3-1") and str(format) == "1-3-1"
    table = {
        (2.5, 4.5): ["1-3-0", "1-4-0", "1-4-1", "1-4-2", "1-5-2"],
        (3.0, 5.5): ["1-3-0", "1-4-0", "1-5-0", "1-5-1", "1-5-2"],
    }
    for sigmas, row in table.items():
        assert [str(sg.best_format(bits, sigmas)) for bits in range(4, 9)] == row


def test_relative_error_against_quadrature():
    for text in ("1-2-1", "1-4-1", "1-5-2"):
        grid = np.array(sg.FloatFormat(text).values())

        for sigma in (0.8, 3.0):
            log2 = np.linspace(-9 * sigma, 9 * sigma, 50_001)
            x = 2.0**log2
            nearest = grid[1:][np.argmin(np.abs(grid[1:, None] - x), axis=0)]
            rounded = np.where(x < grid[1], 0.0, nearest)
            density = stats.norm.pdf(log2, scale=sigma)
            expected = integrate.trapezoid(np.abs(rounded - x) / x * density, log2)
            assert sg.relative_error(text, sigma) == pytest.approx(expected, rel=2e-3)


def test_gradient_scale_puts_the_top_on_the_maximum():
    x = lognormal_tensor(10_000, -6, 1.5)
    measured = sg.measure(x)
    scale = sg.gradient_scale(measured, "1-4-1")
    assert scale * max(sg.FloatFormat("1-4-1").values()) == pytest.approx(x.abs().max().item())
    assert math.log2(sg.gradient_scale(measured, "1-4-1", "error")).is_integer()
    assert sg.best_format(8, measured).bits == 8


def test_steps():
    table = sg.steps("gelu", bits=3)
    assert len(table.levels) == 8 and len(table.borders) == 7 and not table.even
    assert table.error == pytest.approx(0.011898, abs=1e-6)
    assert sg.steps("sigmoid", bits=2).even
    assert sg.steps("gelu", 3, weight="normal").error < 0.011898
    assert sg.steps("silu", 1, interval=(-4, 4)).levels[0] < sg.steps("silu", 1).levels[1]


@pytest.mark.parametrize("weight", ["uniform", "normal"])
def test_steps_of_a_function(weight):
    """As those of its name, up to the lines between the samples, and uniform by default."""
    named = sg.steps("gelu", weight=weight)
    made = sg.steps(torch.nn.functional.gelu, weight=weight)
    assert made.levels == pytest.approx(named.levels, abs=1e-3) and not made.even
    assert made.error == pytest.approx(named.error, rel=1e-3)
    assert (sg.steps(torch.nn.functional.gelu) == made) == (weight == "uniform")
    assert not hasattr(sg, "step_table")


@pytest.mark.parametrize("family", sg.FAMILIES)
def test_every_family_fits_and_compares(family):
    x = lognormal_tensor(5000, -3, 1.0)
    law = sg.fit(x, family)
    assert set(law.params) and 0 <= law.ks(x) <= 1
    assert law.cdf(law.quantile(0.7)) == pytest.approx(0.7, abs=1e-9)
    points = torch.linspace(0.01, 0.2, 5, dtype=torch.float64)
    assert law.cdf(points).shape == points.shape and (law.pdf(points) >= 0).all()
    if family == "lognormal":
        assert law.params["log_std"] == pytest.approx(1.0, abs=0.05)
        assert law.ks(x) < 0.03
    assert law.wasserstein(x, 1) >= 0
