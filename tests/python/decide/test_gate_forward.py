"""The gate's forward: the identity, on the same memory."""

import pytest
import torch
from apply_samples import DTYPES, gradient, layouts, same, with_specials
from gate_samples import state
from plan_fields import Plan

import slimgrad as sg

ops = torch.ops.slimgrad


@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_is_the_same_memory(dtype):
    for name, x in layouts(dtype).items():
        x = x.detach().requires_grad_()
        plan, stats = state(sg.Prune(0.5))
        y = ops.gradient_gate(x, plan, stats, 0)
        assert y.data_ptr() == x.data_ptr() and y.stride() == x.stride(), name
        assert y.requires_grad and y.grad_fn is not None
        assert plan[Plan.CALLS] == 0


def test_forward_passes_nan_and_inf():
    x = with_specials(gradient((100,))).requires_grad_()
    assert same(ops.gradient_gate(x, *state(sg.Prune(0.5)), 0).detach(), x.detach())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    plan, stats = state(sg.Prune(0.5))
    with mode():
        y = ops.gradient_gate(torch.ones(5, requires_grad=True), plan, stats, 0)
    assert not y.requires_grad and torch.equal(y, torch.ones(5))
    assert plan[Plan.CALLS] == 0


def test_an_input_that_needs_no_gradient():
    assert not ops.gradient_gate(torch.ones(5), *state(sg.Prune(0.5)), 0).requires_grad


def test_in_place_after_the_gate():
    """Models write relu_(conv(x))."""
    x = gradient((64, 64)).requires_grad_()
    y = ops.gradient_gate(x * 1, *state(), 0).relu_()
    y.sum().backward()
    assert torch.equal(x.grad, (x > 0).float())


def test_in_place_after_the_gate_is_noticed_by_autograd():
    """exp keeps its result for backward: writing over it must raise, as it does without a gate."""
    x = gradient((64, 64)).requires_grad_()
    y = ops.gradient_gate(x.exp(), *state(), 0)
    y.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
