"""The ops behind layers with a sparse backward pass: compiled, checked by torch, misused."""

import pytest
import torch
import torch.nn.functional as F
from gate_samples import lognormal
from sparse_samples import ALWAYS, any_size, calls, pair
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")

ops = torch.ops.slimgrad


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
    arguments = (torch.randn(6, 12), x, weight, wanted, state_tensors(layer), 0)
    torch.library.opcheck(ops.sparse_linear_backward.default, arguments)
    for bias_or_none in (bias, None):
        arguments = (x.requires_grad_(), weight.requires_grad_(), bias_or_none)
        torch.library.opcheck(ops.sparse_linear.default, (*arguments, state_tensors(layer), 0))


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
    arguments = (grad, x, weight, *how, (True, True, True), state_tensors(layer), 0)
    torch.library.opcheck(ops.sparse_conv2d_backward.default, arguments)
    arguments = (x.requires_grad_(), weight.requires_grad_(), layer.bias.detach(), *how)
    torch.library.opcheck(ops.sparse_conv2d.default, (*arguments, state_tensors(layer), 0))


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
                arguments, 0,
            )  # fmt: skip


def test_sizes_that_do_not_belong_together():
    _, layer = pair(sg.nn.Linear, 8, 12)
    weight, wanted, state = layer.weight.detach(), [True] * 3, state_tensors(layer)
    for grad, x in [((6, 11), (6, 8)), ((5, 12), (6, 8)), ((6, 12), (6, 9)), ((12,), (8,))]:
        with pytest.raises(ValueError, match="expected grad, x and weight"):
            ops.sparse_linear_backward(torch.randn(grad), torch.randn(x), weight, wanted, state, 0)
    _, layer = pair(sg.nn.Conv2d, 4, 6, 3)
    with pytest.raises(ValueError, match="size that the convolution gives"):
        ops.sparse_conv2d_backward(
            torch.randn(2, 6, 6, 6), torch.randn(2, 4, 7, 7), layer.weight.detach(),
            [1, 1], [0, 0], [1, 1], 1, wanted, state_tensors(layer), 0,
        )  # fmt: skip
