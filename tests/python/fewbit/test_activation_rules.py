"""What must hold around few-bit activations: closed gates, tails, hooks, the model's own state."""

import pytest
import torch
from torch import nn

import slimgrad as sg

CLOSED = [  # activations with a flat part, a point on it, and their few-bit versions
    (nn.ReLU(), sg.nn.ReLU(), -1.0),
    (nn.ReLU6(), sg.nn.ReLU6(), 7.0),
    (nn.Hardtanh(), sg.nn.Hardtanh(), 2.0),
    (nn.Hardsigmoid(), sg.nn.Hardsigmoid(), -4.0),
    (nn.Hardshrink(), sg.nn.Hardshrink(), 0.1),
    (nn.Softshrink(), sg.nn.Softshrink(), 0.1),
    (nn.Threshold(0.5, 3.0), sg.nn.Threshold(0.5, 3.0), 0.1),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("theirs, ours, x", CLOSED, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("flows", [float("inf"), float("-inf"), float("nan"), 2.0])
def test_nothing_flows_through_a_closed_gate(theirs, ours, x, flows, dtype):
    gradients = []
    for module in (theirs, ours):
        value = torch.full((300,), x, dtype=dtype, requires_grad=True)
        module(value).backward(torch.full((300,), flows, dtype=dtype))
        gradients.append(value.grad)
    assert torch.equal(*gradients)


def test_the_root_of_a_relu():
    x = torch.linspace(-2, 2, 101, requires_grad=True)
    (expected,) = torch.autograd.grad(torch.relu(x).sqrt().sum(), x)
    (found,) = torch.autograd.grad(sg.functional.relu(x).sqrt().sum(), x)
    assert torch.equal(found, expected)


def test_a_sigmoid_before_its_loss_is_left_alone():
    model = nn.Sequential(nn.Linear(1, 1), nn.Sigmoid(), nn.Tanh(), nn.GELU())
    controller = sg.compress(model, activations=3)
    assert type(model[1]) is nn.Sigmoid and type(model[2]) is nn.Tanh
    left = {name: why for name, _, why in controller.activations.left}
    assert "output" in left["1"] and "output" in left["2"]
    controller.remove()
    sg.compress(model, activations=3, include=["1", "3"])
    assert isinstance(model[1], sg.nn.Sigmoid) and type(model[2]) is nn.Tanh

    x = torch.tensor([12.0], requires_grad=True)
    nn.functional.binary_cross_entropy(nn.Sequential(nn.Sigmoid())(x), torch.zeros(1)).backward()
    expected = x.grad.clone()
    converted = nn.Sequential(nn.Sigmoid(), nn.Identity())
    sg.compress(nn.Sequential(converted, nn.ReLU()), activations=3)
    x.grad = None
    nn.functional.binary_cross_entropy(converted(x), torch.zeros(1)).backward()
    assert torch.equal(x.grad, expected)


@pytest.mark.parametrize("kind", [nn.SiLU, nn.Mish])
def test_exact_stays_exact_in_place(kind):
    model = nn.Sequential(nn.Linear(8, 8), kind(inplace=True))
    sg.compress(model, activations="exact")
    assert model[1].bits == "exact"
    x = torch.randn(500, 8)
    model(x).sum().backward()
    found = model[0].weight.grad.clone()
    plain = nn.Sequential(model[0], kind())
    plain.zero_grad()
    plain(x).sum().backward()
    assert torch.allclose(found, plain[0].weight.grad, rtol=1e-3, atol=1e-3)


def test_hooks_of_the_user_stay():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    seen = []
    handle = model[1].register_forward_hook(lambda *_: seen.append("forward"))
    model[1].register_forward_pre_hook(lambda *_: seen.append("before"))
    model[1].register_full_backward_hook(lambda *_: seen.append("backward"))
    controller = sg.compress(model, activations=2)
    assert isinstance(model[1], sg.nn.ReLU)
    model(torch.randn(3, 4)).sum().backward()
    assert seen == ["before", "forward", "backward"]
    handle.remove()  # the handle that the user has
    model(torch.randn(3, 4))
    assert seen[3:] == ["before"]
    controller.remove()
    model(torch.randn(3, 4))
    assert seen[4:] == ["before"]


def test_looking_for_functional_calls_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inputs = torch.randn(2, 3, 8, 8) + 3
    state = torch.random.get_rng_state()
    sg.compress(model, activations=2, inputs=inputs, seed=1)
    assert torch.equal(state, torch.random.get_rng_state())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("bits", [3, "exact"])
def test_forward_mode_is_refused(bits):
    """Its tangents would be dropped."""
    module = sg.nn.GELU(bits=bits)
    x = torch.randn(8)
    with pytest.raises(RuntimeError, match="got forward mode"):
        torch.func.jvp(module, (x,), (torch.ones_like(x),))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match="forward mode"):
        module(torch.autograd.forward_ad.make_dual(x, x))
