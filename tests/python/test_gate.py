"""The gate's ops: what backward does to a gradient, where it works in place, registration."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from apply_samples import DTYPES, gradient, layouts, same, with_specials
from gate_samples import draw_seed, lognormal, state

import slimgrad as sg
from slimgrad.plan import Plan, layer_report

ops = torch.ops.slimgrad

SETTINGS = {
    "prune": (sg.Prune(0.8),),
    "topk": (sg.Prune(0.8, kind="topk"),),
    "topk_stochastic": (sg.Prune(0.8, kind="topk_stochastic"),),
    "fp4": (sg.Quantize(4),),
    "fp6": (sg.Quantize(6),),
    "prune and fp6": (sg.Prune(0.8), sg.Quantize(6)),
    "loss scale": (sg.Quantize(8, scale=sg.LossScale(2.0**4)),),
    "nothing": (),
}


def quantizer_of(plan, part):
    return (
        int(plan[Plan.FORMAT_EXPONENT]),
        int(plan[Plan.FORMAT_MANTISSA]),
        float(plan[Plan.SCALE]),
        part.rounding,
        part.underflow,
    )


def as_planned(x, plan, parts, calls=0, stream=0):
    """The gradient that the plan in force describes, by the elementary ops."""
    seed = draw_seed(plan, calls, stream)
    for part in parts:
        if isinstance(part, sg.Prune):
            alpha = float(plan[Plan.THRESHOLD])
            if part.kind == "topk":
                x = torch.where(x.abs() < alpha, torch.zeros((), dtype=x.dtype), x)
            else:
                x = ops.prune(x, alpha, seed)
        elif plan[Plan.FORMAT_EXPONENT] > 0:  # not in a tensor of zeros only
            x = ops.quantize(x, *quantizer_of(plan, part), seed)
    return x


def backward(x, grad, plan, stats, stream=0):
    x = x.detach().requires_grad_()
    y = ops.gradient_gate(x, plan, stats, stream)
    y.backward(grad)
    return x.grad


# ---- forward -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_is_the_same_memory(dtype):
    for name, x in layouts(dtype).items():
        x = x.detach().requires_grad_()
        plan, stats = state(sg.Prune(0.5))
        y = ops.gradient_gate(x, plan, stats, 0)
        assert y.data_ptr() == x.data_ptr() and y.stride() == x.stride(), name
        assert y.requires_grad and y.grad_fn is not None
        assert plan[Plan.CALLS] == 0


def test_forward_passes_nan_and_inf():
    x = with_specials(gradient((100,))).requires_grad_()
    assert same(ops.gradient_gate(x, *state(sg.Prune(0.5)), 0).detach(), x.detach())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    plan, stats = state(sg.Prune(0.5))
    with mode():
        y = ops.gradient_gate(torch.ones(5, requires_grad=True), plan, stats, 0)
    assert not y.requires_grad and torch.equal(y, torch.ones(5))
    assert plan[Plan.CALLS] == 0


def test_an_input_that_needs_no_gradient():
    assert not ops.gradient_gate(torch.ones(5), *state(sg.Prune(0.5)), 0).requires_grad


def test_in_place_after_the_gate():
    """Models write relu_(conv(x))."""
    x = gradient((64, 64)).requires_grad_()
    y = ops.gradient_gate(x * 1, *state(), 0).relu_()
    y.sum().backward()
    assert torch.equal(x.grad, (x > 0).float())


def test_in_place_after_the_gate_is_noticed_by_autograd():
    """exp keeps its result for backward: writing over it must raise, as it does without a gate."""
    x = gradient((64, 64)).requires_grad_()
    y = ops.gradient_gate(x.exp(), *state(), 0)
    y.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# ---- backward ------------------------------------------------------------------------------------


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
    assert float(plan[Plan.THRESHOLD]) == pytest.approx(expected, rel=1e-9)


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


def test_cosine_and_relative_error_on_every_fourth_value():
    """Of a gradient no larger than the sample, so that the positions are known."""
    grad = lognormal((50_000,), sigma=1.0)
    plan, stats = state(sg.Quantize(4, rounding="nearest", underflow="zero"))
    y = ops.compress_gradient(grad, plan, stats, 0)[::4].double()
    x = grad[::4].double()
    report = layer_report(plan, stats)
    assert report["cosine"] == pytest.approx(float(torch.cosine_similarity(x, y, dim=0)), rel=1e-9)
    assert report["relative_error"] == pytest.approx(float(((y - x).abs() / x.abs()).mean()))


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
    plan[Plan.SCHEDULE : Plan.SCHEDULE + 4] = torch.tensor([2, 0.5, 6, 0.9]).double()
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


# ---- who may be holding the gradient -------------------------------------------------------------


def ops_called(run):
    """The names of slimgrad's ops that run() calls."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return [event.name for event in profile.events() if event.name.startswith("slimgrad::")]


def test_a_gradient_nobody_holds_is_worked_on_in_place():
    x = torch.zeros(100, 100, requires_grad=True)
    y = ops.gradient_gate(x, *state(sg.Prune(0.8)), 0)
    loss = (y * lognormal((100, 100))).sum()
    assert ops_called(loss.backward) == ["slimgrad::compress_gradient_"]


def test_a_layer_behind_a_relu_works_in_place():
    """The case that matters for speed: layer, gate, activation, layer, gate."""
    x = torch.zeros(100, 100, requires_grad=True)
    a, b = torch.nn.Linear(100, 100), torch.nn.Linear(100, 100)
    y = torch.relu(ops.gradient_gate(a(x), *state(sg.Prune(0.8)), 0))
    y = ops.gradient_gate(b(y), *state(sg.Prune(0.8)), 0)
    loss = (y * lognormal((100, 100))).sum()
    assert ops_called(loss.backward) == ["slimgrad::compress_gradient_"] * 2


def test_the_caller_keeps_the_gradient():
    grad = lognormal((100, 100))
    before = grad.clone()
    got = backward(torch.zeros(100, 100), grad, *state(sg.Prune(0.8)))
    assert same(grad, before) and not same(got, grad)
    x = torch.zeros(100, 100, requires_grad=True)
    y = ops.gradient_gate(x, *state(sg.Prune(0.8)), 0)
    torch.autograd.grad(y, x, grad)
    assert same(grad, before)


def test_memory_shared_with_numpy():
    array = lognormal((100, 100)).numpy()
    before = array.copy()
    x = torch.zeros(100, 100, requires_grad=True)
    ops.gradient_gate(x, *state(sg.Prune(0.8)), 0).backward(torch.from_numpy(array))
    assert (array == before).all()


@pytest.mark.parametrize("gates", [(True, True), (True, False), (False, True)])
def test_a_gradient_for_two(gates):
    """Addition hands one gradient tensor to both its operands."""
    a, b = (torch.zeros(100, 100, requires_grad=True) for _ in range(2))
    weight = lognormal((100, 100))
    ends, states = [], []
    for x, gated in zip((a, b), gates, strict=True):
        states.append(state(sg.Prune(0.8)))
        ends.append(ops.gradient_gate(x, *states[-1], 0) if gated else x)
    ((ends[0] + ends[1]) * weight).sum().backward()
    for x, gated, (plan, _) in zip((a, b), gates, states, strict=True):
        assert same(x.grad, as_planned(weight, plan, (sg.Prune(0.8),)) if gated else weight)


def test_retained_gradient():
    x = torch.zeros(100, 100, requires_grad=True)
    weight = lognormal((100, 100))
    y = ops.gradient_gate(x, *state(sg.Prune(0.8)), 0)
    y.retain_grad()
    (y * weight).sum().backward()
    assert same(y.grad, weight) and not same(x.grad, weight)


@pytest.mark.parametrize("keep", [lambda g: g, lambda g: g.view(-1), lambda g: g.detach()])
def test_a_hook_that_keeps_the_gradient(keep):
    kept = []
    x = torch.zeros(100, 100, requires_grad=True)
    weight = lognormal((100, 100))
    y = ops.gradient_gate(x, *state(sg.Prune(0.8)), 0)
    y.register_hook(lambda g: kept.append(keep(g)))
    (y * weight).sum().backward()
    assert same(kept[0].view(100, 100), weight) and not same(x.grad, weight)


def test_a_prehook_of_the_node_that_keeps_the_gradient():
    kept = []
    x = torch.zeros(100, 100, requires_grad=True)
    weight = lognormal((100, 100))
    y = ops.gradient_gate(x, *state(sg.Prune(0.8)), 0)
    y.grad_fn.register_prehook(lambda grads: kept.append(grads[0]))
    (y * weight).sum().backward()
    assert same(kept[0], weight)


def test_a_gradient_that_a_node_keeps():
    """A node may hand out a tensor that it needs again, for a second backward pass."""

    class Source(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(weight)
            return (x * weight).sum()

        @staticmethod
        def backward(ctx, grad):
            return ctx.saved_tensors[0], None

    weight = lognormal((100, 100))
    before = weight.clone()
    x = torch.zeros(100, 100, requires_grad=True)
    y = ops.gradient_gate(x, *state(sg.Prune(0.8)), 0)
    loss = Source.apply(y, weight)
    del weight
    loss.backward(retain_graph=True)
    loss.backward()
    again = torch.zeros(100, 100, requires_grad=True)
    plan, stats = state(sg.Prune(0.8))
    for _ in range(2):
        ops.gradient_gate(again, plan, stats, 0).backward(before)
    assert same(x.grad, again.grad)


def test_a_parameter_that_takes_the_gradient_over():
    """AccumulateGrad steals a gradient that nobody else holds."""
    for order in (0, 1):
        x = torch.zeros(100, 100, requires_grad=True)
        bias = torch.zeros(100, 100, requires_grad=True)
        weight = lognormal((100, 100))
        y = ops.gradient_gate(x * 1, *state(sg.Prune(0.8)), 0)
        ((bias + y if order else y + bias) * weight).sum().backward()
        assert same(bias.grad, weight) and not same(x.grad, weight)


def test_expanded_gradient():
    """sum() sends one number, expanded: not memory to write into."""
    x = torch.zeros(100, 100, requires_grad=True)
    plan, stats = state(sg.Prune(0.8))
    ops.gradient_gate(x, plan, stats, 0).sum().backward()
    assert float((x.grad == 0).float().mean()) == pytest.approx(0.8, abs=0.02)
    assert float(x.grad.mean()) == pytest.approx(1, abs=0.1)


def test_a_view_as_gradient():
    """cat and stack hand out slices of one gradient."""
    xs = [torch.zeros(50, 100, requires_grad=True) for _ in range(2)]
    weight = lognormal((100, 100))
    before = weight.clone()
    plans = [state(sg.Prune(0.8)) for _ in xs]
    gates = [ops.gradient_gate(x, *s, 0) for x, s in zip(xs, plans, strict=True)]
    torch.cat(gates).backward(weight)
    assert same(weight, before)
    for x, (plan, _), half in zip(xs, plans, before.split(50), strict=True):
        assert same(x.grad, as_planned(half.contiguous(), plan, (sg.Prune(0.8),)))


def test_undefined_gradient():
    """A branch of the graph through which no gradient flows."""

    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    x = torch.zeros(100, 100, requires_grad=True)
    plan, stats = state(sg.Prune(0.8))
    Stop.apply(ops.gradient_gate(x, plan, stats, 0)).sum().backward()
    assert x.grad is None and plan[Plan.CALLS] == 0


def test_the_in_place_op_tells_autograd_that_it_wrote():
    grad = lognormal((100,))
    plan, stats = state(sg.Prune(0.8))
    versions = [t._version for t in (grad, plan, stats)]
    ops.compress_gradient_(grad, plan, stats, 0)
    assert all(t._version > v for t, v in zip((grad, plan, stats), versions, strict=True))


# ---- registration --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "op", ["compress_gradient", "compress_gradient_", "_compress_gradient_aten"]
)
@pytest.mark.parametrize("name", ["prune", "fp4", "prune and fp6"])
def test_opcheck(op, name):
    for layout in ["contiguous", "channels_last"]:
        arguments = (layouts()[layout], *state(*SETTINGS[name]), 0)
        torch.library.opcheck(getattr(ops, op).default, arguments)


def test_opcheck_of_the_gate():
    for x in [gradient((64, 32)), gradient((64, 32)).requires_grad_()]:
        arguments = (x, *state(sg.Prune(0.8)), 0)
        torch.library.opcheck(ops.gradient_gate.default, arguments)


def test_opcheck_across_layers():
    states = [state(sg.Prune(0.8), sg.Quantize(6, scale=sg.LossScale(1e30))) for _ in range(2)]
    for seed, (plan, stats) in enumerate(states):
        ops.compress_gradient(lognormal((100, 100), sigma=1 + seed), plan, stats, 0)
    plans, stats = zip(*states, strict=True)
    arguments = (list(plans), list(stats), "min_cosine", "empirical", 0.98)
    torch.library.opcheck(ops.allocate_plans_.default, arguments)
    torch.library.opcheck(ops.update_loss_scale_.default, (list(plans), list(stats), 3))


def test_meta_has_the_strides_of_the_result():
    for grad in layouts().values():
        y = ops.compress_gradient(grad, *state(sg.Prune(0.5)), 0)
        meta = torch.empty_strided(grad.shape, grad.stride(), device="meta")
        assert ops.compress_gradient(meta, *state(sg.Prune(0.5)), 0).stride() == y.stride()
    sliced = torch.randn(8, 6, 4).permute(2, 0, 1)[:, ::2]
    meta = torch.empty_strided(sliced.shape, sliced.stride(), device="meta")
    y = ops.compress_gradient(sliced, *state(sg.Prune(0.5)), 0)
    assert ops.compress_gradient(meta, *state(sg.Prune(0.5)), 0).stride() == y.stride()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend):
    """The same gradients and the same state, to the bit."""
    weight = lognormal((100, 100))

    def step(x, plan, stats):
        y = ops.gradient_gate(x * 2, plan, stats, 0)
        return (torch.relu(y) * weight).sum()

    results = []
    for f in (step, torch.compile(step, fullgraph=True, backend=backend)):
        plan, stats = state(sg.Prune(0.8), sg.Quantize(6))
        x = lognormal((100, 100), seed=1).requires_grad_()
        for _ in range(3):
            f(x, plan, stats).backward()
        assert plan[Plan.CALLS] == 3
        results.append((x.grad, plan, stats))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


# ---- misuse --------------------------------------------------------------------------------------


def test_double_backward_raises():
    x = lognormal((100, 100)).requires_grad_()
    y = ops.gradient_gate(x, *state(sg.Prune(0.8)), 0)
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad((y * y).sum(), x, create_graph=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float64, torch.complex64])
def test_other_types(dtype):
    x = torch.ones(5).to(dtype)
    for op in (ops.gradient_gate, ops.compress_gradient, ops.compress_gradient_):
        with pytest.raises(ValueError, match="expected x of type float32, bfloat16 or float16"):
            op(x, *state(sg.Prune(0.5)), 0)


@pytest.mark.parametrize("op", [ops.compress_gradient, ops.compress_gradient_])
def test_no_derivative(op):
    with pytest.raises(ValueError, match="does not require a gradient"):
        op(lognormal((100,)).requires_grad_(), *state(sg.Prune(0.5)), 0)


def test_in_place_needs_a_dense_tensor():
    with pytest.raises(ValueError, match="without gaps or overlaps"):
        ops.compress_gradient_(lognormal((10, 20))[:, ::2], *state(sg.Prune(0.5)), 0)


BUFFERS = {
    "short": lambda t: t[:-1].clone(),
    "float32": lambda t: t.float(),
    "gaps": lambda t: torch.stack([t, t], 1)[:, 0],
}


@pytest.mark.parametrize("spoil", BUFFERS.values(), ids=BUFFERS.keys())
@pytest.mark.parametrize("which", ["plan", "stats"])
def test_bad_buffers(which, spoil):
    grad = lognormal((100, 100))
    plan, stats = state(sg.Prune(0.5))
    if which == "plan":
        plan = spoil(plan)
    else:
        stats = spoil(stats)
    for op in (ops.compress_gradient, ops.compress_gradient_):
        with pytest.raises(ValueError, match=f"the buffer {which} as a contiguous float64"):
            op(grad.clone(), plan, stats, 0)
    x = torch.zeros(100, 100, requires_grad=True)
    with pytest.raises(ValueError, match=f"the buffer {which} as a contiguous float64"):
        (ops.gradient_gate(x, plan, stats, 0) * grad).sum().backward()


@pytest.mark.parametrize("spoil", BUFFERS.values(), ids=BUFFERS.keys())
@pytest.mark.parametrize("which", ["plan", "stats"])
def test_bad_buffers_across_layers(which, spoil):
    plan, stats = state(sg.Prune(0.5), sg.Quantize(6, scale=sg.LossScale()))
    ops.compress_gradient(lognormal((100, 100)), plan, stats, 0)
    if which == "plan":
        plan = spoil(plan)
    else:
        stats = spoil(stats)
    with pytest.raises(ValueError, match=which):
        ops.allocate_plans_([plan], [stats], "min_cosine", "empirical", 0.98)
    with pytest.raises(ValueError, match=which):
        ops.update_loss_scale_([plan], [stats], 3)


def test_misuse_across_layers():
    plan, stats = state(sg.Prune(0.5))
    ops.compress_gradient(lognormal((100, 100)), plan, stats, 0)
    no_target = plan.clone()
    no_target[Plan.TARGET] = float("nan")
    for wrong in [
        ([plan, plan], [stats], "min_cosine", "empirical", 0.98),
        ([no_target], [stats], "min_cosine", "empirical", 0.98),
        ([plan], [stats], "best", "empirical", 0.98),
        ([plan], [stats], "min_cosine", "guess", 0.98),
        ([plan], [stats], "min_cosine", "empirical", float("nan")),
    ]:
        with pytest.raises(ValueError):
            ops.allocate_plans_(*wrong)
    with pytest.raises(ValueError, match="growth_interval"):
        ops.update_loss_scale_([plan], [stats], 0)


NAN = float("nan")


@pytest.mark.parametrize(
    "fields",
    [
        {"PRUNE": 4},
        {"PRUNE": 0.5},
        {"PRUNE": NAN},
        {"SPARSITY": 1},
        {"SPARSITY": -0.1},
        {"SPARSITY": NAN},
        {"METHOD": 5},
        {"EXPONENT_BITS": 9},
        {"SCALE_METHOD": 3},
        {"ROUNDING": 2},
        {"UNDERFLOW": -1},
        {"SAMPLE_SIZE": 0},
        {"SAMPLE_SIZE": NAN},
        {"CALLS": NAN},
        {"CALLS": -1},
        {"SEED_LOW": -1},
        {"SEED_HIGH": NAN},
        {"REFRESH_EVERY": NAN},
        {"FIXED_SCALE": NAN},
        {"THRESHOLD": NAN, "IN_FORCE_PRUNE": 1, "DUE": 0, "REFRESH_EVERY": 0},
        {"THRESHOLD": -1, "IN_FORCE_PRUNE": 1, "DUE": 0, "REFRESH_EVERY": 0},
    ],
    ids=str,
)
def test_bad_values_in_the_plan(fields):
    plan, stats = state(sg.Prune(0.5), sg.Quantize(6), **fields)
    before = plan.clone()
    with pytest.raises(ValueError):
        ops.compress_gradient(lognormal((100, 100)), plan, stats, 0)
    assert torch.equal(plan.nan_to_num(), before.nan_to_num()) and not stats.any()


def test_numbers_of_bits_that_no_format_has():
    """In a process of its own: a table without such a row must not be read."""
    code = """
import torch, slimgrad as sg
from gate_samples import lognormal, state
for bits in (9, 50, 1, -3, float("nan")):
    plan, stats = state(sg.Quantize(8), BITS=bits)
    try:
        torch.ops.slimgrad.compress_gradient(lognormal((100, 100)), plan, stats, 0)
    except ValueError as error:
        print("refused:", error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.count("refused") == 5, done.stderr
