"""The gate's ops under opcheck, as shapes alone, and compiled."""

import pytest
import torch
from apply_samples import gradient, layouts
from gate_samples import SETTINGS, lognormal, state
from plan_fields import Plan

import slimgrad as sg

ops = torch.ops.slimgrad


@pytest.mark.parametrize(
    "op", ["compress_gradient", "compress_gradient_", "_compress_gradient_aten"]
)
@pytest.mark.parametrize("name", ["prune", "fp4", "prune and fp6"])
def test_opcheck(op, name):
    for layout in ["contiguous", "channels_last"]:
        arguments = (layouts()[layout], *state(*SETTINGS[name]), 0)
        torch.library.opcheck(getattr(ops, op).default, arguments)


def test_opcheck_of_the_gate():
    for x in [gradient((64, 32)), gradient((64, 32)).requires_grad_()]:
        arguments = (x, *state(sg.Prune(0.8)), 0)
        torch.library.opcheck(ops.gradient_gate.default, arguments)


def test_opcheck_across_layers():
    states = [state(sg.Prune(0.8), sg.Quantize(6, scale=sg.LossScale(1e30))) for _ in range(2)]
    for seed, (plan, stats) in enumerate(states):
        ops.compress_gradient(lognormal((100, 100), sigma=1 + seed), plan, stats, 0)
    plans, stats = zip(*states, strict=True)
    arguments = (list(plans), list(stats), "min_cosine", "empirical", 0.98)
    torch.library.opcheck(ops.allocate_plans_.default, arguments)
    torch.library.opcheck(ops.update_loss_scale_.default, (list(plans), list(stats), 3))


def test_meta_has_the_strides_of_the_result():
    for grad in layouts().values():
        y = ops.compress_gradient(grad, *state(sg.Prune(0.5)), 0)
        meta = torch.empty_strided(grad.shape, grad.stride(), device="meta")
        assert ops.compress_gradient(meta, *state(sg.Prune(0.5)), 0).stride() == y.stride()
    sliced = torch.randn(8, 6, 4).permute(2, 0, 1)[:, ::2]
    meta = torch.empty_strided(sliced.shape, sliced.stride(), device="meta")
    y = ops.compress_gradient(sliced, *state(sg.Prune(0.5)), 0)
    assert ops.compress_gradient(meta, *state(sg.Prune(0.5)), 0).stride() == y.stride()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend):
    """The same gradients and the same state, to the bit."""
    weight = lognormal((100, 100))

    def step(x, plan, stats):
        y = ops.gradient_gate(x * 2, plan, stats, 0)
        return (torch.relu(y) * weight).sum()

    results = []
    for f in (step, torch.compile(step, fullgraph=True, backend=backend)):
        plan, stats = state(sg.Prune(0.8), sg.Quantize(6))
        x = lognormal((100, 100), seed=1).requires_grad_()
        for _ in range(3):
            f(x, plan, stats).backward()
        assert plan[Plan.CALLS] == 3
        results.append((x.grad, plan, stats))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
