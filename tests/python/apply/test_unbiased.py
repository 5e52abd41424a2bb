"""Gradients are compressed without bias by default, at every width; more bits do not do worse."""

import math

import pytest
import torch
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTHS = [4, 5, 6, 7, 8]


def head_gradient(gradients, seed=0, classes=1000):
    """Of a linear layer's weight and bias under cross entropy: many small softmax terms, and for
    each row one that is a thousand times as large. Exact, and compressed."""
    torch.manual_seed(seed)
    layer, inputs = nn.Linear(64, classes), torch.randn(256, 64)
    labels = torch.randint(classes, (256,))
    result = []
    for compressed in (False, True):
        layer.zero_grad()
        if compressed:
            sg.compress(layer_in := nn.Sequential(layer), gradients, seed=seed)
        model = layer_in if compressed else layer
        nn.functional.cross_entropy(model(inputs), labels).backward()
        result.append((layer.weight.grad.clone(), layer.bias.grad.clone()))
    return result


def relative_error(exact, compressed):
    return ((compressed - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("bits", WIDTHS)
def test_small_softmax_terms_do_not_vanish(bits):
    """The bias gradient of a softmax sums to zero. Rounding adds noise, whose deviation is measured
    over seeds; four standard errors of the mean are allowed."""
    (_, bias), _ = head_gradient(f"fp{bits}")
    assert abs(bias.sum()) < 1e-6
    sums = [head_gradient(f"fp{bits}", seed)[1][1].sum().item() for seed in range(8)]
    spread = torch.tensor(sums).std().item()
    assert abs(sum(sums) / len(sums)) < 4 * max(spread, 1e-6) / math.sqrt(len(sums))
    assert max(map(abs, sums)) < 0.3


def test_nearest_rounding_with_underflow_to_zero_is_what_loses_them():
    nearest = sg.Quantize(8, method="lognormal", rounding="nearest", underflow="zero")
    _, (_, bias) = head_gradient(nearest)
    assert bias.sum() < -0.9


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_more_bits_never_do_worse(rounding):
    underflow = "zero" if rounding == "nearest" else "stochastic"
    errors = []
    for bits in WIDTHS:
        quantize = sg.Quantize(bits, rounding=rounding, underflow=underflow)
        squares = []
        for seed in range(8):  # of one draw, a few large values that fell decide
            (exact, _), (compressed, _) = head_gradient(quantize, seed)
            squares.append(relative_error(exact, compressed) ** 2)
        errors.append(sum(squares))
    assert errors == sorted(errors, reverse=True), errors


@pytest.mark.parametrize("bits, most", [(8, 0.01), (6, 0.04)])
def test_the_split_is_chosen_for_what_was_measured(bits, most):
    """The spread alone says little of this gradient: its rule takes a split whose smallest value is
    above nearly all of it."""
    errors = {}
    for method in ("empirical", "lognormal"):
        (exact, _), (compressed, _) = head_gradient(sg.Quantize(bits, method=method))
        errors[method] = relative_error(exact, compressed)
    assert errors["empirical"] < most
    assert errors["empirical"] < errors["lognormal"]


def head(gradients, classes=1000):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, classes))
    controller = sg.compress(model, gradients, seed=0)
    labels = torch.randint(classes, (256,))
    nn.functional.cross_entropy(model(torch.randn(256, 64)), labels).backward()
    return controller


def test_the_report_says_in_words_what_harms_a_layer():
    assert head("fp8").warnings() == []
    biased = head(sg.Quantize(8, method="lognormal", rounding="nearest", underflow="zero"))
    (sentence,) = [s for s in biased.warnings() if "sum of the gradient" in s]
    assert sentence.startswith("0: ") and "stochastic" in sentence
    assert biased.report()["0"]["bias"] < -0.3
    assert f"warning: {sentence}" in biased.summary(width=300)

    generator = torch.Generator().manual_seed(1)
    layer = nn.Linear(64, 64)
    model = nn.Sequential(layer)
    controller = sg.compress(model, sg.Prune(0.97), seed=1)
    model(torch.randn(256, 64)).backward(torch.randn(256, 64, generator=generator))
    (sentence,) = controller.warnings()
    assert "cosine" in sentence and "allocation" in sentence


def test_methods_and_measures():
    x = torch.exp(1.5 * torch.randn(100_000, generator=torch.Generator().manual_seed(1)))
    stats = sg.measure(x)
    log2_std = stats.log_std / math.log(2)
    assert sg.best_format(6, stats, "lognormal") == sg.best_format(6, log2_std)
    assert sg.best_format(6, stats, "normal") == sg.best_format(6, log2_std, "normal")
    for rounding, underflow in (("nearest", "zero"), ("stochastic", "stochastic")):
        for error in ("relative", "squared"):
            options = {"rounding": rounding, "underflow": underflow, "error": error}
            best = sg.best_format(6, stats, **options)
            errors = {}
            for exponent_bits in range(1, 6):
                format = sg.FloatFormat(f"1-{exponent_bits}-{5 - exponent_bits}")
                scale = sg.gradient_scale(stats, format)
                errors[format] = sg.expected_error(stats, format, scale, **options)
                q = sg.quantize(x, format, scale, rounding, underflow, seed=3)
                measured = (
                    ((q - x).abs() / x).mean()
                    if error == "relative"
                    else (q - x).square().mean() / x.square().mean()
                )
                # Squares are those of the few largest values, of whose bin the mean is assumed.
                allowed = 0.03 if error == "relative" else 0.25
                assert measured.item() == pytest.approx(errors[format], rel=allowed, abs=2e-4)
            assert min(errors, key=errors.get) == best


def test_misuse():
    stats = sg.measure(torch.randn(5000))
    for wrong in (
        lambda: sg.Quantize(6, method="guess"),
        lambda: sg.best_format(6, stats, "guess"),
        lambda: sg.best_format(6, 3.0, "empirical"),
        lambda: sg.best_format(6, stats, error="absolute"),
    ):
        with pytest.raises(ValueError, match="expected"):
            wrong()
