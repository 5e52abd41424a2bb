"""quantize: values against NumPy and ml_dtypes, statistics, layouts, registration, errors."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from apply_samples import DTYPES, FORMATS, aten, gradient, layouts, same, with_specials
from hypothesis import given, settings
from hypothesis import strategies as st

import slimgrad as sg

ops = torch.ops.slimgrad


def grid_of(exponent_bits, mantissa_bits):
    """The non-negative grid at scale 1, from the definition."""
    bias = 2 ** (exponent_bits - 1)
    fields = range(1, 2**exponent_bits)
    steps = range(2**mantissa_bits)
    values = [2.0 ** (e - bias) * (1 + m / 2**mantissa_bits) for e in fields for m in steps]
    return np.array([0.0, *values])


def reference(x, exponent_bits, mantissa_bits, scale):
    """Nearest rounding of a float32 array by search, ties to the even code."""
    grid = grid_of(exponent_bits, mantissa_bits)
    codes = np.arange(grid.size - 1) + 2**mantissa_bits
    inverse = np.float32(1) / np.float32(scale)
    if inverse * np.float32(scale) < 1:
        inverse = np.nextafter(inverse, np.float32(np.inf))
    quotient = (np.abs(x) * inverse).astype(np.float64)
    exact = np.abs(x).astype(np.float64) / np.float64(np.float32(scale))
    np.testing.assert_allclose(quotient, exact, rtol=2.0**-22, atol=1e-40)
    distance = np.abs(quotient[:, None] - grid[None, 1:])
    # A tie is worth less than any distance between different candidates.
    is_tied = distance == distance.min(axis=1, keepdims=True)
    pick = np.argmin(np.where(is_tied, codes % 2, 2), axis=1)
    value = (grid[1:][pick] * np.float64(np.float32(scale))).astype(np.float32)
    value = np.where(quotient < grid[1], np.float32(0), np.copysign(value, x))
    return np.where(np.isfinite(x), value, x)


def borders(exponent_bits, mantissa_bits, scale):
    """Grid values, midpoints, and their neighbours among the floats."""
    grid = grid_of(exponent_bits, mantissa_bits)
    points = np.concatenate([grid, (grid[1:] + grid[:-1]) / 2, [grid[-1] * 1.3, grid[-1] * 8]])
    points = (points * scale).astype(np.float32)
    around = [points, np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(np.inf))]
    around = np.concatenate(around)
    return np.concatenate([around, -around])


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f"1-{f[0]}-{f[1]}")
@pytest.mark.parametrize("scale", [1.0, 2.0**-17, 0.37])
def test_nearest_at_every_border_of_every_format(format, scale):
    x = borders(*format, scale)
    y = sg.quantize(torch.from_numpy(x), f"1-{format[0]}-{format[1]}", scale).numpy()
    want = reference(x, *format, scale)
    np.testing.assert_array_equal(y.view(np.uint32) << 1, want.view(np.uint32) << 1)
    assert not np.signbit(y[y == 0]).any()


# Where the formats of ml_dtypes are normal and finite they have the same mantissas; the scale makes
# up for the bias, 2^(n2-1) here and 2^(n2-1) - 1 there.
@pytest.mark.parametrize(
    "format, other",
    [("1-5-2", ml_dtypes.float8_e5m2), ("1-4-3", ml_dtypes.float8_e4m3), ("1-3-4", "e3m4")],
)
def test_agrees_with_ml_dtypes_on_normal_numbers(format, other):
    other = ml_dtypes.float8_e3m4 if other == "e3m4" else other
    info = ml_dtypes.finfo(other)
    x = np.concatenate(
        [np.array(sg.FloatFormat(format).values(), np.float32) * s for s in (2.0, 2.125, 2.25)]
        + [gradient((20000,), 4).numpy()]
    )
    x = np.concatenate([x, np.nextafter(x, np.float32(0)), np.nextafter(x, np.float32(np.inf))])
    x = x[(np.abs(x) >= float(info.smallest_normal)) & (np.abs(x) <= float(info.max))]
    assert x.size > 10000
    y = sg.quantize(torch.from_numpy(x), format, 2.0).numpy()
    np.testing.assert_array_equal(y, x.astype(other).astype(np.float32))


def test_format_without_mantissa_has_linear_midpoints():
    x = torch.tensor([1.49, 1.51, 2.99, 3.01, 1.5, 3.0, 0.75])
    y = sg.quantize(x, "1-3-0", 1.0)
    # Exponent codes of 0.5, 1, 2, 4 are 3, 4, 5, 6: ties go to 1 and 4.
    assert y.tolist() == [1, 2, 2, 4, 1, 4, 1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_halves_hold_grid_values_exactly(dtype):
    x = with_specials(gradient((5000,), dtype=dtype))
    y = sg.quantize(x, "1-4-3", 0.25)
    want = reference(x.float().numpy(), 4, 3, 0.25)
    np.testing.assert_array_equal(y.float().numpy(), want)
    assert y.dtype == dtype


@pytest.mark.parametrize("format", ["1-2-1", "1-3-0", "1-3-2", "1-5-2"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_stochastic_rounding_and_underflow_are_unbiased(format, dtype):
    """200,000 draws of each value; the mean within 4 standard errors of the exact deviation."""
    n, grid = 200_000, np.array(sg.FloatFormat(format).values())
    top = min(grid[-1], 1000.0)
    for value in [0.003, 0.3, 0.7, 1.3, 0.45 * top]:
        x = torch.full((n,), -value).to(dtype)
        exact = -float(x[0])
        if exact < 1e-3 * grid[1]:
            continue
        upper = np.searchsorted(grid, exact, side="right")
        low, high = grid[upper - 1], grid[upper]
        y = -sg.quantize(x, format, 1.0, "stochastic", "stochastic", seed=17).double().numpy()
        assert set(np.unique(y)) <= {low, high}
        deviation = math.sqrt((exact - low) * (high - exact) / n)
        assert abs(y.mean() - exact) <= 4 * deviation


def test_tiny_values_do_not_vanish():
    """|x| / smallest = 2^-20 is below the 16 bits of a first draw: 2^26 draws give 64 +- 8."""
    x = torch.full((1 << 26,), 2.0**-20 / 2)
    ops.quantize_(x, 2, 1, 1.0, "nearest", "stochastic", 3)
    count = int(torch.count_nonzero(x))
    assert abs(count - 64) <= 4 * 8


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("underflow", ["zero", "stochastic"])
@pytest.mark.parametrize("scale", [0.5, 0.3])
def test_aten_implementation_gives_the_same_bits(dtype, rounding, underflow, scale):
    for x in [with_specials(gradient((70001,), dtype=dtype)), *layouts(dtype).values()]:
        for format in [(3, 2), (3, 0), (7, 0)]:
            arguments = (*format, scale, rounding, underflow, -5)
            assert same(ops.quantize(x, *arguments), aten(ops.quantize, x, *arguments))


@pytest.mark.parametrize("name", layouts())
def test_layouts(name):
    x = layouts()[name]
    arguments = ("1-3-2", 0.5, "stochastic", "stochastic", 9)
    y = sg.quantize(x, *arguments)
    assert y.shape == x.shape
    if x.is_contiguous() or name in ("channels_last", "transposed"):
        assert y.stride() == x.stride()
        # In the order of memory, whatever the dimensions are called.
        flat = torch.as_strided(x, (x.numel(),), (1,))
        assert same(torch.as_strided(y, (y.numel(),), (1,)), sg.quantize(flat, *arguments))
    else:
        assert same(y, sg.quantize(x.contiguous(), *arguments))
    if name != "expanded":
        in_place = x.clone() if name != "sliced" else gradient((4, 6, 5, 14))[..., ::2]
        pointer = in_place.data_ptr()
        assert sg.quantize_(in_place, *arguments) is in_place
        assert in_place.data_ptr() == pointer
        assert torch.equal(in_place, y)


@given(
    shape=st.lists(st.integers(0, 9), max_size=4),
    order=st.randoms(use_true_random=False),
    dtype=st.sampled_from(DTYPES),
    step=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_any_shape_and_stride(shape, order, dtype, step):
    dims = list(range(len(shape)))
    order.shuffle(dims)
    x = gradient((*shape,), dtype=dtype).permute(dims)
    if x.dim():
        x = x[::step]
    arguments = (3, 1, 0.7, "stochastic", "stochastic", 1)
    y = ops.quantize(x, *arguments)
    assert same(y, aten(ops.quantize, x, *arguments))
    z = x.clone(memory_format=torch.preserve_format)
    if z.stride() == x.stride():
        ops.quantize_(z, *arguments)
        assert torch.equal(z, y)


def test_threads_do_not_matter():
    x = gradient((1 << 18,))
    arguments = ("1-3-2", 0.3, "stochastic", "stochastic", 2)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = sg.quantize(x, *arguments)
        torch.set_num_threads(3)
        assert same(sg.quantize(x, *arguments), one)
    finally:
        torch.set_num_threads(threads)


def test_seeds():
    x = gradient((10000,))
    arguments = ("1-3-2", 0.3, "stochastic")
    torch.manual_seed(1)
    a, b = sg.quantize(x, *arguments), sg.quantize(x, *arguments)
    torch.manual_seed(1)
    assert same(sg.quantize(x, *arguments), a)
    assert not torch.equal(a, b)
    assert same(sg.quantize(x, *arguments, seed=2**64 - 1), sg.quantize(x, *arguments, seed=-1))
    assert not torch.equal(
        sg.quantize(x, *arguments, seed=1), sg.quantize(x, *arguments, seed=1 + 2**32)
    )
    # Nearest rounding draws nothing, not even a seed.
    state = torch.get_rng_state()
    sg.quantize(x, "1-3-2", 0.3)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ["contiguous", "channels_last", "transposed", "sliced", "empty"])
def test_opcheck(name):
    arguments = (3, 2, 0.5, "stochastic", "zero", 4)
    torch.library.opcheck(ops.quantize.default, (layouts()[name], *arguments))
    torch.library.opcheck(ops.quantize_.default, (layouts()[name], *arguments))


def test_compiles_without_breaks():
    def step(x, seed):
        y = sg.quantize(x * 2, "1-3-2", 0.5, "stochastic", seed=seed) + 1
        return y, sg.quantize_(x + 1, "1-3-0", 0.5)

    compiled = torch.compile(step, fullgraph=True)
    x = gradient((300, 7))
    for seed in (3, 4, 5):
        for a, b in zip(compiled(x, seed), step(x, seed), strict=True):
            assert torch.equal(a, b)


def test_gradients_are_refused():
    x = gradient((8,)).requires_grad_()
    for call in (sg.quantize, sg.quantize_, sg.pack):
        with pytest.raises(ValueError, match=r"expected a tensor that does not require a gradient"):
            call(x, "1-3-2", 1.0)
        with pytest.raises(ValueError, match=r"does not require a gradient"):
            call(x * 2, "1-3-2", 1.0)
    with torch.no_grad():
        assert not sg.quantize(x, "1-3-2", 1.0).requires_grad
    assert sg.quantize(x.detach(), "1-3-2", 1.0).shape == x.shape


def test_autograd_notices_a_tensor_changed_in_place():
    w = gradient((8,)).requires_grad_()
    y = w.exp()
    product = (y * y).sum()
    sg.quantize_(y.detach(), "1-3-2", 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 1e-40, 1e40])
def test_bad_scales(scale):
    for x in (torch.ones(3), torch.ones(0)):
        with pytest.raises(ValueError, match=r"\[quantize\] expected a positive scale"):
            sg.quantize(x, "1-3-2", scale)


@pytest.mark.parametrize("implementation", ["cpu", "aten", "meta"])
def test_bad_arguments(implementation):
    def call(x, *arguments):
        if implementation == "aten":
            return aten(ops.quantize, x, *arguments)
        return ops.quantize(x.to("meta") if implementation == "meta" else x, *arguments)

    x, good = torch.ones(3), (3, 2, 1.0, "nearest", "zero", 0)
    assert call(x, *good).shape == (3,)
    for dtype in (torch.int32, torch.float64, torch.bool, torch.complex64):
        with pytest.raises(ValueError, match=r"\[quantize\] expected x of type float32, bfloat16"):
            call(x.to(dtype), *good)
    for e, m in [(0, 3), (8, 0), (3, 7), (-1, 2), (5, 3), (2**32 + 3, 2)]:
        with pytest.raises(ValueError, match=r"\[FloatFormat\] expected"):
            call(x, e, m, *good[2:])
    with pytest.raises(ValueError, match="rounding to be one of nearest stochastic, got 'up'"):
        call(x, 3, 2, 1.0, "up", "zero", 0)
    with pytest.raises(ValueError, match="underflow to be one of zero stochastic"):
        call(x, 3, 2, 1.0, "nearest", "gradual", 0)
