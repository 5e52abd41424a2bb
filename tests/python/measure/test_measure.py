"""The op slimgrad::measure: values, dtypes, layouts, threads, registration, errors."""

import math

import numpy as np
import pytest
import torch

import slimgrad as sg

FIELDS = [
    "count",
    "zeros",
    "nonfinite",
    "zero_fraction",
    "log_mean",
    "log_std",
    "max_abs",
    "mean_abs",
    "mean_square",
]
measure = torch.ops.slimgrad.measure
measure_aten = torch.ops.slimgrad._measure_aten


def gradient(shape, seed=0, dtype=torch.float32):
    """Lognormal with random signs, a third of it zeros."""
    generator = torch.Generator().manual_seed(seed)
    magnitude = torch.exp(2 * torch.randn(shape, generator=generator) - 4)
    sign = torch.randint(-1, 2, shape, generator=generator)
    return (magnitude * sign).to(dtype)


def reference(x):
    """The definitions, in NumPy and float64."""
    x = x.detach().float().numpy().ravel()
    finite = np.abs(x[np.isfinite(x)].astype(np.float64))
    nonzero = finite[finite > 0]
    log = np.log(nonzero) if nonzero.size else np.zeros(1)
    zeros = finite.size - nonzero.size
    fields = [x.size, zeros, x.size - finite.size, zeros / max(1, finite.size)]
    fields += [log.mean(), log.std()]
    if finite.size:
        fields += [finite.max(), finite.mean(), np.square(finite).mean()]
    else:
        fields += [0, 0, 0]
    bins = nonzero.astype(np.float32).view(np.uint32) >> 20
    return np.concatenate([fields, np.bincount(bins, minlength=2048)])


def check(got, want):
    got = got.numpy()
    assert got.dtype == np.float64
    assert got.shape == (len(FIELDS) + 2048,)
    np.testing.assert_array_equal(got[:4], want[:4])
    np.testing.assert_allclose(got[4:6], want[4:6], atol=3e-6)
    assert got[6] == want[6]
    np.testing.assert_allclose(got[7:9], want[7:9], rtol=2e-6)
    np.testing.assert_array_equal(got[len(FIELDS) :], want[len(FIELDS) :])


SAMPLES = {
    "empty": torch.empty(0),
    "scalar": torch.tensor(-3.0),
    "zeros": torch.zeros(5000),
    "special": torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, -1e-45, 3e38, 1.0]),
    "no finite": torch.tensor([math.inf, math.nan]),
    "large": gradient((3, 70001)),
    "strided": gradient((300, 400))[::2, 1::3],
    "expanded": gradient((1, 400)).expand(50, 400),
}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("op", [measure, measure_aten], ids=["fast", "aten"])
def test_matches_numpy(op, name):
    check(op(SAMPLES[name]), reference(SAMPLES[name]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("op", [measure, measure_aten], ids=["fast", "aten"])
def test_dtypes(op, dtype):
    x = gradient((200, 777), dtype=dtype)
    x[0, :4] = torch.tensor([1e-40, math.inf, math.nan, 6e-8]).to(dtype)
    check(op(x), reference(x))


def test_dense_layouts_are_read_as_they_lie():
    x = gradient((8, 16, 32, 32))
    plain = measure(x)
    # Same values in another order: sums may differ in the last bits, counts may not.
    for y in [x.to(memory_format=torch.channels_last), x.transpose(0, 3), x.permute(2, 0, 3, 1)]:
        check(measure(y), reference(x))
        torch.testing.assert_close(measure(y), plain, rtol=1e-6, atol=1e-6)
    laid_out = x.to(memory_format=torch.channels_last)
    assert torch.equal(measure(laid_out), measure(laid_out.permute(0, 2, 3, 1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_values", [1000, 200_001, 3_000_017])
def test_threads_do_not_change_a_bit(num_values, dtype):
    x = gradient((num_values,), dtype=dtype)
    threads = torch.get_num_threads()
    try:
        results = []
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            results.append(measure(x))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_sampled_histogram_is_within_its_standard_error():
    # Above 2^21 values one in eight is counted; a fraction read off m values has a standard error
    # of at most 0.5 / sqrt(m). Everything else still sees all values.
    x = gradient((3_000_000,))
    got, want = measure(x).numpy(), reference(x)
    np.testing.assert_array_equal(got[:3], want[:3])
    m = got[len(FIELDS) :].sum()
    assert abs(m / (want[0] - want[1]) - 1 / 8) < 5 * math.sqrt(7 / 64 / want[0])
    difference = (
        np.cumsum(got[len(FIELDS) :]) / m
        - np.cumsum(want[len(FIELDS) :]) / want[len(FIELDS) :].sum()
    )
    assert np.abs(difference).max() < 5 * 0.5 / math.sqrt(m)


def test_flushing_subnormals_changes_nothing():
    x = gradient((5000,))
    x[::7] = 1e-41
    want = measure(x)
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormals")
    try:
        got = measure(x)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(got, want)


@pytest.mark.parametrize("op", [measure, measure_aten], ids=["fast", "aten"])
def test_opcheck(op):
    for x in [gradient((1000,)), gradient((10, 20)).to(torch.bfloat16), torch.empty(0)]:
        torch.library.opcheck(op.default, (x,))
    torch.library.opcheck(op.default, (gradient((100,)).requires_grad_(),))


def test_python_reads_every_field():
    x = gradient((1000,))
    stats, want = sg.measure(x), measure(x).tolist()
    assert [getattr(stats, name) for name in FIELDS] == want[: len(FIELDS)]
    edges = sg.TensorStats.histogram_edges()
    magnitude = x.abs()[x != 0].double()
    assert torch.equal(stats.histogram.double(), torch.histogram(magnitude, edges)[0])


def test_statistics_are_outside_the_graph():
    assert not measure(gradient((100,)).requires_grad_()).requires_grad


def test_compiles_whole():
    x = gradient((1000,))
    compiled = torch.compile(lambda t: measure(t * 2), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), measure(x * 2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool, torch.complex64])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_other_types_are_refused(dtype, device):
    x = torch.zeros(10, dtype=dtype, device=device)
    with pytest.raises(ValueError, match="float32, bfloat16 or float16"):
        measure(x)
