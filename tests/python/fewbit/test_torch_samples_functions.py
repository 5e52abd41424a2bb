"""slimgrad.functional on the samples that torch tests its own functions with."""

import inspect
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from step_bounds import largest_difference, levels_at
from torch_samples import (
    DTYPES,
    OPS,
    gradient_like,
    gradient_of,
    op_samples,
    same,
    special_samples,
)

import slimgrad as sg
import slimgrad.functional as S
from slimgrad.nn.step_tables import table_for

pytestmark = pytest.mark.usefixtures("one_thread")

# Parameters that shape the derivative, and so the table.
PIECEWISE = {
    "relu": (),
    "leaky_relu": ("negative_slope",),
    "threshold": ("threshold",),
    "relu6": (),
    "hardtanh": ("min_val", "max_val"),
    "hardsigmoid": (),
    "hardshrink": ("lambd",),
    "softshrink": ("lambd",),
}
APPROXIMATE = {
    "gelu": ("approximate",),
    "silu": (),
    "mish": (),
    "hardswish": (),
    "sigmoid": (),
    "logsigmoid": (),
    "tanh": (),
    "tanhshrink": (),
    "softsign": (),
    "softplus": ("beta", "threshold"),
    "elu": ("alpha",),
    "celu": ("alpha",),
    "selu": (),
}
OTHERS = ("rrelu", "dropout", "prelu", "max_pool2d")
NOT_TORCHS = ("quick_gelu", "stepwise")
REQUIRED = {"threshold": (0.1, 2.0)}


def theirs(name):
    return getattr(torch if name in ("sigmoid", "tanh") else F, name)


def table_of(name, args, kwargs, bits):
    """The step table that a call uses, by its arguments."""
    bound = inspect.signature(getattr(S, name)).bind(None, *args, **kwargs)
    bound.apply_defaults()
    if name == "gelu":
        tanh = bound.arguments["approximate"] == "tanh"
        return table_for("gelu_tanh" if tanh else "gelu", {}, bits)
    keys = (PIECEWISE | APPROXIMATE)[name]
    return table_for(name, {key: float(bound.arguments[key]) for key in keys}, bits)


def bind(function, args, kwargs, **more):
    """A function of the input alone."""
    return lambda x: function(x, *args, **kwargs, **more)


def level_times(gradient, level):
    """One multiplication in float32; nothing flows where the level is zero."""
    product = (gradient.float() * level).to(gradient.dtype)
    return product.masked_fill_(level == 0, 0)


def samples(name, dtype):
    found = op_samples(name, dtype)
    assert found
    plain = REQUIRED.get(name, ())
    return found + [(x, plain, {}) for x in special_samples(dtype)]


def test_every_function_has_torchs_samples():
    own = [f for _, f in inspect.getmembers(S, inspect.isfunction) if f.__module__ == S.__name__]
    names = {f.__name__ for f in own if not f.__name__.startswith("_")}
    assert names == {*PIECEWISE, *APPROXIMATE, *OTHERS, *NOT_TORCHS}
    assert {name for name in names if name not in OPS} == set(NOT_TORCHS)
    assert all(dtype in OPS[name].supported_dtypes("cpu") for name in PIECEWISE for dtype in DTYPES)
    assert all(
        dtype in OPS[name].supported_dtypes("cpu") for name in APPROXIMATE for dtype in DTYPES
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*PIECEWISE, *APPROXIMATE])
def test_forward(name, dtype):
    ours, function = getattr(S, name), theirs(name)
    for x, args, kwargs in samples(name, dtype):
        expected = function(x, *args, **kwargs)
        assert same(ours(x, *args, **kwargs), expected)
        y = ours(x.detach().requires_grad_(), *args, **kwargs)
        assert y.requires_grad and same(y.detach(), expected)
        if x.numel() and name != "logsigmoid":  # torch makes this one contiguous
            assert y.stride() == expected.stride()
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                y = ours(x.detach().requires_grad_(), *args, **kwargs)
                assert not y.requires_grad and y.grad_fn is None and same(y, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PIECEWISE)
def test_gradients_of_piecewise_constant_slopes_are_torchs(name, dtype):
    """To the last bit, also of infinite and undefined gradients; but torch divides by 6 where
    hardsigmoid multiplies with 1/6, and at NaN ours is the table's (docs/activations.md)."""
    for x, args, kwargs in samples(name, dtype):
        call = bind(getattr(S, name), args, kwargs)
        function = bind(theirs(name), args, kwargs)
        gradient = gradient_like(x, special=True)
        _, expected = gradient_of(function, x, gradient)
        _, found = gradient_of(call, x, gradient)
        table = table_of(name, args, kwargs, 1)
        assert same(found + 0.0, level_times(gradient, levels_at(table, x)) + 0.0)
        at_nan = x.isnan()
        if name not in ("relu", "threshold"):  # torch's depends on where the element lies
            expected = torch.where(at_nan, found, expected)
        if name == "hardsigmoid":
            torch.testing.assert_close(
                found, expected, rtol=torch.finfo(dtype).eps, atol=0, equal_nan=True
            )
        else:
            assert same(found + 0.0, expected + 0.0)


OPEN_AT_NAN = {"relu": 1, "threshold": 1, "relu6": 1, "hardshrink": 1, "softshrink": 1}
CLOSED_AT_NAN = {"hardtanh": 0, "hardsigmoid": 0, "leaky_relu": 1}  # the last: torch has its slope


@pytest.mark.parametrize("name, level", (OPEN_AT_NAN | CLOSED_AT_NAN).items())
def test_the_gradient_at_nan(name, level):
    x = torch.full((1030,), torch.nan)
    gradient = gradient_like(x)
    _, found = gradient_of(lambda x: getattr(S, name)(x, *REQUIRED.get(name, ())), x, gradient)
    assert torch.equal(found, gradient * level)


@cache
def bound(name, args, kwargs, bits):
    """The largest difference between the slope and its table, anywhere."""
    table = table_of(name, args, dict(kwargs), bits)
    jumps = []
    if name == "softplus":
        given = dict(zip(("beta", "threshold"), args, strict=False)) | dict(kwargs)
        jumps = [given.get("threshold", 20) / given.get("beta", 1)]
    return largest_difference(lambda x: theirs(name)(x, *args, **dict(kwargs)), table, jumps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", APPROXIMATE)
def test_gradients_differ_from_torchs_by_no_more_than_the_table(name, dtype):
    """Wherever torch's is finite; two roundings of the 16-bit types are allowed on top, because
    torch computes some slopes from rounded outputs."""
    num_compared = 0
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    for bits in (1, 2, 3, 4) if dtype == torch.float32 else (3,):
        for x, args, kwargs in samples(name, dtype):
            gradient = gradient_like(x)
            _, expected = gradient_of(bind(theirs(name), args, kwargs), x, gradient)
            _, found = gradient_of(bind(getattr(S, name), args, kwargs, bits=bits), x, gradient)
            level = levels_at(table_of(name, args, kwargs, bits), x)
            assert same(found + 0.0, level_times(gradient, level) + 0.0)
            defined = x.isfinite() & expected.isfinite()
            away = (found.double() - expected.double()).abs()[defined]
            incoming = gradient.double().abs()[defined]
            rounding = 2 * torch.finfo(dtype).eps + 1e-6
            limit = bound(name, args, tuple(kwargs.items()), bits) + rounding
            assert (away <= limit * incoming + smallest).all(), (args, kwargs)
            num_compared += away.numel()
    assert num_compared > 1000


@pytest.mark.parametrize("name", ["gelu", "silu", "mish"])
@pytest.mark.parametrize("dtype, limit", list(zip(DTYPES, (4e-4, 0.03, 0.015), strict=True)))
def test_exact_mode(name, dtype, limit):
    """The limits are those of test_fewbit_activations.py, for slopes; torch rounds its own."""
    for x, args, kwargs in samples(name, dtype):
        gradient = gradient_like(x)
        y, found = gradient_of(bind(getattr(S, name), args, kwargs, bits="exact"), x, gradient)
        expected_y, expected = gradient_of(bind(theirs(name), args, kwargs), x, gradient)
        assert same(y, expected_y)
        defined = x.isfinite() & expected.isfinite()
        away = (found.double() - expected.double()).abs()[defined]
        limits = (limit + 2 * torch.finfo(dtype).eps) * gradient.double().abs()[defined]
        assert (away <= limits).all()
        assert found[x.isnan()].isnan().all()


IN_PLACE = [
    n
    for n in (*PIECEWISE, *APPROXIMATE)
    if "inplace" in inspect.signature(getattr(S, n)).parameters
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name, dtype):
    ours = getattr(S, name)
    for x, args, kwargs in samples(name, dtype):
        gradient = gradient_like(x)
        kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
        # The same copy for both: torch's last bit depends on the layout.
        out_of_place, in_place = (bind(ours, args, kwargs, inplace=i) for i in (False, True))
        expected = gradient_of(lambda x, call=out_of_place: call(x * 1), x, gradient)
        found = gradient_of(lambda x, call=in_place: call(x * 1), x, gradient)
        assert same(found[0], expected[0]) and same(found[1], expected[1])


# ---- those without a table ---------------------------------------------------------------------


def assert_like_torch(
    name, dtype, call=lambda f, x, *args, **kwargs: f(x, *args, **kwargs), every=1
):
    """Results and gradients are torch's to the last bit, on all samples or every so many."""
    found = op_samples(name, dtype)[::every]
    for x, args, kwargs in found:
        results = []
        for function in (theirs(name), getattr(S, name)):
            x = x.detach().requires_grad_()
            torch.manual_seed(0)
            y = call(function, x, *args, **kwargs)
            if isinstance(y, tuple):
                assert y[1].dtype == torch.int64
                y = y[0]
            (gradient,) = torch.autograd.grad(y, x, gradient_like(y))
            results.append((y.detach(), gradient))
            with torch.no_grad():
                torch.manual_seed(0)
                again = call(function, x, *args, **kwargs)
            assert same(again[0] if isinstance(again, tuple) else again, results[-1][0])
        assert same(results[0][0], results[1][0])
        assert same(results[0][1] + 0.0, results[1][1] + 0.0)
    return len(found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["rrelu", "dropout"])
def test_random_ones(name, dtype):
    if dtype in OPS[name].supported_dtypes("cpu"):
        assert assert_like_torch(name, dtype) > 10
    else:
        assert (name, dtype) == ("rrelu", torch.float16)  # torch has no kernel in training


@pytest.mark.parametrize("dtype", DTYPES)
def test_prelu_with_a_frozen_weight(dtype):
    def frozen(f, x, weight):
        return f(x.nan_to_num(1), weight.detach())  # at NaN as leaky_relu

    assert assert_like_torch("prelu", dtype, frozen) > 10
    x, args, kwargs = op_samples("prelu", dtype)[0]
    weight = (*args, *kwargs.values())[0].detach().requires_grad_()
    with pytest.raises(ValueError, match="takes no gradient"):
        S.prelu(x, weight)


@pytest.mark.parametrize("dtype", DTYPES)
def test_max_pool2d(dtype):
    every = 5 if dtype == torch.float32 else 13  # of 1440, whose arguments repeat in other cycles
    assert assert_like_torch("max_pool2d", dtype, every=every) > 100


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_that_torch_lacks(dtype):
    for x, _, _ in samples("silu", dtype):
        gradient = gradient_like(x)
        y, found = gradient_of(S.quick_gelu, x, gradient)
        assert same(y, x * torch.sigmoid(1.702 * x))
        level = levels_at(table_for("quick_gelu", {}, 3), x)
        assert same(found + 0.0, level_times(gradient, level) + 0.0)
        table = sg.steps(torch.sin, weight="normal")
        y, found = gradient_of(lambda x, table=table: S.stepwise(x, torch.sin, table), x, gradient)
        assert same(y, torch.sin(x))
        assert same(found + 0.0, level_times(gradient, levels_at(table, x)) + 0.0)


# ---- misuse ------------------------------------------------------------------------------------


def test_what_torch_refuses_is_refused():
    """Ours may be a ValueError where torch has a RuntimeError."""
    num_refused = 0
    for name in (*PIECEWISE, *APPROXIMATE, *OTHERS):
        if OPS[name].error_inputs_func is None:
            continue
        for error in OPS[name].error_inputs("cpu"):
            sample = error.sample_input
            x = sample.input.detach().requires_grad_()
            for given in (x, x.detach()):
                with pytest.raises((error.error_type, ValueError)):
                    getattr(S, name)(given, *sample.args, **sample.kwargs)
            num_refused += 1
    assert num_refused >= 14
