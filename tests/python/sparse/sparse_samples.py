"""What the tests of the sparse backward pass share: layers beside torch's own, and the gradient
that each of their products used."""

import pytest
import torch
from gate_samples import draw_seed
from plan_fields import Plan
from torch import nn

import slimgrad as sg

ALWAYS = sg.Prune(weight=0.8, input=0.7, sparse_backward="always")
PLAIN = {sg.nn.Linear: nn.Linear, sg.nn.Conv2d: nn.Conv2d}
LAYERS = {
    "linear": (sg.nn.Linear, (24, 40), (50, 24), (50, 40)),
    "conv": (sg.nn.Conv2d, (8, 12, 3), (2, 8, 9, 10), (2, 12, 7, 8)),
}
each_layer = pytest.mark.parametrize(
    ("kind", "arguments", "shape", "out"), LAYERS.values(), ids=LAYERS
)


def any_size(layer):
    """Makes the layer prune small gradients too."""
    for gate in gates(layer).values():
        gate.plan[Plan.MIN_ELEMENTS] = 0
    return layer


def gates(layer):
    return {"weight": layer.slimgrad_sparse.weight, "input": layer.slimgrad_sparse.input}


def calls(layer):
    return {name: int(gate.plan[Plan.CALLS]) for name, gate in gates(layer).items()}


def pair(kind, *arguments, gradients=ALWAYS, seed=1, **options):
    """A layer of torch and ours, with the same parameters."""
    torch.manual_seed(0)
    plain = PLAIN[kind](*arguments, **options)
    ours = any_size(kind(*arguments, gradients=gradients, seed=seed, **options))
    ours.load_state_dict(plain.state_dict())
    return plain, ours


def backward(layer, x, grad):
    """The gradients of x and the parameters, by name."""
    layer.zero_grad()
    x = x.detach().requires_grad_()
    layer(x).backward(grad)
    return {"input": x.grad} | {n: p.grad for n, p in layer.named_parameters()}


def pruned(grad, gate, call=0):
    """The gradient as backward pass number ``call``, the last one, pruned it for a product: draws
    are numbered in the order of its memory, channels last or first."""
    last = grad.dim() == 4 and grad.is_contiguous(memory_format=torch.channels_last)
    rows = grad.movedim(1, -1) if last else grad
    seed = draw_seed(gate.plan, call)
    rows = sg.prune(rows.contiguous(), float(gate.plan[Plan.THRESHOLD]), seed=seed)
    return rows.movedim(-1, 1) if last else rows


def dense_gradients(plain, x, for_input, for_weight):
    """In float64, of gradients that may differ for the two products."""
    plain, x = plain.double(), x.detach().double().requires_grad_()
    y = plain(x)
    names, parameters = zip(*plain.named_parameters(), strict=True)
    grads = torch.autograd.grad(y, parameters, for_weight.double(), retain_graph=True)
    dx = torch.autograd.grad(y, x, for_input.double())[0]
    return {"input": dx} | dict(zip(names, grads, strict=True))


def assert_close(got, want, rounding=2e-6):
    """To some units in the last place of the largest value: sums differ in their order."""
    assert got.keys() == want.keys()
    for name in got:
        assert got[name].shape == want[name].shape
        error = (got[name].double() - want[name]).abs().max()
        assert error <= rounding * want[name].abs().max(), name


def set_break_even(layer, product, sparsity):
    """As if the model had found it."""
    row = layer.slimgrad_sparse.choice[2:].view(2, -1)[("weight", "input").index(product)]
    row[1], row[2] = 1, sparsity  # ChoiceField in src/torch/sparse/product_choice.h
