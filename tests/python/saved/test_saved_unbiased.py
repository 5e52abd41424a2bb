"""What stochastic rounding promises: gradients that are linear in what is kept are unbiased."""

import pytest
import torch
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")

DRAWS = 400


def weight_gradients(layer, x, grad, **how):
    keeping = sg.saved_tensors(seed=1, **how)
    for _ in range(DRAWS):
        layer.zero_grad()
        with keeping:
            y = layer(x * 1)  # no leaf
        y.backward(grad)
        yield layer.weight.grad.clone()


def bias_in_standard_errors(layer, x, grad, **how):
    """Of the mean of DRAWS weight gradients, by the standard deviations of their own elements."""
    found = torch.stack(list(weight_gradients(layer, x, grad, **how))).double()
    layer.zero_grad()
    layer(x).backward(grad)
    error = found.mean(0) - layer.weight.grad.double()
    return error / (found.std(0) / DRAWS**0.5), layer.weight.grad, x.grad


LAYERS = {
    "linear": lambda: (nn.Linear(64, 24), (128, 64), (128, 24)),
    "conv": lambda: (nn.Conv2d(8, 6, 3, padding=1), (4, 8, 12, 12), (4, 6, 12, 12)),
    "channels last": lambda: (
        nn.Conv2d(8, 6, 3, padding=1).to(memory_format=torch.channels_last),
        (4, 8, 12, 12),
        (4, 6, 12, 12),
    ),
}


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_weight_gradients_are_unbiased(kind, relu, bits):
    """Elements of the mean lie a standard error from the truth, as Student's law with 399 degrees
    says: of 1,536 one is beyond 5 once in a thousand runs; their mean square is 1 up to noise.
    Elements of one gradient share what they are computed from, so that the mean square varies by
    more than its number says: by 0.1, of which there are five here."""
    torch.manual_seed(0)
    layer, shape, out = LAYERS[kind]()
    x = torch.randn(shape)
    x = (x.relu() if relu else x).requires_grad_()
    errors, _, _ = bias_in_standard_errors(layer, x, torch.randn(out), bits=bits)
    assert errors.abs().max() < 5.5
    assert 0.5 < errors.square().mean() < 1.5


def test_rounding_to_the_nearest_is_not():
    """The check above can fail: four levels for positive numbers are far from them on average."""
    torch.manual_seed(0)
    layer, shape, out = LAYERS["linear"]()
    x = (torch.rand(shape) ** 3).requires_grad_()
    how = {"bits": 2, "rounding": "nearest", "group": 512}
    found = next(weight_gradients(layer, x, torch.ones(out), **how))
    layer.zero_grad()
    layer(x).backward(torch.ones(out))
    bias = (found - layer.weight.grad).sum() / layer.weight.grad.sum()
    assert abs(bias) > 0.02
    means = [g.sum() for g in weight_gradients(layer, x, torch.ones(out), bits=2, group=512)]
    layer.zero_grad()
    layer(x).backward(torch.ones(out))
    unbiased = torch.stack(means).mean() / layer.weight.grad.sum() - 1
    assert abs(unbiased) < 0.01


def test_gradients_of_inputs_are_exact():
    """A linear layer's needs the weight, which is a parameter."""
    layer = nn.Linear(64, 64)
    x = torch.randn(128, 64, requires_grad=True)
    plain = torch.autograd.grad(layer(x).square().sum(), x)
    with sg.saved_tensors(bits=2, seed=1):
        y = layer(x)
    found = torch.autograd.grad(y.square().sum(), x)
    assert torch.equal(plain[0], found[0])


def test_relu_is_open_where_it_was():
    """At any width: its backward asks for the sign of what it kept."""
    x = torch.randn(100, 1000, requires_grad=True)
    grad = torch.randn(100, 1000)
    plain = torch.autograd.grad((x * 1).relu(), x, grad)
    for bits in (8, 4, 2):
        with sg.saved_tensors(bits=bits, seed=1) as keeping:
            y = (x * 1).relu()
        assert torch.equal(torch.autograd.grad(y, x, grad)[0], plain[0])
        assert keeping.tally.packed == 1
