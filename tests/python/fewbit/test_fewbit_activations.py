"""Few-bit activations: torch's result to the last bit, the table's gradient to the last bit."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F

import slimgrad as sg
import slimgrad.functional as S
from slimgrad.nn.step_tables import table_for

EXACT = {
    "relu": (F.relu, S.relu),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), lambda x: S.leaky_relu(x, 0.2)),
    "threshold": (lambda x: F.threshold(x, 0.1, 2.0), lambda x: S.threshold(x, 0.1, 2.0)),
    "relu6": (F.relu6, S.relu6),
    "hardtanh": (F.hardtanh, S.hardtanh),
    "hardtanh_uneven": (lambda x: F.hardtanh(x, -2, 1), lambda x: S.hardtanh(x, -2, 1)),
    "hardsigmoid": (F.hardsigmoid, S.hardsigmoid),
    "hardshrink": (F.hardshrink, S.hardshrink),
    "softshrink": (F.softshrink, S.softshrink),
    "rrelu": (F.rrelu, S.rrelu),
}
STEPPED = {
    "gelu": (F.gelu, S.gelu, {}),
    "gelu_tanh": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x, bits: S.gelu(x, "tanh", bits),
        {},
    ),
    "quick_gelu": (lambda x: x * torch.sigmoid(1.702 * x), S.quick_gelu, {}),
    "silu": (F.silu, S.silu, {}),
    "mish": (F.mish, S.mish, {}),
    "hardswish": (F.hardswish, S.hardswish, {}),
    "sigmoid": (torch.sigmoid, S.sigmoid, {}),
    "logsigmoid": (F.logsigmoid, S.logsigmoid, {}),
    "tanh": (torch.tanh, S.tanh, {}),
    "tanhshrink": (F.tanhshrink, S.tanhshrink, {}),
    "softsign": (F.softsign, S.softsign, {}),
    "softplus": (
        lambda x: F.softplus(x, 2.0),
        lambda x, bits: S.softplus(x, 2.0, bits=bits),
        {"beta": 2.0},
    ),
    "elu": (lambda x: F.elu(x, 0.7), lambda x, bits: S.elu(x, 0.7, bits=bits), {"alpha": 0.7}),
    "celu": (lambda x: F.celu(x, 0.7), lambda x, bits: S.celu(x, 0.7, bits=bits), {"alpha": 0.7}),
    "selu": (F.selu, S.selu, {}),
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def layouts(dtype):
    """Contiguous with odd lengths and tails, channels-last, transposed, with holes, overlapping."""
    torch.manual_seed(0)
    for shape in [(0,), (1,), (7,), (130,), (513,), (33, 77), (70001,)]:
        yield torch.randn(shape).mul(3).to(dtype)
    image = torch.randn(2, 3, 5, 7).mul(3).to(dtype)
    yield image.contiguous(memory_format=torch.channels_last)
    matrix = torch.randn(700, 130).mul(3).to(dtype)
    yield matrix.t()
    yield matrix[:, ::2]
    yield matrix[:1].expand(5, 130)


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*EXACT, *STEPPED])
def test_forward_is_torchs(name, dtype, threads):
    torch_function, function = (EXACT.get(name) or STEPPED[name])[:2]
    for x in layouts(dtype):
        expected = torch_function(x)
        bits = {} if name in EXACT else {"bits": 3}
        for given in (x, x.detach().requires_grad_()):
            y = function(given, **bits)
            assert torch.equal(y, expected), (x.shape, x.stride())
            if name not in ("logsigmoid", "rrelu"):  # torch makes these contiguous
                assert y.stride() == expected.stride()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EXACT)
def test_piecewise_constant_derivatives_are_exact(name, dtype):
    torch_function, function = EXACT[name]
    edges = torch.tensor([0.0, -0.0, 6, 1, -1, -2, 3, -3, 0.5, -0.5, 0.1])
    for base in (torch.randn(5000).mul(4), edges):
        x = base.to(dtype).requires_grad_()
        gradient = torch.randn(x.shape).to(dtype)
        (expected,) = torch.autograd.grad(torch_function(x), x, gradient)
        (result,) = torch.autograd.grad(function(x), x, gradient)
        if name == "hardsigmoid":  # torch divides by 6, we multiply by 1/6: one rounding apart
            torch.testing.assert_close(
                result, expected, rtol=1e-2 if dtype != DTYPES[0] else 1e-6, atol=0
            )
        else:
            assert torch.equal(result, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("name", STEPPED)
def test_gradient_is_level_times_gradient(name, bits, dtype):
    _, function, params = STEPPED[name]
    table = table_for(name, params, bits)
    borders, levels = torch.tensor(table.borders), torch.tensor(table.levels)
    assert len(levels) == 2**bits
    for x in layouts(dtype):
        x = x.detach().requires_grad_()
        gradient = torch.randn(x.shape).to(dtype)
        (result,) = torch.autograd.grad(function(x, bits=bits), x, gradient)
        at = x.detach().float().abs() if table.even else x.detach().float()
        level = levels[torch.bucketize(at.contiguous(), borders)]
        assert torch.equal(result, (gradient.float() * level).to(dtype))


@pytest.mark.parametrize("name", ["relu", "elu", "silu", "mish", "hardswish", "selu", "celu"])
def test_in_place(name):
    x = torch.randn(3000, requires_grad=True)
    gradient = torch.randn(3000)
    inner = x * 1
    result = getattr(S, name)(inner, inplace=True)
    assert result.data_ptr() == inner.data_ptr()
    assert torch.equal(result, getattr(F, name)(x))
    (expected,) = torch.autograd.grad(getattr(S, name)(x), x, gradient)
    (found,) = torch.autograd.grad(result, x, gradient)
    assert torch.equal(found, expected)
    with pytest.raises(RuntimeError, match="leaf"):
        getattr(S, name)(x, inplace=True)


def test_the_input_is_released_and_only_codes_are_kept():
    leaf = torch.randn(1 << 16, requires_grad=True)
    x = leaf * 2
    alive = weakref.ref(x)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = S.gelu(x, bits=3)
    assert sum(t.untyped_storage().nbytes() for t in kept) == (1 << 16) * 3 // 8
    del x
    gc.collect()
    assert alive() is None
    y.sum().backward()


@pytest.mark.parametrize("call", [S.gelu, lambda x: S.gelu(x, bits="exact"), S.relu])
def test_second_backward_raises(call):
    x = torch.randn(100, requires_grad=True)
    (first,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="at most one backward"):
        torch.autograd.grad(first.sum(), x)
    (first,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="at most one backward"):
        torch.autograd.grad(first.sum(), x)


@pytest.mark.parametrize("name", ["gelu", "silu", "mish"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 4e-4), (torch.bfloat16, 0.03), (torch.float16, 0.015)]
)
def test_exact_mode(name, dtype, tolerance):
    torch.manual_seed(0)
    for x in [torch.randn(200_003).mul(2), torch.randn(7, 9).t(), torch.randn(0)]:
        x = x.to(dtype).requires_grad_()
        y = getattr(S, name)(x, bits="exact")
        assert torch.equal(y, getattr(F, name)(x))
        (result,) = torch.autograd.grad(y, x, torch.ones_like(y))
        wide = x.detach().double().requires_grad_()
        (expected,) = torch.autograd.grad(getattr(F, name)(wide).sum(), wide)
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=tolerance)


def test_exact_mode_is_free_where_the_output_is_kept_anyway():
    x = torch.randn(512, 64)
    size = 512 * 256

    def kept(activation, *behind):
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), activation, *behind)
        return sg.saved_bytes(model, x).total - x.numel() * 4

    linear = torch.nn.Linear(256, 8)
    assert kept(torch.nn.GELU(), linear) == 2 * 4 * size
    assert kept(sg.nn.GELU(bits="exact"), linear) == 4 * size + size // 8
    assert kept(sg.nn.GELU(bits=3), linear) == 4 * size + size * 3 // 8
    # With nobody else to keep it, the output is the price.
    assert kept(torch.nn.GELU()) == 4 * size
    assert kept(sg.nn.GELU(bits="exact")) == 4 * size + size // 8
    assert kept(sg.nn.GELU(bits=3)) == size * 3 // 8


def test_any_function():
    table = sg.steps(torch.sin, bits=3, interval=(-3, 3))
    x = torch.randn(1000, requires_grad=True)
    y = S.stepwise(x, torch.sin, table)
    assert torch.equal(y, torch.sin(x))
    y.backward(torch.ones(1000))
    level = torch.tensor(table.levels)[torch.bucketize(x.detach(), torch.tensor(table.borders))]
    assert torch.equal(x.grad, level)
    built_in = sg.steps("tanh", bits=3)
    made = sg.steps(torch.tanh, bits=3, even=True)
    assert made.error == pytest.approx(built_in.error, rel=1e-3)


def test_misuse_is_a_value_error():
    x = torch.randn(10, requires_grad=True)
    ops = torch.ops.slimgrad
    for call in [
        lambda: S.gelu(x, bits=0),
        lambda: S.gelu(x, bits=5),
        lambda: S.gelu(x, bits="3"),
        lambda: S.relu(x, bits="exact"),
        lambda: S.gelu(x, "sine"),
        lambda: S.gelu(x.double()),
        lambda: S.silu(x, inplace=True, bits="exact"),
        lambda: S.elu(x, alpha=float("nan")),
        lambda: S.gelu(x, weight="heavy"),
        lambda: S.stepwise(x, lambda x: x[:5], sg.steps(torch.sin)),
        lambda: S.stepwise(x, torch.sin, sg.steps(torch.sin, bits=5)),
        lambda: sg.steps(lambda x: x.sum()),
        lambda: sg.steps(torch.sin, bits=6),
        lambda: sg.steps("sigmoid", even=True),
        lambda: sg.nn.GELU(bits=7),
        lambda: ops.fewbit_activation(x, "no", [], [0.0], [0.0, 1.0], False),
        lambda: ops.fewbit_activation(x, "elu", [], [0.0], [0.0, 1.0], False),
        lambda: ops.fewbit_activation(x, "relu", [], [0.0, 1.0], [0.0, 1.0, 1.0], False),
        lambda: ops.stepwise_codes(x, [2.0, 1.0, 3.0], False),
        lambda: ops.stepwise_backward(
            x.detach(), torch.zeros(3, dtype=torch.int32), [0.0, 1.0], [1]
        ),
        lambda: ops.invertible_activation(x, "relu"),
    ]:
        with pytest.raises(ValueError, match=r"\[|expected"):
            call()
