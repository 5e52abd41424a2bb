"""The gate's backward: what it does to a gradient."""

import math

import pytest
import torch
from apply_samples import DTYPES, gradient, layouts, same, with_specials
from gate_samples import SETTINGS, as_planned, backward, lognormal, state
from plan_fields import SCHEDULE, Plan, layer_report

import slimgrad as sg

ops = torch.ops.slimgrad


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", SETTINGS.values(), ids=SETTINGS.keys())
def test_backward_does_what_the_plan_says(parts, dtype):
    plan, stats = state(*parts)
    for calls in range(2):
        grad = gradient((40, 50, 8), seed=calls, dtype=dtype)
        got = backward(torch.zeros_like(grad), grad, plan, stats, stream=3)
        assert plan[Plan.CALLS] == calls + 1
        assert same(got, as_planned(grad, plan, parts, calls, stream=3))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", ["empirical", "lognormal", "gennorm", "normal", "mean"])
def test_the_threshold_is_the_one_of_the_gradient(method, dtype):
    grad = lognormal((200, 200), zeros=0.3).to(dtype)
    plan, stats = state(sg.Prune(0.85, method=method))
    ops.compress_gradient(grad, plan, stats, 0)
    expected = sg.threshold(sg.measure(grad), 0.85, method)
    # The gate's sums are exact, those of measure() good to 2e-6.
    assert float(plan[Plan.THRESHOLD]) == pytest.approx(expected, rel=4e-6)


@pytest.mark.parametrize("bits", range(2, 9))
def test_format_and_scale_are_those_of_the_gradient(bits):
    grad = lognormal((200, 200), sigma=1.5)
    plan, stats = state(sg.Quantize(bits))
    ops.compress_gradient(grad, plan, stats, 0)
    measured = sg.measure(grad)
    report = layer_report(plan, stats)
    expected = sg.best_format(bits, measured.log_std / math.log(2))
    assert report["format"] == str(expected)
    assert report["scale"] == pytest.approx(sg.gradient_scale(measured, expected), rel=1e-6)
    assert not report["saturated"]


def test_the_report_counts_the_whole_gradient():
    """A tensor of more values than the sample."""
    grad = with_specials(lognormal((300_000,), zeros=0.2))
    plan, stats = state(sg.Prune(0.9))
    y = ops.compress_gradient(grad, plan, stats, 0)
    report = layer_report(plan, stats)
    finite = y[torch.isfinite(y)]
    alpha = torch.tensor(report["threshold"], dtype=torch.float64).float()
    assert report["elements"] == y.numel() and report["nonfinite"] == 3 and report["compressed"]
    assert report["sparsity"] == pytest.approx(float((finite == 0).double().mean()), abs=1e-12)
    assert report["at_threshold"] == pytest.approx(
        float((y.abs() == alpha).double().sum()) / y.numel(), abs=1e-12
    )
    x = grad[torch.isfinite(grad)]
    cosine = torch.cosine_similarity(x.double(), finite.double(), dim=0)
    # From a quarter of a sample of heavy-tailed values: the noise is that of its largest ones.
    assert report["cosine"] == pytest.approx(float(cosine), abs=0.05)


def test_cosine_and_relative_error_on_4096_values():
    """Of a gradient no larger than the sample, so that the positions are known: errors are those of
    every fourth value, the squares of the gradient those of all."""
    grad = lognormal((4 * 4096,), sigma=1.0)
    plan, stats = state(sg.Quantize(4, rounding="nearest", underflow="zero"))
    y = ops.compress_gradient(grad, plan, stats, 0)[::4].double()
    x = grad[::4].double()
    report = layer_report(plan, stats)
    error = y - x
    xx, products = grad.double().square().mean(), x * error
    larger = torch.maximum(xx, x.square().mean())
    # Without what the square of the mean product has from chance.
    along = (products.mean() ** 2 - products.square().sum() / len(x) ** 2).clamp_min(0) / larger
    parallel, rest = 1 + products.mean() / larger, (error.square().mean() - along) / xx
    cosine = float(parallel / (parallel**2 + rest).sqrt())
    assert report["cosine"] == pytest.approx(cosine, rel=1e-6)
    exact = torch.cosine_similarity(x, y, dim=0)
    assert cosine == pytest.approx(float(exact), abs=5e-3)
    assert report["relative_error"] == pytest.approx(float((error.abs() / x.abs()).mean()))


@pytest.mark.parametrize("zeros", [0.6, 1.0])
@pytest.mark.parametrize("kind", ["stochastic", "topk", "topk_stochastic"])
def test_nothing_to_prune(zeros, kind):
    """More zeros than wanted, as behind a ReLU, or nothing but zeros: the gradient passes."""
    grad = lognormal((100, 100), zeros=zeros)
    grad[:60] *= zeros < 1
    plan, stats = state(sg.Prune(0.3, kind=kind))
    assert same(ops.compress_gradient(grad, plan, stats, 0), grad)
    assert layer_report(plan, stats)["sparsity"] == float((grad == 0).double().mean())
    again = grad.clone()
    ops.compress_gradient_(again, plan, stats, 0)
    assert same(again, grad)


@pytest.mark.parametrize("parts", SETTINGS.values(), ids=SETTINGS.keys())
def test_all_zero(parts):
    zeros = torch.zeros(100, 100)
    assert torch.equal(ops.compress_gradient(zeros, *state(*parts), 0), zeros)


@pytest.mark.parametrize("parts", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_stale_plan_meets_zeros_and_then_a_gradient(parts):
    plan, stats = state(*parts, REFRESH_EVERY=0)
    ops.compress_gradient(lognormal((100, 100)), plan, stats, 0)
    zeros = torch.zeros(100, 100)
    assert torch.equal(ops.compress_gradient(zeros, plan, stats, 0), zeros)
    assert ops.compress_gradient(lognormal((100, 100), seed=1), plan, stats, 0).any()


@pytest.mark.parametrize("kind", ["prune", "topk", "fp6", "prune and fp6"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_inf_pass(kind, dtype):
    grad = with_specials(gradient((5000,), dtype=dtype))
    plan, stats = state(*SETTINGS[kind])
    y = ops.compress_gradient(grad, plan, stats, 0)
    assert same(y[[3, 5, 7]], grad[[3, 5, 7]]) and torch.isfinite(y).sum() == y.numel() - 3
    report = layer_report(plan, stats)
    assert report["nonfinite"] == 3
    assert all(math.isfinite(v) for v in report.values() if isinstance(v, float))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nothing_finite(value):
    grad = torch.full((5000,), value)
    plan, stats = state(sg.Prune(0.9), sg.Quantize(6))
    assert same(ops.compress_gradient(grad, plan, stats, 0), grad)
    assert not layer_report(plan, stats)["compressed"]


def test_an_overflowed_gradient_does_not_spoil_the_next_plan():
    plan, stats = state(sg.Prune(0.9), sg.Quantize(6))
    bad = lognormal((5000,))
    bad[17] = float("inf")
    ops.compress_gradient(bad, plan, stats, 0)
    again, fresh = state(sg.Prune(0.9), sg.Quantize(6), CALLS=1)
    good = lognormal((5000,), seed=2)
    a = ops.compress_gradient(good, plan, stats, 0)
    assert same(a, ops.compress_gradient(good, again, fresh, 0))
    assert torch.equal(stats, fresh)


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(torch.float16, 1e4), (torch.float16, 3e-7), (torch.float32, 5e37), (torch.float32, 1e-44)],
)
@pytest.mark.parametrize("parts", [(sg.Prune(0.95),), (sg.Prune(0.95), sg.Quantize(6))])
def test_at_the_ends_of_the_range(dtype, scale, parts):
    """A loss scale puts float16 gradients near 65504: a backward pass must not raise there, nor
    make an Inf."""
    grad = (torch.randn(100, 100, generator=torch.Generator().manual_seed(0)) * scale).to(dtype)
    finite = torch.isfinite(grad)
    plan, stats = state(*parts)
    y = ops.compress_gradient(grad, plan, stats, 0)
    assert torch.isfinite(y[finite]).all()


def test_schedule_and_warmup_in_the_plan():
    plan, stats = state(sg.Prune(0.5), WARMUP=2)
    plan[SCHEDULE][:4] = torch.tensor([2, 0.5, 6, 0.9]).double()
    wanted = []
    for calls in range(9):
        grad = lognormal((100, 100), seed=calls)
        y = ops.compress_gradient(grad, plan, stats, 0)
        assert same(y, grad) == (calls < 2)
        wanted.append(layer_report(plan, stats)["sparsity_wanted"])
        if calls >= 2:
            assert float((y == 0).float().mean()) == pytest.approx(wanted[-1], abs=0.02)
    assert wanted == pytest.approx([0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.9, 0.9, 0.9])


def test_small_gradients_are_left_alone():
    plan, stats = state(sg.Prune(0.5), MIN_ELEMENTS=100)
    small = gradient((99,))
    assert same(ops.compress_gradient(small, plan, stats, 0), small)
    assert not layer_report(plan, stats)["compressed"]
    assert not same(ops.compress_gradient(gradient((100,)), plan, stats, 0), gradient((100,)))


def test_empty_gradient():
    plan, stats = state(sg.Prune(0.5), sg.Quantize(6))
    for shape in [(0,), (4, 0, 3)]:
        assert ops.compress_gradient(torch.empty(shape), plan, stats, 0).shape == shape


@pytest.mark.parametrize("parts", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts(parts, dtype):
    """Dense layouts keep theirs and count in the order of memory; others become contiguous."""
    for name, grad in layouts(dtype).items():
        plan, stats = state(*parts)
        if grad.numel() == 0:
            continue
        before = grad.clone()
        y = ops.compress_gradient(grad, plan, stats, 0)
        assert torch.equal(grad, before), name
        dense = torch.ops.aten.is_non_overlapping_and_dense(grad)
        assert y.stride() == (grad.stride() if dense else grad.contiguous().stride()), name
        assert same(y, as_planned(grad if dense else grad.contiguous(), plan, parts)), name


def test_backward_keeps_channels_last():
    x = gradient((4, 6, 5, 7)).to(memory_format=torch.channels_last).requires_grad_()
    got = []
    x.register_hook(got.append)
    y = ops.gradient_gate(x, *state(sg.Prune(0.5)), 0)
    (y * y).sum().backward()
    assert got[0].is_contiguous(memory_format=torch.channels_last)


def test_thread_count_does_not_matter():
    results = []
    threads = torch.get_num_threads()
    try:
        for count in [1, 2, 3]:
            torch.set_num_threads(count)
            plan, stats = state(sg.Prune(0.9), sg.Quantize(4))
            y = ops.compress_gradient(lognormal((300, 1000)), plan, stats, 0)
            results.append((y, plan, stats))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_draws_differ_between_calls_streams_and_seeds():
    grad = lognormal((5000,))

    def run(stream=0, **fields):
        plan, stats = state(sg.Prune(0.9), **fields)
        return ops.compress_gradient(grad, plan, stats, stream)

    reference = run()
    assert same(reference, run())
    for other in [run(stream=1), run(CALLS=1), run(SEED_LOW=6), run(SEED_HIGH=8)]:
        assert not same(reference, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", SETTINGS.values(), ids=SETTINGS.keys())
def test_the_implementation_for_other_devices(parts, dtype):
    for grad in [
        with_specials(lognormal((70_000,), zeros=0.2).to(dtype)),
        *layouts(dtype).values(),
    ]:
        fast, slow = state(*parts), state(*parts)
        a = ops.compress_gradient(grad, *fast, 1)
        b = ops._compress_gradient_aten(grad, *slow, 1)
        assert same(a, b) and torch.equal(fast[0], slow[0])
        assert torch.equal(fast[1].nan_to_num(), slow[1].nan_to_num())
