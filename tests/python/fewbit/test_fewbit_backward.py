"""Few-bit backward: the golden tables through the layers, whose memory it writes to, and what a
second backward gets."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import slimgrad as sg
import slimgrad.functional as S

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "fewbit.json").read_text())
CALLS = {
    "gelu_erf": (S.gelu, F.gelu),
    "gelu_tanh": (
        lambda x, **table: S.gelu(x, "tanh", **table),
        lambda x: F.gelu(x, approximate="tanh"),
    ),
    "silu": (S.silu, F.silu),
    "sigmoid": (S.sigmoid, torch.sigmoid),
    "tanh": (S.tanh, torch.tanh),
    "selu": (S.selu, F.selu),
    "elu": (S.elu, F.elu),
    "celu": (S.celu, F.celu),
    "softplus": (S.softplus, F.softplus),
    "mish": (S.mish, F.mish),
    "hardswish": (S.hardswish, F.hardswish),
    "logsigmoid": (S.logsigmoid, F.logsigmoid),
    "softsign": (S.softsign, F.softsign),
    "tanhshrink": (S.tanhshrink, F.tanhshrink),
}


def golden_error(name: str, weight: str, bits: int) -> float:
    measure = {"uniform": "uniform_[-10,10]", "normal": "normal"}[weight]
    tables = GOLDEN["activations"][name]
    if f"{measure}_even" in tables:  # the layers fold an even derivative to |x|
        return tables[f"{measure}_even"][str(bits)]["error_two_sided"]
    return tables[measure][str(bits)]["error"]


@pytest.mark.parametrize("weight", ["uniform", "normal"])
@pytest.mark.parametrize("name", CALLS)
def test_layers_have_the_error_of_the_golden_tables(name, weight):
    """The integral of (f' - q)^2 w, with q read off the layer's own gradient. An optimum may have
    an equally good mirror image, so errors are compared and not borders."""
    ours, torchs = CALLS[name]
    cell = 20 / 2**17
    x = (torch.arange(2**17, dtype=torch.float64) + 0.5) * cell - 10
    w = torch.ones_like(x) if weight == "uniform" else torch.exp(-x * x / 2) / (2 * torch.pi) ** 0.5
    wide = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(torchs(wide).sum(), wide)
    single = x.float().requires_grad_()
    for bits in range(1, 5):
        y = ours(single, bits=bits, interval=(-10, 10), weight=weight)
        (q,) = torch.autograd.grad(y, single, torch.ones_like(y))
        assert len(q.unique()) <= 2**bits
        error = ((slope - q.double()).square() * w).sum().item() * cell
        assert error == pytest.approx(golden_error(name, weight, bits), rel=2e-3)


# ---- whose memory ------------------------------------------------------------------------------


class Give(torch.autograd.Function):
    """A loss whose gradient is the tensor that it is given."""

    @staticmethod
    def forward(ctx, y, gradient):
        ctx.save_for_backward(gradient)
        return y.new_zeros(())

    @staticmethod
    def backward(ctx, _):
        return ctx.saved_tensors[0], None


CODED = {
    "steps": S.gelu,
    "exact": lambda x: S.gelu(x, bits="exact"),
    "piecewise constant": S.relu,
}


@pytest.mark.parametrize("call", CODED.values(), ids=CODED)
def test_a_gradient_that_nobody_holds_is_overwritten(call):
    x = torch.randn(33, 77, requires_grad=True)
    factor = torch.randn(33, 77)
    (expected,) = torch.autograd.grad(call(x), x, factor)
    loss = (call(x) * factor).sum()  # the gradient of the product belongs to backward alone
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        (result,) = torch.autograd.grad(loss, x)
    ours = {event.name for event in profile.events() if event.name.startswith("slimgrad::")}
    assert len(ours) == 1 and ours.pop().endswith("backward_")  # the one that works in place
    assert torch.equal(result, expected)


@pytest.mark.parametrize("call", CODED.values(), ids=CODED)
def test_a_gradient_that_somebody_holds_stays(call):
    x = torch.randn(3000, requires_grad=True)
    gradient = torch.randn(3000)
    (expected,) = torch.autograd.grad(call(x), x, gradient)
    copy = gradient.clone()
    # By the caller, or by whoever made it.
    (result,) = torch.autograd.grad(call(x), x, gradient)
    assert torch.equal(gradient, copy) and torch.equal(result, expected)
    # By a hook.
    held = []
    y = call(x)
    y.register_hook(held.append)
    (result,) = torch.autograd.grad(Give.apply(y, gradient), x)
    assert torch.equal(held[0], copy) and torch.equal(result, expected)
    # By a hook on the node itself.
    y = call(x)
    y.grad_fn.register_hook(lambda _, outer: held.append(outer[0]))
    (result,) = torch.autograd.grad(Give.apply(y, gradient), x)
    assert torch.equal(held[1], copy) and torch.equal(result, expected)
    # As the gradient of the output.
    y = call(x)
    y.retain_grad()
    Give.apply(y, gradient).backward()
    assert torch.equal(y.grad, copy) and torch.equal(x.grad, expected)
    # By a tensor that shares its memory.
    shared = gradient.clone()
    (result,) = torch.autograd.grad(Give.apply(call(x), shared.view(3000)), x)
    assert torch.equal(shared, copy) and torch.equal(result, expected)
    # By another consumer: both summands get the same gradient.
    other = torch.randn(3000, requires_grad=True)
    results = torch.autograd.grad(Give.apply(call(x) + call(other), gradient), (x, other))
    (wanted,) = torch.autograd.grad(call(other), other, gradient)
    assert torch.equal(results[0], expected) and torch.equal(results[1], wanted)


def test_backward_twice_over_a_kept_graph_gives_the_same():
    x = torch.randn(3000, requires_grad=True)
    for call in CODED.values():
        loss = (call(x) * torch.randn(3000)).sum()
        first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
        assert torch.equal(first, second)


# ---- a second backward -------------------------------------------------------------------------

TABLE = sg.steps(torch.sin, bits=2)
RAISING = {
    "stepwise": lambda x: S.stepwise(x, torch.sin, TABLE),
    "dropout": lambda x: S.dropout(x, 0.5),
    "prelu": lambda x: S.prelu(x, torch.tensor([0.25])),
}


@pytest.mark.parametrize("call", RAISING.values(), ids=RAISING)
@pytest.mark.parametrize("outer", [torch.sum, lambda y: y.square().sum()], ids=["sum", "square"])
def test_second_backward_raises(call, outer):
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    (first,) = torch.autograd.grad(outer(call(x)), x, create_graph=True)
    with pytest.raises(RuntimeError, match="at most one backward"):
        torch.autograd.grad(first.square().sum(), x)


def test_second_backward_of_max_pool_is_torchs():
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    results = []
    for pool in (S.max_pool2d, F.max_pool2d):
        (first,) = torch.autograd.grad(pool(x, 2).pow(3).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), x)[0])
    assert results[1].abs().sum() > 0
    torch.testing.assert_close(results[0], results[1])
