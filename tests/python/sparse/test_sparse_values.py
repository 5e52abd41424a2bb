"""nn.Linear and nn.Conv2d with a sparse backward pass: types, special values, empty inputs."""

import pytest
import torch
import torch.nn.functional as F
from gate_samples import lognormal
from plan_fields import layer_report
from sparse_samples import (
    any_size,
    assert_close,
    backward,
    dense_gradients,
    each_layer,
    gates,
    pair,
    pruned,
)

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
@each_layer
def test_types_of_16_bits(kind, arguments, shape, out, dtype, rounding):
    """Sums are float32: only the result is rounded, to 8 bits or 11."""
    plain, ours = pair(kind, *arguments)
    plain, ours = plain.to(dtype), ours.to(dtype)
    x, grad = torch.randn(shape).to(dtype), lognormal(out).to(dtype)
    assert torch.equal(ours(x), plain(x))
    got = backward(ours, x, grad)
    assert all(g.dtype == dtype for g in got.values())
    used = {name: pruned(grad, gate) for name, gate in gates(ours).items()}
    assert_close(got, dense_gradients(plain, x, used["input"], used["weight"]), rounding)
    assert all(row["way"] == "sparse" for row in ours.slimgrad_sparse.choices().values())
    assert all(layer_report(g.plan, g.stats)["compressed"] for g in gates(ours).values())


@each_layer
def test_float64_is_dense_and_exact(kind, arguments, shape, out):
    plain, ours = pair(kind, *arguments)
    plain, ours = plain.double(), ours.double()
    x, grad = torch.randn(shape, dtype=torch.float64), lognormal(out).double()
    got, want = backward(ours, x, grad), backward(plain, x, grad)
    for name in want:
        assert torch.allclose(got[name], want[name], rtol=1e-12)
    assert all(row["way"] == "dense" for row in ours.slimgrad_sparse.choices().values())


@each_layer
def test_autocast(kind, arguments, shape, out):
    plain, ours = pair(kind, *arguments)
    x, grad = torch.randn(shape).requires_grad_(), lognormal(out).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, want = ours(x), plain(x)
    assert y.dtype == torch.bfloat16 and torch.equal(y, want)
    y.backward(grad)
    assert x.grad.dtype == ours.weight.grad.dtype == ours.bias.grad.dtype == torch.float32
    used = {name: pruned(grad, gate) for name, gate in gates(ours).items()}
    rounded = plain.bfloat16()
    exact = dense_gradients(rounded, x.bfloat16(), used["input"], used["weight"])
    got = {"input": x.grad, "weight": ours.weight.grad, "bias": ours.bias.grad}
    assert_close(got, exact, 2**-8)


@each_layer
def test_a_sparse_gradient_is_used_as_it_is(kind, arguments, shape, out):
    """No pruning: equal to the dense gradients, and exactly zero where they are."""
    plain, ours = pair(kind, *arguments, gradients=None)
    ours.slimgrad_sparse.set_way("sparse")
    x, grad = torch.randn(shape), lognormal(out, zeros=0.9)
    grad[:, 1] = 0
    grad[1] = 0
    got = backward(ours, x, grad)
    assert_close(got, dense_gradients(plain, x, grad, grad))
    assert not got["weight"][1].any() and not got["input"][1].any()
    assert all(row["way"] == "sparse" for row in ours.slimgrad_sparse.choices().values())
    for gate in gates(ours).values():
        assert layer_report(gate.plan, gate.stats)["sparsity"] == pytest.approx(
            float((grad == 0).double().mean())
        )


def test_the_support_is_that_of_the_gradient():
    """Through identities the gradient itself comes back, zeros and all."""
    layer = any_size(sg.nn.Linear(64, 64, bias=False))
    layer.slimgrad_sparse.set_way("sparse")
    with torch.no_grad():
        layer.weight.copy_(torch.eye(64))
    grad = F.relu(torch.randn(64, 64))
    got = backward(layer, torch.eye(64), grad)
    assert torch.equal(got["input"], grad) and torch.equal(got["weight"].T, grad)


def test_more_zeros_than_wanted_are_left_alone():
    plain, ours = pair(sg.nn.Linear, 24, 40)
    x, grad = torch.randn(50, 24), lognormal((50, 40), zeros=0.95)
    assert_close(backward(ours, x, grad), dense_gradients(plain, x, grad, grad))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@each_layer
def test_nonfinite_values_reach_the_gradients(kind, arguments, shape, out, value):
    plain, ours = pair(kind, *arguments)
    x, grad = torch.randn(shape), lognormal(out)
    grad[(1, 3) + (2,) * (grad.dim() - 2)] = value
    got, want = backward(ours, x, grad), backward(plain, x, grad)
    for name in want:
        finite = want[name].isfinite()
        assert torch.equal(got[name].isfinite(), finite) and not finite.all()


@each_layer
def test_nothing_but_nonfinite_values(kind, arguments, shape, out):
    _, ours = pair(kind, *arguments)
    got = backward(ours, torch.randn(shape), torch.full(out, float("nan")))
    assert all(g.isnan().all() for g in got.values())


@each_layer
def test_nothing_but_zeros(kind, arguments, shape, out):
    _, ours = pair(kind, *arguments)
    got = backward(ours, torch.randn(shape), torch.zeros(out))
    assert not any(g.any() for g in got.values())


@each_layer
def test_empty_batch(kind, arguments, shape, out):
    plain, ours = pair(kind, *arguments)
    x, grad = torch.randn(0, *shape[1:]), torch.randn(0, *out[1:])
    got, want = backward(ours, x, grad), backward(plain, x, grad)
    assert all(torch.equal(got[name], want[name]) for name in want)


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0)])
def test_linear_without_features(sizes):
    plain, ours = pair(sg.nn.Linear, *sizes)
    x, grad = torch.randn(3, sizes[0]), torch.randn(3, sizes[1])
    got, want = backward(ours, x, grad), backward(plain, x, grad)
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_convolution_of_one_image_without_a_batch():
    plain, ours = pair(sg.nn.Conv2d, 8, 12, 3, padding=1)
    x, grad = torch.randn(8, 9, 10), lognormal((12, 9, 10))
    assert torch.equal(ours(x), plain(x))
    assert_close(backward(ours, x, grad), dense_gradients(plain, x, grad, grad))
