"""nn.Linear and nn.Conv2d in use: types, special values, frozen parts, copies, compiling."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from gate_samples import lognormal
from sparse_samples import (
    ALWAYS,
    any_size,
    assert_close,
    backward,
    dense_gradients,
    gates,
    pair,
    pruned,
)
from torch import nn

import slimgrad as sg
from slimgrad.plan import Plan, layer_report

pytestmark = pytest.mark.usefixtures("one_thread")

ops = torch.ops.slimgrad
LAYERS = {
    "linear": (sg.nn.Linear, (24, 40), (50, 24), (50, 40)),
    "conv": (sg.nn.Conv2d, (8, 12, 3), (2, 8, 9, 10), (2, 12, 7, 8)),
}
each_layer = pytest.mark.parametrize(
    ("kind", "arguments", "shape", "out"), LAYERS.values(), ids=LAYERS
)


def calls(layer):
    return {name: int(gate.plan[Plan.CALLS]) for name, gate in gates(layer).items()}


# ---- types and values ----------------------------------------------------------------------------


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


# ---- graphs --------------------------------------------------------------------------------------


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
    before = copy.deepcopy(ours.state_dict())
    x = torch.randn(shape)
    with context():
        y = ours(x)
        assert torch.equal(y, plain(x)) and not y.requires_grad
    assert all(torch.equal(v, before[k]) for k, v in ours.state_dict().items())


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


# ---- copies --------------------------------------------------------------------------------------


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


# ---- compiling -----------------------------------------------------------------------------------


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = sg.nn.Conv2d(3, 8, 3, padding=1, gradients=ALWAYS, seed=1)
        self.circular = sg.nn.Conv2d(
            8, 8, 3, padding=1, padding_mode="circular", stride=2, gradients=ALWAYS, seed=2
        )
        self.head = sg.nn.Linear(8, 16, gradients=ALWAYS, seed=3)

    def forward(self, x):
        x = self.circular(F.relu(self.conv(x)))
        return self.head(x.flatten(2).transpose(1, 2))


def small():
    torch.manual_seed(0)
    model = Small()
    for layer in model.children():
        any_size(layer)
    return model


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    torch._dynamo.reset()
    eager, other = small(), small()
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for size in (4, 4, 6) if dynamic else (4, 4):
        x = torch.randn(size, 3, 8, 8, generator=torch.Generator().manual_seed(size))
        for f in (eager, compiled):
            f(x).square().sum().backward()
    for (name, a), b in zip(eager.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-4 * float(a.grad.abs().max())), (
            name
        )
    for a, b in zip(eager.children(), other.children(), strict=True):
        assert calls(a) == calls(b)


def test_compile_with_inductor():
    """One layer of each kind, for batches of any size."""
    torch._dynamo.reset()
    models = [
        nn.Sequential(pair(sg.nn.Conv2d, 3, 8, 3)[1], nn.Flatten(), pair(sg.nn.Linear, 288, 5)[1])
        for _ in range(2)
    ]
    compiled = torch.compile(models[1], fullgraph=True, dynamic=True)
    for size in (4, 6):
        x, grad = torch.randn(size, 3, 8, 8), lognormal((size, 5))
        for f in (models[0], compiled):
            f(x).backward(grad)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-5, atol=1e-5 * float(a.grad.abs().max()))
    assert calls(models[0][2]) == calls(models[1][2]) == {"weight": 2, "input": 2}


def state_tensors(layer):
    return [t.clone() for t in layer.slimgrad_sparse.tensors()]


@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, False), (True, False, True)])
def test_opcheck_linear(wanted):
    _, layer = pair(sg.nn.Linear, 8, 12)
    x, weight, bias = torch.randn(6, 8), layer.weight.detach(), layer.bias.detach()
    arguments = (torch.randn(6, 12), x, weight, wanted, *state_tensors(layer), 0)
    torch.library.opcheck(ops.sparse_linear_backward.default, arguments)
    for bias_or_none in (bias, None):
        arguments = (x.requires_grad_(), weight.requires_grad_(), bias_or_none)
        torch.library.opcheck(ops.sparse_linear.default, (*arguments, *state_tensors(layer), 0))


@pytest.mark.parametrize("always", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("x_layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("weight_layout", [torch.contiguous_format, torch.channels_last])
def test_opcheck_convolution(x_layout, weight_layout, always):
    gradients = ALWAYS if always else sg.Prune(weight=0.0, input=0.0)
    _, layer = pair(sg.nn.Conv2d, 4, 6, 3, gradients=gradients)
    x = torch.randn(2, 4, 7, 8).to(memory_format=x_layout)
    weight = layer.weight.detach().to(memory_format=weight_layout)
    how = ([1, 1], [1, 0], [1, 1], 1)
    grad = torch.randn(2, 6, 7, 6).to(memory_format=x_layout)
    arguments = (grad, x, weight, *how, (True, True, True), *state_tensors(layer), 0)
    torch.library.opcheck(ops.sparse_conv2d_backward.default, arguments)
    arguments = (x.requires_grad_(), weight.requires_grad_(), layer.bias.detach(), *how)
    torch.library.opcheck(ops.sparse_conv2d.default, (*arguments, *state_tensors(layer), 0))


# ---- misuse --------------------------------------------------------------------------------------


def test_wrong_settings():
    for wrong in (0.5, "fp6", sg.Quantize(6)):
        with pytest.raises(ValueError, match=r"expected gradients to be a slimgrad\.Prune"):
            sg.nn.Linear(3, 3, gradients=wrong)
    with pytest.raises(ValueError, match="sparse_backward=True"):
        sg.nn.Conv2d(3, 3, 1, gradients=sg.Prune(0.5))


@pytest.mark.parametrize("index", range(5))
def test_wrong_state(index):
    _, layer = pair(sg.nn.Linear, 8, 12)
    state = state_tensors(layer)
    for spoiled in (state[index][:-1].clone(), state[index].float()):
        arguments = [*state[:index], spoiled, *state[index + 1 :]]
        with pytest.raises(ValueError, match="contiguous float64"):
            ops.sparse_linear_backward(
                torch.randn(6, 12), torch.randn(6, 8), layer.weight.detach(), [True] * 3,
                *arguments, 0,
            )  # fmt: skip


def test_sizes_that_do_not_belong_together():
    _, layer = pair(sg.nn.Linear, 8, 12)
    weight, wanted, state = layer.weight.detach(), [True] * 3, state_tensors(layer)
    for grad, x in [((6, 11), (6, 8)), ((5, 12), (6, 8)), ((6, 12), (6, 9)), ((12,), (8,))]:
        with pytest.raises(ValueError, match="expected grad, x and weight"):
            ops.sparse_linear_backward(torch.randn(grad), torch.randn(x), weight, wanted, *state, 0)
    _, layer = pair(sg.nn.Conv2d, 4, 6, 3)
    with pytest.raises(ValueError, match="size that the convolution gives"):
        ops.sparse_conv2d_backward(
            torch.randn(2, 6, 6, 6), torch.randn(2, 4, 7, 7), layer.weight.detach(),
            [1, 1], [0, 0], [1, 1], 1, wanted, *state_tensors(layer), 0,
        )  # fmt: skip
