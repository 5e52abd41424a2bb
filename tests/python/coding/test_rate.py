"""encode with a rate, or a largest error, instead of bits."""

import math

import numpy
import pytest
import scipy.optimize
import scipy.stats
import torch
from program_runs import succeed

import slimgrad as sg


def values(shape: float, n: int, seed: int = 0, dtype=torch.float32) -> torch.Tensor:
    x = scipy.stats.gennorm(shape, scale=1e-3).rvs(n, random_state=seed)
    return torch.from_numpy(x.astype("f4")).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rate", [1, 1.5, 4, 8])
def test_payloads_have_the_rate(rate, dtype):
    x = values(0.6, 1 << 18, dtype=dtype)
    payload = sg.encode(x, mode="uniform", rate=rate, rounding="stochastic", seed=1)
    info = sg.inspect(payload)
    assert info["rate"] == 8 * payload.numel() / x.numel()
    assert abs(info["rate"] / rate - 1) < 0.02
    assert info["rate_asked"] == rate and info["rate_reached"] is True and info["bits"] is None
    back = sg.decode(payload)
    assert back.dtype == dtype
    error = (back.double() - x.double()).abs()
    rounded = torch.finfo(dtype).eps * torch.maximum(x.double().abs(), back.double().abs())
    assert bool((error <= info["scale"] + rounded).all())


@pytest.mark.parametrize("scale", [1e-45, 1e-42, 1e-40, 1e-38, 1e-36])
@pytest.mark.parametrize("model", ["counted", "gennorm"])
def test_values_below_the_normal_numbers_can_be_read_again(scale, model):
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1)) * scale
    payload = sg.encode(x, mode="uniform", rate=4, model=model, seed=1)
    step = sg.inspect(payload)["scale"]
    assert bool(((sg.decode(payload) - x).abs() <= step).all())


def stochastic_entropy(quantiles: numpy.ndarray, step: float) -> float:
    """Bits of a value of a law rounded stochastically, by brute force over many quantiles."""
    x = quantiles / step
    below = numpy.floor(x)
    level, up = (below - below.min()).astype(int), x - below
    masses = numpy.bincount(level, 1 - up, level.max() + 2)
    masses += numpy.bincount(level + 1, up, level.max() + 2)
    shares = masses[masses > 0] / len(x)
    return float(-(shares * numpy.log2(shares)).sum())


@pytest.mark.parametrize("shape", [0.7, 1.0, 2.0])
@pytest.mark.parametrize("rate", [1.0, 2.0, 4.0])
def test_the_step_is_the_root_of_the_entropy(shape, rate):
    """For so many values that tables and headers are nothing."""
    x = values(shape, 1 << 20)
    quantiles = scipy.stats.gennorm(shape, scale=1e-3).ppf(
        (numpy.arange(1 << 18) + 0.5) / (1 << 18)
    )
    step = math.exp(
        scipy.optimize.brentq(
            lambda u: stochastic_entropy(quantiles, math.exp(u)) - rate,
            math.log(1e-5),
            math.log(0.05),
        )
    )
    for model in ("counted", "gennorm"):
        payload = sg.encode(x, "uniform", rate=rate, model=model, rounding="stochastic", seed=0)
        # dH / d ln step is at least -1.44, and -0.5 or so at 1 bit: half a percent of the rate for
        # the coder, and one and a half for what is not corrected, is at most this.
        assert abs(math.log(sg.inspect(payload)["scale"] / step)) < 0.02 * max(rate, 2)


def test_stochastic_rounding_at_a_rate_is_unbiased():
    x = values(0.5, 1 << 14)
    draws = torch.stack(
        [
            sg.decode(sg.encode(x, "uniform", rate=1.5, rounding="stochastic", seed=seed))
            for seed in range(64)
        ]
    ).double()
    error = draws.mean(0) - x.double()
    # Chi-square over values: its mean is 1 for an unbiased rounding, with a standard error of
    # sqrt(2 / n) and more for rare large draws. Values that were never rounded up are left out.
    spread = draws.var(0) / 64
    seen = spread > 0
    step = sg.inspect(sg.encode(x, "uniform", rate=1.5, rounding="stochastic", seed=0))["scale"]
    total = float(error.sum()) / math.sqrt(float(spread.sum()))
    assert abs(total) < 5  # the sum over all values, in standard errors
    assert float((error[seen] ** 2).sum() / spread[seen].sum()) == pytest.approx(1, abs=0.1)
    assert float(error.abs().max()) < step


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_max_error_holds(rounding):
    x = values(0.7, 50_000)
    for largest in (1e-3, 1e-6):
        payload = sg.encode(x, "uniform", max_error=largest, rounding=rounding, seed=3)
        error = (sg.decode(payload).double() - x.double()).abs()
        assert bool((error <= largest + 2**-23 * x.double().abs()).all())
        assert "rate" not in sg.inspect(payload)


def test_what_has_no_such_payload_says_so():
    info = sg.inspect(sg.encode(torch.zeros(100_000), "uniform", rate=2))
    assert info["rate_reached"] is False and info["rate_asked"] == 2 and info["rate"] < 0.1
    info = sg.inspect(sg.encode(torch.zeros(0), "uniform", rate=2))
    assert info["rate_reached"] is False and info["rate"] == 0


@pytest.mark.parametrize(
    "options, message",
    [
        ({"rate": 0}, r"\[encode\] expected rate to be positive, got 0"),
        ({"rate": 20}, r"\[encode\] expected a rate above 0 and of at most 16 .* got 20"),
        ({"rate": float("nan")}, r"expected rate to be positive"),
        ({"max_error": -1.0}, r"\[encode\] expected max_error to be positive, got -1"),
        ({"rate": 2, "max_error": 1.0}, r"expected a rate or max_error, got both"),
        ({"rate": 2, "scale": 1.0}, r"expected no scale with rate"),
        ({"rate": 2, "coder": "huffman"}, r"expected coder rans with rate"),
        ({"rate": 2, "mode": "float"}, r"expected mode uniform with rate"),
    ],
)
def test_misuse_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        sg.encode(torch.ones(10), **{"mode": "uniform", **options})


def test_files_and_the_program_have_rates(tmp_path):
    x = values(1.0, 1 << 18)
    sg.save({"a": x, "b": x[:5000]}, tmp_path / "a.sg", mode="uniform", rate=3)
    assert sg.load(tmp_path / "a.sg")["a"].shape == x.shape
    assert abs((tmp_path / "a.sg").stat().st_size * 8 / (x.numel() + 5000) / 3 - 1) < 0.02
    numpy.save(tmp_path / "x.npy", x.numpy())
    succeed("encode", tmp_path / "x.npy", tmp_path / "x.sg", "--mode", "uniform", "--rate", "2")
    info = sg.inspect((tmp_path / "x.sg").read_bytes())
    assert info["rate_asked"] == 2 and info["rate_reached"]
    assert torch.equal(
        sg.decode((tmp_path / "x.sg").read_bytes()), sg.decode(sg.encode(x, "uniform", rate=2))
    )
