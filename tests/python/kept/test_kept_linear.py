"""Linear layers whose weight gradient reads packed rows, tile by tile."""

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import slimgrad as sg
from slimgrad.kept import linear as kept_linear

ops = torch.ops.slimgrad
ROWS = 2100  # three tiles, the last of them not full


def error(found, expected):
    return ((found.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1024, 7), (1025, 48), (5000, 65)])
def test_the_product_is_that_of_what_is_unpacked(rows, columns, bits, dtype):
    """In float64. What is left is the rounding of sums: float32's, or of the result to 16 bits,
    half a unit in the last place, and as much again for a tile's."""
    torch.manual_seed(0)
    x, gradient = torch.randn(rows, columns).to(dtype), torch.randn(rows, 12).to(dtype)
    words = ops.keep_values(x, bits, 0, "stochastic", 1, 2)
    whole = ops.restore_values(words, x.shape, x.stride(), dtype, bits, 0)
    found = ops.kept_weight_gradient(gradient, words, columns, bits, 0)
    assert found.dtype == dtype and found.shape == (12, columns)
    roundings = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
    assert error(found, gradient.double().t() @ whole.double()) < roundings[dtype]


def test_sums_of_many_tiles_are_not_rounded_to_bfloat16():
    """A constant row after row: in bfloat16 a sum of ones ends at 256."""
    x, gradient = torch.ones(10 * 2048, 16).bfloat16(), torch.ones(10 * 2048, 4).bfloat16()
    words = ops.keep_values(x, 8, 0, "nearest", 1, 0)
    assert (ops.kept_weight_gradient(gradient, words, 16, 8, 0) == 10 * 2048).all()


def test_gradients_of_any_shape_and_of_no_rows():
    torch.manual_seed(0)
    x, gradient = torch.randn(4, 600, 32), torch.randn(4, 8, 600).transpose(1, 2)
    words = ops.keep_values(x, 8, 0, "nearest", 1, 0)
    whole = ops.restore_values(words, x.shape, x.stride(), x.dtype, 8, 0)
    expected = torch.einsum("bro,bri->oi", gradient.double(), whole.double())
    assert error(ops.kept_weight_gradient(gradient, words, 32, 8, 0), expected) < 1e-6
    none = ops.keep_values(x[:0], 8, 0, "nearest", 1, 0)
    assert torch.equal(ops.kept_weight_gradient(gradient[:0], none, 32, 8, 0), torch.zeros(8, 32))


@pytest.fixture(autouse=True)
def switched_on(monkeypatch):
    monkeypatch.setattr(kept_linear, "LEAST_ROWS", 2048)


@pytest.fixture
def products(monkeypatch):
    """What the tiles were asked for."""
    calls = []

    class Watched:
        def __getattr__(self, name):
            if name == "kept_weight_gradient":
                calls.append(name)
            return getattr(ops, name)

    monkeypatch.setattr(kept_linear, "ops", Watched())
    return calls


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(ROWS, 48), (3, ROWS // 3, 48)])
def test_a_layer_is_as_with_the_hooks_alone(shape, bias, products, monkeypatch):
    """The words are the same, so that all differs by the order of sums."""
    torch.manual_seed(0)
    layer, x = nn.Linear(48, 20, bias=bias), leaf(*shape)
    gradient = torch.randn(*shape[:-1], 20)

    def step():
        layer.zero_grad()
        x.grad = None
        with sg.keep(bits=4, seed=3):
            y = layer(x * 2)
        y.backward(gradient)
        return [y.detach(), x.grad, *(p.grad for p in layer.parameters())]

    found = step()
    assert len(products) == 1
    monkeypatch.setattr(kept_linear, "LEAST_ROWS", None)
    for a, b in zip(found, step(), strict=True):
        assert error(a, b.double()) < 1e-6
    assert len(products) == 1


def test_an_input_of_several_is_packed_once_and_given_up_after_backward(products):
    layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
    keeping = sg.keep(bits=4, seed=1)
    with keeping:
        x = leaf(ROWS, 64) * 2
        loss = sum(layer(x).sum() for layer in layers) + x.tanh().mul(x).sum()
    # x, and the tanh
    assert keeping.tally.packed == 2
    known = keeping._keeper._known
    del x
    gc.collect()
    assert sum(ref() is not None for ref in known.values()) == 2
    loss.backward()
    assert len(products) == 3
    # The graph is still there, as whoever holds a loss has it; what it kept is not.
    assert loss.grad_fn is not None
    assert not any(ref() is not None for ref in known.values())


def test_the_model_counts_the_same_bytes(monkeypatch):
    def bytes_of():
        torch.manual_seed(0)
        model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
        controller = sg.compress(model, kept=4, seed=1)
        saved = sg.saved_bytes(model, (leaf(ROWS, 64),))
        model(leaf(ROWS, 64)).sum().backward()
        tally = controller.kept.tally
        return saved.total, saved.by_layer, tally.packed, tally.bytes, tally.left

    found = bytes_of()
    monkeypatch.setattr(kept_linear, "LEAST_ROWS", None)
    assert bytes_of() == found


def test_several_backward_passes(products):
    layer, x = nn.Linear(64, 8), leaf(ROWS, 64)
    with sg.keep(bits=8, seed=1):
        y = layer(x * 2).sum()
    y.backward(retain_graph=True)
    first = layer.weight.grad.clone()
    y.backward()
    assert torch.equal(layer.weight.grad, 2 * first) and len(products) == 2
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_what_was_changed_in_place_is_refused():
    layer = nn.Linear(64, 8)
    with sg.keep(bits=8, seed=1):
        x = leaf(ROWS, 64) * 2
        y = layer(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with sg.keep(bits=8, seed=1):
        y = layer(leaf(ROWS, 64) * 2)
    with torch.no_grad():
        layer.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_second_derivatives_are_refused():
    layer, x = nn.Linear(64, 8), leaf(ROWS, 64)
    with sg.keep(bits=8, seed=1):
        y = layer(x * 2)
    with pytest.raises(RuntimeError, match="without create_graph=True"):
        torch.autograd.grad(y.square().sum(), x, create_graph=True)


def test_where_it_does_not_pay_all_is_as_before(products):
    layer = nn.Linear(64, 8)

    def step(y):
        y.float().sum().backward()

    with sg.keep(bits=4, seed=1):
        step(layer(leaf(100, 64) * 2))  # few rows
        step(layer((leaf(64, ROWS) * 2).t()))  # not the order of rows
        step(layer(leaf(ROWS, 64)))  # a leaf, which lives anyway
        step(nn.Linear(64, 8).bfloat16()((leaf(ROWS, 64) * 2).bfloat16()))
        step(checkpoint(lambda x: layer(x * 2), leaf(ROWS, 64), use_reentrant=False))
        with torch.autocast("cpu", torch.bfloat16):
            step(layer(leaf(ROWS, 64) * 2))
        step(F.linear(leaf(ROWS, 64) * 2, layer.weight.detach()))
        x = leaf(ROWS, 64) * 2
        with torch.no_grad():
            x[3, 4] = torch.inf  # kept as it is
        step(layer(x))
    with sg.keep(bits="exact"):
        step(layer(leaf(ROWS, 64).relu()))
    assert products == []


def test_functions_and_keyword_arguments(products):
    weight, x = leaf(8, 64), leaf(ROWS, 64)
    with sg.keep(bits=8, seed=1):
        F.linear(input=x * 2, weight=weight).sum().backward()
    assert len(products) == 1
    assert error(weight.grad, (2 * x.detach()).double().sum(0).expand(8, 64)) < 0.01


def test_what_is_excluded_stays_as_it_is(products):
    model = nn.Sequential(
        nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)
    )
    sg.compress(model, kept=4, exclude="2", seed=1)
    model(leaf(ROWS, 64) * 2).sum().backward()
    assert len(products) == 2
