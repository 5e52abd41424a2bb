"""The gate works in place where nobody else holds the gradient, and only there."""

import pytest
import torch
from apply_samples import same
from gate_samples import as_planned, backward, lognormal, state
from plan_fields import Plan

import slimgrad as sg

ops = torch.ops.slimgrad


def ops_called(run):
    """The names of slimgrad's ops that run() calls."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return [event.name for event in profile.events() if event.name.startswith("slimgrad::")]


def test_a_gradient_nobody_holds_is_worked_on_in_place():
    x = torch.zeros(100, 100, requires_grad=True)
    y = ops.gradient_gate(x, *state(sg.Prune(0.8)), 0)
    loss = (y * lognormal((100, 100))).sum()
    assert ops_called(loss.backward) == ["slimgrad::compress_gradient_"]


def test_a_layer_behind_a_relu_works_in_place():
    """The case that matters for speed: layer, gate, activation, layer, gate."""
    x = torch.zeros(100, 100, requires_grad=True)
    a, b = torch.nn.Linear(100, 100), torch.nn.Linear(100, 100)
    y = torch.relu(ops.gradient_gate(a(x), *state(sg.Prune(0.8)), 0))
    y = ops.gradient_gate(b(y), *state(sg.Prune(0.8)), 0)
    loss = (y * lognormal((100, 100))).sum()
    assert ops_called(loss.backward) == ["slimgrad::compress_gradient_"] * 2


def test_the_caller_keeps_the_gradient():
    grad = lognormal((100, 100))
    before = grad.clone()
    got = backward(torch.zeros(100, 100), grad, *state(sg.Prune(0.8)))
    assert same(grad, before) and not same(got, grad)
    x = torch.zeros(100, 100, requires_grad=True)
    y = ops.gradient_gate(x, *state(sg.Prune(0.8)), 0)
    torch.autograd.grad(y, x, grad)
    assert same(grad, before)


def test_memory_shared_with_numpy():
    array = lognormal((100, 100)).numpy()
    before = array.copy()
    x = torch.zeros(100, 100, requires_grad=True)
    ops.gradient_gate(x, *state(sg.Prune(0.8)), 0).backward(torch.from_numpy(array))
    assert (array == before).all()


@pytest.mark.parametrize("gates", [(True, True), (True, False), (False, True)])
def test_a_gradient_for_two(gates):
    """Addition hands one gradient tensor to both its operands."""
    a, b = (torch.zeros(100, 100, requires_grad=True) for _ in range(2))
    weight = lognormal((100, 100))
    ends, states = [], []
    for x, gated in zip((a, b), gates, strict=True):
        states.append(state(sg.Prune(0.8)))
        ends.append(ops.gradient_gate(x, *states[-1], 0) if gated else x)
    ((ends[0] + ends[1]) * weight).sum().backward()
    for x, gated, (plan, _) in zip((a, b), gates, states, strict=True):
        assert same(x.grad, as_planned(weight, plan, (sg.Prune(0.8),)) if gated else weight)


def test_retained_gradient():
    x = torch.zeros(100, 100, requires_grad=True)
    weight = lognormal((100, 100))
    y = ops.gradient_gate(x, *state(sg.Prune(0.8)), 0)
    y.retain_grad()
    (y * weight).sum().backward()
    assert same(y.grad, weight) and not same(x.grad, weight)


@pytest.mark.parametrize("keep", [lambda g: g, lambda g: g.view(-1), lambda g: g.detach()])
def test_a_hook_that_keeps_the_gradient(keep):
    kept = []
    x = torch.zeros(100, 100, requires_grad=True)
    weight = lognormal((100, 100))
    y = ops.gradient_gate(x, *state(sg.Prune(0.8)), 0)
    y.register_hook(lambda g: kept.append(keep(g)))
    (y * weight).sum().backward()
    assert same(kept[0].view(100, 100), weight) and not same(x.grad, weight)


def test_a_prehook_of_the_node_that_keeps_the_gradient():
    kept = []
    x = torch.zeros(100, 100, requires_grad=True)
    weight = lognormal((100, 100))
    y = ops.gradient_gate(x, *state(sg.Prune(0.8)), 0)
    y.grad_fn.register_prehook(lambda grads: kept.append(grads[0]))
    (y * weight).sum().backward()
    assert same(kept[0], weight)


def test_a_gradient_that_a_node_keeps():
    """A node may hand out a tensor that it needs again, for a second backward pass."""

    class Source(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(weight)
            return (x * weight).sum()

        @staticmethod
        def backward(ctx, grad):
            return ctx.saved_tensors[0], None

    weight = lognormal((100, 100))
    before = weight.clone()
    x = torch.zeros(100, 100, requires_grad=True)
    y = ops.gradient_gate(x, *state(sg.Prune(0.8)), 0)
    loss = Source.apply(y, weight)
    del weight
    loss.backward(retain_graph=True)
    loss.backward()
    again = torch.zeros(100, 100, requires_grad=True)
    plan, stats = state(sg.Prune(0.8))
    for _ in range(2):
        ops.gradient_gate(again, plan, stats, 0).backward(before)
    assert same(x.grad, again.grad)


def test_a_parameter_that_takes_the_gradient_over():
    """AccumulateGrad steals a gradient that nobody else holds."""
    for order in (0, 1):
        x = torch.zeros(100, 100, requires_grad=True)
        bias = torch.zeros(100, 100, requires_grad=True)
        weight = lognormal((100, 100))
        y = ops.gradient_gate(x * 1, *state(sg.Prune(0.8)), 0)
        ((bias + y if order else y + bias) * weight).sum().backward()
        assert same(bias.grad, weight) and not same(x.grad, weight)


def test_expanded_gradient():
    """sum() sends one number, expanded: not memory to write into."""
    x = torch.zeros(100, 100, requires_grad=True)
    plan, stats = state(sg.Prune(0.8))
    ops.gradient_gate(x, plan, stats, 0).sum().backward()
    assert float((x.grad == 0).float().mean()) == pytest.approx(0.8, abs=0.02)
    assert float(x.grad.mean()) == pytest.approx(1, abs=0.1)


def test_a_view_as_gradient():
    """cat and stack hand out slices of one gradient."""
    xs = [torch.zeros(50, 100, requires_grad=True) for _ in range(2)]
    weight = lognormal((100, 100))
    before = weight.clone()
    plans = [state(sg.Prune(0.8)) for _ in xs]
    gates = [ops.gradient_gate(x, *s, 0) for x, s in zip(xs, plans, strict=True)]
    torch.cat(gates).backward(weight)
    assert same(weight, before)
    for x, (plan, _), half in zip(xs, plans, before.split(50), strict=True):
        assert same(x.grad, as_planned(half.contiguous(), plan, (sg.Prune(0.8),)))


def test_undefined_gradient():
    """A branch of the graph through which no gradient flows."""

    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    x = torch.zeros(100, 100, requires_grad=True)
    plan, stats = state(sg.Prune(0.8))
    Stop.apply(ops.gradient_gate(x, plan, stats, 0)).sum().backward()
    assert x.grad is None and plan[Plan.CALLS] == 0


def test_the_in_place_op_tells_autograd_that_it_wrote():
    grad = lognormal((100,))
    plan, stats = state(sg.Prune(0.8))
    versions = [t._version for t in (grad, plan, stats)]
    ops.compress_gradient_(grad, plan, stats, 0)
    assert all(t._version > v for t, v in zip((grad, plan, stats), versions, strict=True))
