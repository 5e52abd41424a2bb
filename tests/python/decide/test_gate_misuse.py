"""What the gate's ops refuse."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gate_samples import lognormal, state
from plan_fields import Plan

import slimgrad as sg

ops = torch.ops.slimgrad


def test_double_backward_raises():
    x = lognormal((100, 100)).requires_grad_()
    y = ops.gradient_gate(x, *state(sg.Prune(0.8)), 0)
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad((y * y).sum(), x, create_graph=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float64, torch.complex64])
def test_other_types(dtype):
    x = torch.ones(5).to(dtype)
    for op in (ops.gradient_gate, ops.compress_gradient, ops.compress_gradient_):
        with pytest.raises(ValueError, match="expected x of type float32, bfloat16 or float16"):
            op(x, *state(sg.Prune(0.5)), 0)


@pytest.mark.parametrize("op", [ops.compress_gradient, ops.compress_gradient_])
def test_no_derivative(op):
    with pytest.raises(ValueError, match="does not require a gradient"):
        op(lognormal((100,)).requires_grad_(), *state(sg.Prune(0.5)), 0)


def test_in_place_needs_a_dense_tensor():
    with pytest.raises(ValueError, match="without gaps or overlaps"):
        ops.compress_gradient_(lognormal((10, 20))[:, ::2], *state(sg.Prune(0.5)), 0)


BUFFERS = {
    "short": lambda t: t[:-1].clone(),
    "float32": lambda t: t.float(),
    "gaps": lambda t: torch.stack([t, t], 1)[:, 0],
    "meta": lambda t: t.to("meta"),  # for any other device
}


@pytest.mark.parametrize("spoil", BUFFERS.values(), ids=BUFFERS.keys())
@pytest.mark.parametrize("which", ["plan", "stats"])
def test_bad_buffers(which, spoil):
    grad = lognormal((100, 100))
    plan, stats = state(sg.Prune(0.5))
    if which == "plan":
        plan = spoil(plan)
    else:
        stats = spoil(stats)
    for op in (ops.compress_gradient, ops.compress_gradient_):
        with pytest.raises(ValueError, match=f"expected {which} as a contiguous float64"):
            op(grad.clone(), plan, stats, 0)
    x = torch.zeros(100, 100, requires_grad=True)
    with pytest.raises(ValueError, match=f"expected {which} as a contiguous float64"):
        (ops.gradient_gate(x, plan, stats, 0) * grad).sum().backward()


@pytest.mark.parametrize("spoil", BUFFERS.values(), ids=BUFFERS.keys())
@pytest.mark.parametrize("which", ["plan", "stats"])
def test_bad_buffers_across_layers(which, spoil):
    plan, stats = state(sg.Prune(0.5), sg.Quantize(6, scale=sg.LossScale()))
    ops.compress_gradient(lognormal((100, 100)), plan, stats, 0)
    if which == "plan":
        plan = spoil(plan)
    else:
        stats = spoil(stats)
    with pytest.raises(ValueError, match=which):
        ops.allocate_plans_([plan], [stats], "min_cosine", "empirical", 0.98)
    with pytest.raises(ValueError, match=which):
        ops.update_loss_scale_([plan], [stats], 3)


def test_misuse_across_layers():
    plan, stats = state(sg.Prune(0.5))
    ops.compress_gradient(lognormal((100, 100)), plan, stats, 0)
    no_target = plan.clone()
    no_target[Plan.TARGET] = float("nan")
    for wrong in [
        ([plan, plan], [stats], "min_cosine", "empirical", 0.98),
        ([no_target], [stats], "min_cosine", "empirical", 0.98),
        ([plan], [stats], "best", "empirical", 0.98),
        ([plan], [stats], "min_cosine", "guess", 0.98),
        ([plan], [stats], "min_cosine", "empirical", float("nan")),
    ]:
        with pytest.raises(ValueError):
            ops.allocate_plans_(*wrong)
    with pytest.raises(ValueError, match="growth_interval"):
        ops.update_loss_scale_([plan], [stats], 0)


NAN = float("nan")


@pytest.mark.parametrize(
    "fields",
    [
        {"PRUNE": 4},
        {"PRUNE": 0.5},
        {"PRUNE": NAN},
        {"SPARSITY": 1},
        {"SPARSITY": -0.1},
        {"SPARSITY": NAN},
        {"METHOD": 5},
        {"EXPONENT_BITS": 9},
        {"SCALE_METHOD": 3},
        {"ROUNDING": 2},
        {"UNDERFLOW": -1},
        {"SAMPLE_SIZE": 0},
        {"SAMPLE_SIZE": NAN},
        {"DUE": 0.5},
        {"ALLOCATION": 6},
        {"DYNAMIC_SCALE": 2},
        {"TARGET": 1},
        {"ASKED_SCALE": -1},
        {"CALLS": NAN},
        {"CALLS": -1},
        {"SEED_LOW": -1},
        {"SEED_HIGH": NAN},
        {"REFRESH_EVERY": NAN},
        {"FIXED_SCALE": NAN},
        {"THRESHOLD": NAN, "DUE": 0, "REFRESH_EVERY": 0},
        {"THRESHOLD": -1, "DUE": 0, "REFRESH_EVERY": 0},
    ],
    ids=str,
)
def test_bad_values_in_the_plan(fields):
    plan, stats = state(sg.Prune(0.5), sg.Quantize(6), **fields)
    before = plan.clone()
    with pytest.raises(ValueError):
        ops.compress_gradient(lognormal((100, 100)), plan, stats, 0)
    assert torch.equal(plan.nan_to_num(), before.nan_to_num()) and not stats.any()


def test_numbers_of_bits_that_no_format_has():
    """In a process of its own: a table without such a row must not be read."""
    code = """
import torch, slimgrad as sg
from gate_samples import lognormal, state
for bits in (9, 50, 1, -3, float("nan")):
    plan, stats = state(sg.Quantize(8), BITS=bits)
    try:
        torch.ops.slimgrad.compress_gradient(lognormal((100, 100)), plan, stats, 0)
    except ValueError as error:
        print("refused:", error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.count("refused") == 5, done.stderr
