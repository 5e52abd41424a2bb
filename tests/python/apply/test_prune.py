"""prune and prune_quantize: values, statistics, layouts, registration, errors."""

import math

import numpy as np
import pytest
import torch
from apply_samples import DTYPES, aten, gradient, layouts, same, with_specials

import slimgrad as sg

ops = torch.ops.slimgrad


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_can_happen_to_a_value(dtype):
    x = with_specials(gradient((50000,), dtype=dtype))
    alpha = torch.tensor(0.4).to(dtype)
    y = ops.prune(x, 0.4, 1)
    stays = ~(x.abs() <= alpha)
    assert same(y[stays], x[stays])
    changed = y[~stays]
    at_alpha = changed.abs() == alpha
    assert torch.equal(torch.signbit(changed[at_alpha]), torch.signbit(x[~stays][at_alpha]))
    rest = changed[~at_alpha]
    assert (rest == 0).all() and not torch.signbit(rest).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("share", [1.0, 0.73, 0.2, 1e-3, 1e-5])
def test_unbiased(dtype, share):
    """2,000,000 draws; the share at the threshold within 4 standard errors."""
    n, alpha = 2_000_000, torch.tensor(0.3).to(dtype)
    x = torch.full((n,), 0.3 * share).to(dtype)
    y = ops.prune(x, 0.3, 5)
    p = min(1.0, float(x[0]) / float(alpha))
    assert abs(int(torch.count_nonzero(y)) / n - p) <= 4 * math.sqrt(p * (1 - p) / n)
    assert set(y.unique().tolist()) <= {0.0, float(alpha)}


def test_sparsity_is_the_predicted_one():
    """E zeros = z + sum max(0, 1 - |x| / alpha), a sum of independent Bernoulli variables."""
    x = gradient((1 << 20,))
    alpha = sg.threshold(sg.measure(x), 0.9)
    y = sg.prune(x, alpha, seed=3)
    p = (1 - x.double().abs() / alpha).clamp(min=0)
    deviation = math.sqrt(float((p * (1 - p)).sum()))
    assert abs(float((y == 0).sum()) - float(p.sum())) <= 4 * deviation
    assert abs(float((y == 0).double().mean()) - 0.9) < 2e-3


def test_threshold_of_zero_changes_nothing():
    x = with_specials(gradient((100,)))
    assert same(sg.prune(x, 0.0), x)
    assert same(sg.prune_quantize(x, 0.0, "1-3-2", 0.5), sg.quantize(x, "1-3-2", 0.5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_is_two_passes_where_rounding_draws_nothing(dtype):
    x = with_specials(gradient((30011,), dtype=dtype))
    for alpha, scale in [(0.4, 0.5), (3.0, 0.3), (0.01, 1.0)]:
        arguments = ("1-3-1", scale, "nearest", "zero", 77)
        two = sg.quantize(sg.prune(x, alpha, seed=77), *arguments)
        assert same(sg.prune_quantize(x, alpha, *arguments), two)
        assert same(sg.prune_quantize_(x.clone(), alpha, *arguments), two)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_fused_prunes_as_prune_does(dtype, rounding):
    """On the grid the threshold needs no rounding: what is pruned is the same, draw by draw, and
    what is not lies beside its value."""
    x = with_specials(gradient((30011,), dtype=dtype))
    alpha, scale = 0.75, 0.5  # 0.75 = 0.5 * 1.5
    pruned = sg.prune(x, alpha, seed=77)
    fused = sg.prune_quantize(x, alpha, "1-3-1", scale, rounding, "stochastic", 77)
    small = x.abs() <= alpha
    assert same(fused[small], pruned[small])
    above = x[~small & x.isfinite() & (x.abs() < 10 * scale)].float()
    found = fused[~small & x.isfinite() & (x.abs() < 10 * scale)].float()
    step = scale * torch.exp2((above.abs() / scale).log2().floor() - 1)
    assert bool(((found - above).abs() < step).all())


def test_pruning_and_rounding_draw_independently():
    """Were the same draw simply looked at twice, a value pruned up to alpha would always have been
    drawn low, and rounding alpha up would be certain. n = 400,000; 4 standard errors."""
    n, alpha = 400_000, 1.125  # midway between the grid values 1 and 1.25
    y = sg.prune_quantize(torch.full((n,), 0.5), alpha, "1-3-2", 1.0, "stochastic", seed=1)
    reached = y[y != 0]
    p = float((reached == 1.25).double().mean())
    assert set(reached.unique().tolist()) == {1.0, 1.25}
    assert abs(p - 0.5) <= 4 * 0.5 / math.sqrt(reached.numel())
    assert abs(float(y.double().mean()) - 0.5) <= 4 * float(y.double().std()) / math.sqrt(n)


@pytest.mark.parametrize("dtype", DTYPES)
def test_aten_implementation_gives_the_same_bits(dtype):
    for x in [with_specials(gradient((70001,), dtype=dtype)), *layouts(dtype).values()]:
        for alpha in (0.0, 0.3, 2.0):
            assert same(ops.prune(x, alpha, 8), aten(ops.prune, x, alpha, 8))
            both = (alpha, 3, 1, 0.3, "stochastic", "stochastic", 8)
            assert same(ops.prune_quantize(x, *both), aten(ops.prune_quantize, x, *both))


@pytest.mark.parametrize("name", layouts())
def test_layouts_in_place(name):
    if name == "expanded":
        with pytest.raises(RuntimeError, match="single memory location"):
            sg.prune_(layouts()[name], 0.5)
        return
    x, y = layouts()[name], sg.prune(layouts()[name], 0.5, seed=1)
    assert sg.prune_(x, 0.5, seed=1) is x
    assert torch.equal(x, y)


def test_threads_do_not_matter():
    x = gradient((1 << 18,))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = sg.prune(x, 0.5, seed=2)
        torch.set_num_threads(3)
        three = sg.prune(x, 0.5, seed=2)
    finally:
        torch.set_num_threads(threads)
    assert same(one, three)


def test_seeds():
    x = gradient((10000,))
    torch.manual_seed(1)
    a, b = sg.prune(x, 0.5), sg.prune(x, 0.5)
    torch.manual_seed(1)
    assert same(sg.prune(x, 0.5), a)
    assert not torch.equal(a, b)


@pytest.mark.parametrize("name", ["contiguous", "channels_last", "sliced", "empty"])
def test_opcheck(name):
    both = (0.5, 3, 2, 0.5, "stochastic", "zero", 4)
    for op, arguments in [
        (ops.prune, (0.5, 1)),
        (ops.prune_, (0.5, 1)),
        (ops.prune_quantize, both),
        (ops.prune_quantize_, both),
    ]:
        torch.library.opcheck(op.default, (layouts()[name], *arguments))


def test_compiles_without_breaks():
    def step(x, seed):
        y = sg.prune_quantize_(x.clone(), 0.3, "1-3-2", 0.5, seed=seed)
        return sg.prune(x, 0.3, seed=seed) * 2, y

    compiled = torch.compile(step, fullgraph=True)
    x = gradient((300, 7))
    for seed in (3, 4, 5):
        for a, b in zip(compiled(x, seed), step(x, seed), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("threshold", [-1.0, math.nan, math.inf, 1e39])
def test_bad_thresholds(threshold):
    for x in (torch.ones(3), torch.ones(0)):
        for call in (sg.prune, sg.prune_, lambda x, t: aten(ops.prune, x, t, 0)):
            with pytest.raises(ValueError, match=r"\[prune\] expected a threshold that is not neg"):
                call(x, threshold)
    with pytest.raises(ValueError, match=r"\[prune\] expected a threshold"):
        sg.prune(torch.ones(3, dtype=torch.float16), 1e5)


def test_bad_tensors():
    with pytest.raises(ValueError, match=r"\[prune\] expected x of type float32, bfloat16"):
        sg.prune(torch.arange(3), 1.0)
    with pytest.raises(ValueError, match="does not require a gradient"):
        sg.prune_(torch.ones(3, requires_grad=True), 1.0)
    assert np.isnan(sg.prune(torch.tensor([math.nan]), 1.0).item())


def test_compiled_without_a_seed_it_draws_as_it_does_uncompiled():
    def drawn(x):
        return (
            sg.prune(x, 1.0),
            sg.prune(x, 1.0),
            sg.quantize(x, "1-4-1", 0.5, "stochastic"),
            sg.pack(x, "1-4-1", 0.5, "stochastic").data,
        )

    torch._dynamo.reset()
    x = torch.randn(4096)
    results = []
    for call in (drawn, torch.compile(drawn, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(1)
        results.append(call(x))
    for eager, graph in zip(*results, strict=True):
        assert torch.equal(eager, graph)
    assert not torch.equal(results[1][0], results[1][1])
