"""Layers with a sparse backward pass frozen, called twice, without gradients, copied."""

import copy
import io
import pickle

import pytest
import torch
from gate_samples import lognormal
from sparse_samples import (
    assert_close,
    backward,
    calls,
    dense_gradients,
    each_layer,
    gates,
    pair,
    pruned,
)

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("frozen", [("weight",), ("bias",), ("input",), ("weight", "bias")])
@each_layer
def test_frozen(kind, arguments, shape, out, frozen):
    plain, ours = pair(kind, *arguments)
    for name in frozen:
        if name != "input":
            getattr(ours, name).requires_grad_(False)
    x, grad = torch.randn(shape).requires_grad_("input" not in frozen), lognormal(out)
    ours(x).backward(grad)
    got = {"input": x.grad, "weight": ours.weight.grad, "bias": ours.bias.grad}
    assert {name for name in got if got[name] is None} == set(frozen)
    assert calls(ours) == {name: int(name not in frozen) for name in ("weight", "input")}
    used = {name: pruned(grad, g) if calls(ours)[name] else grad for name, g in gates(ours).items()}
    want = dense_gradients(plain, x, used["input"], used["weight"])
    assert_close(
        {n: g for n, g in got.items() if n not in frozen},
        {n: g for n, g in want.items() if n not in frozen},
    )


def test_wholly_frozen():
    _, ours = pair(sg.nn.Linear, 8, 8)
    ours.requires_grad_(False)
    assert not ours(torch.randn(4, 8)).requires_grad


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@each_layer
def test_without_gradients(kind, arguments, shape, out, context):
    plain, ours = pair(kind, *arguments)
    before = sg.state_dict(ours)
    x = torch.randn(shape)
    with context():
        y = ours(x)
        assert torch.equal(y, plain(x)) and not y.requires_grad
    assert all(torch.equal(v, before[k]) for k, v in sg.state_dict(ours).items())


def test_called_twice():
    """Each call is a pass of its own, with its own draw."""
    plain, ours = pair(sg.nn.Linear, 24, 40)
    x, grad = torch.randn(2, 50, 24, requires_grad=True), lognormal((50, 40))
    torch.autograd.backward([ours(x[0]), ours(x[1])], [grad, grad])
    assert calls(ours) == {"weight": 2, "input": 2}
    # Backward runs through the last call first; both passes found the same threshold.
    for_input, for_weight = (
        [pruned(grad, gates(ours)[name], call=c) for c in (1, 0)] for name in ("input", "weight")
    )
    wants = [dense_gradients(plain, x[i], for_input[i], for_weight[i]) for i in (0, 1)]
    got = {"weight": ours.weight.grad, "bias": ours.bias.grad}
    assert_close(got, {name: wants[0][name] + wants[1][name] for name in got}, 0.02)
    assert not torch.equal(x.grad[0], x.grad[1])


def test_gradient_accumulation():
    x, grad = torch.randn(2, 50, 24), lognormal((2, 50, 40))
    _, ours = pair(sg.nn.Linear, 24, 40)
    for i in (0, 1):
        ours(x[i]).backward(grad[i])
    _, again = pair(sg.nn.Linear, 24, 40)
    parts = [backward(again, x[i], grad[i])["weight"].clone() for i in (0, 1)]
    assert torch.equal(ours.weight.grad, parts[0] + parts[1])


def test_the_incoming_gradient_is_not_changed():
    _, ours = pair(sg.nn.Linear, 24, 40)
    grad = lognormal((50, 40))
    before = grad.clone()
    y = ours(torch.randn(50, 24))
    y.retain_grad()
    y.backward(grad)
    assert torch.equal(grad, before) and torch.equal(y.grad, before)


@each_layer
def test_double_backward_raises(kind, arguments, shape, out):
    _, ours = pair(kind, *arguments)
    x = torch.randn(shape, requires_grad=True)
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(ours(x).square().sum(), x, create_graph=True)


def test_a_weight_changed_after_forward_raises():
    _, ours = pair(sg.nn.Linear, 24, 40)
    y = ours(torch.randn(50, 24, requires_grad=True))
    with torch.no_grad():
        ours.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def saved_and_loaded(layer):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), saved_and_loaded]
)
@each_layer
def test_copies(kind, arguments, shape, out, duplicate):
    _, ours = pair(kind, *arguments)
    x, grad = torch.randn(shape), lognormal(out)
    backward(ours, x, grad)
    twin = duplicate(ours)
    want, got = backward(ours, x, grad), backward(twin, x, grad)
    assert type(twin) is kind and all(torch.equal(got[name], want[name]) for name in want)
    assert calls(ours) == calls(twin) == {"weight": 2, "input": 2}


def test_state_keeps_its_type():
    _, ours = pair(sg.nn.Linear, 24, 40, seed=(1 << 63) + 12345)
    before = [t.clone() for t in ours.slimgrad_sparse.tensors()]
    ours.bfloat16().half().float()
    for now, then in zip(ours.slimgrad_sparse.tensors(), before, strict=True):
        assert now.dtype == torch.float64 and torch.equal(now, then)
