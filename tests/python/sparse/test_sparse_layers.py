"""nn.Linear and nn.Conv2d: the forward pass is torch's, both products are those of the pruned
gradient, and they are unbiased."""

import math

import pytest
import torch
from gate_samples import lognormal
from plan_fields import Plan, layer_report, seed_of
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

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")

# Arguments of the layer, and the shape of x.
CONVOLUTIONS = {
    "3x3": ((16, 24, 3), {"padding": 1}, (2, 16, 9, 11)),
    "no bias": ((16, 24, 3), {"bias": False}, (2, 16, 9, 11)),
    "1x1": ((33, 17, 1), {}, (3, 33, 5, 6)),
    "1x1 stride 2": ((8, 40, 1), {"stride": 2}, (2, 8, 9, 10)),
    "stride 2": ((8, 16, 3), {"stride": 2, "padding": 1}, (2, 8, 12, 13)),
    "strides": ((5, 7, (3, 2)), {"stride": (3, 1), "padding": (0, 2)}, (2, 5, 11, 6)),
    "strides beyond the kernel": ((4, 6, 2), {"stride": 3}, (2, 4, 11, 12)),
    "dilation": ((9, 5, 3), {"dilation": (2, 3), "padding": 2}, (2, 9, 10, 12)),
    "dilation and stride": ((4, 6, 3), {"dilation": 2, "stride": 2}, (2, 4, 12, 14)),
    "groups": ((12, 18, 3), {"groups": 3, "padding": 1}, (2, 12, 8, 7)),
    "depthwise": ((10, 20, 3), {"groups": 10, "padding": 1}, (2, 10, 8, 7)),
    "wide padding": ((3, 4, 3), {"padding": (4, 5)}, (2, 3, 3, 2)),
    "same": ((6, 7, 3), {"padding": "same"}, (2, 6, 8, 9)),
    "same, even kernel": ((6, 7, (2, 4)), {"padding": "same"}, (2, 6, 8, 9)),
    "same, dilated": ((6, 7, 3), {"padding": "same", "dilation": 2}, (2, 6, 8, 9)),
    "valid": ((6, 7, 3), {"padding": "valid"}, (2, 6, 8, 9)),
    "circular": ((6, 7, 3), {"padding": (1, 2), "padding_mode": "circular"}, (2, 6, 8, 9)),
    "reflect": ((6, 7, 5), {"padding": 2, "padding_mode": "reflect"}, (2, 6, 8, 9)),
    "replicate": (
        (6, 7, 3),
        {"padding": 1, "padding_mode": "replicate", "stride": 2},
        (1, 6, 8, 9),
    ),
    "same, circular": ((6, 7, 4), {"padding": "same", "padding_mode": "circular"}, (2, 6, 8, 9)),
    "batch of one": ((64, 32, 3), {"padding": 1}, (1, 64, 16, 16)),
    "one pixel": ((16, 8, 1), {}, (1, 16, 1, 1)),
    "one channel": ((1, 1, 3), {"padding": 1}, (2, 1, 6, 6)),
    "rows longer than a band": ((128, 3, 3), {"padding": 1}, (1, 128, 3, 600)),
    "many channels": ((72, 300, 3), {"padding": 1}, (2, 72, 6, 5)),
}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}
LINEARS = {
    "matrix": ((37, 53), {}, (64, 37)),
    "three dimensions": ((64, 96), {}, (4, 16, 64)),
    "four dimensions": ((16, 24), {"bias": False}, (2, 3, 4, 16)),
    "vector": ((40, 30), {}, (40,)),
    "one row": ((64, 128), {}, (1, 64)),
    "one feature": ((1, 1), {}, (50, 1)),
    "wide": ((8, 5000), {}, (3, 8)),
    "many rows": ((16, 8), {}, (5000, 16)),
}


def output_gradient(plain, x, seed=3):
    with torch.no_grad():
        return lognormal(plain(x).shape, seed=seed)


def strides(x):
    """Those that matter: a dimension of size one may have any."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("grad_layout", LAYOUTS.values(), ids=[f"grad {name}" for name in LAYOUTS])
@pytest.mark.parametrize(("arguments", "options", "shape"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolution(arguments, options, shape, grad_layout, layout):
    plain, ours = pair(sg.nn.Conv2d, *arguments, **options)
    plain, ours = plain.to(memory_format=layout), ours.to(memory_format=layout)
    x = torch.randn(shape).to(memory_format=layout)
    y = ours(x)
    assert torch.equal(y, plain(x)) and y.stride() == plain(x).stride()
    grad = output_gradient(plain, x).to(memory_format=grad_layout)
    got = backward(ours, x, grad)
    used = {name: pruned(grad, gate) for name, gate in gates(ours).items()}
    assert strides(got["input"]) == strides(x)
    assert_close(got, dense_gradients(plain, x, used["input"], used["weight"]))


@pytest.mark.parametrize(("arguments", "options", "shape"), LINEARS.values(), ids=LINEARS)
def test_linear(arguments, options, shape):
    plain, ours = pair(sg.nn.Linear, *arguments, **options)
    x = torch.randn(shape)
    assert torch.equal(ours(x), plain(x))
    grad = output_gradient(plain, x)
    got = backward(ours, x, grad)
    rows = grad.reshape(-1, grad.shape[-1])
    used = {name: pruned(rows, gate).view_as(grad) for name, gate in gates(ours).items()}
    assert_close(got, dense_gradients(plain, x, used["input"], used["weight"]))


@pytest.mark.parametrize("sparsity", [0.3, 0.9, 0.99])
def test_sparsities(sparsity):
    gradients = sg.Prune(sparsity, sparse_backward="always")
    plain, ours = pair(sg.nn.Conv2d, 16, 32, 3, gradients=gradients)
    x = torch.randn(4, 16, 12, 12)
    grad = output_gradient(plain, x)
    got = backward(ours, x, grad)
    used = {name: pruned(grad, gate) for name, gate in gates(ours).items()}
    assert_close(got, dense_gradients(plain, x, used["input"], used["weight"]))
    for name, gate in gates(ours).items():
        zeros = float((used[name] == 0).double().mean())
        assert layer_report(gate.plan, gate.stats)["sparsity"] == pytest.approx(zeros)
        assert zeros == pytest.approx(sparsity, abs=0.02)


def test_rows_and_channels_that_are_empty_or_full():
    gradients = sg.Prune(0.5, sparse_backward="always")
    plain, ours = pair(sg.nn.Conv2d, 8, 12, 3, padding=1, gradients=gradients)
    x, grad = torch.randn(2, 8, 9, 9), lognormal((2, 12, 9, 9))
    grad[:, 5] = grad[1, :, :, 2] = 1e3
    grad[:, 3] = grad[0, :, 4] = 0
    got = backward(ours, x, grad)
    used = {name: pruned(grad, gate) for name, gate in gates(ours).items()}
    assert_close(got, dense_gradients(plain, x, used["input"], used["weight"]))
    assert not got["weight"][3].any() and got["bias"][3] == 0


def test_gradients_that_are_not_contiguous():
    for kind, arguments, shape in [
        (sg.nn.Linear, (16, 24), (32, 16)),
        (sg.nn.Conv2d, (16, 24, 3), (2, 16, 7, 8)),
    ]:
        plain, ours = pair(kind, *arguments)
        x = torch.randn(*shape[::-1]).permute(*range(len(shape))[::-1])
        grad = torch.ones(()).expand(plain(x).shape)
        got = backward(ours, x, grad)
        used = {name: pruned(grad.contiguous(), gate) for name, gate in gates(ours).items()}
        assert_close(got, dense_gradients(plain, x, used["input"], used["weight"]))


def test_a_transposed_weight():
    plain, ours = pair(sg.nn.Linear, 24, 40)
    ours.weight = torch.nn.Parameter(plain.weight.detach().t().contiguous().t())
    x, grad = torch.randn(50, 24), lognormal((50, 40))
    got = backward(ours, x, grad)
    used = {name: pruned(grad, gate) for name, gate in gates(ours).items()}
    assert_close(got, dense_gradients(plain, x, used["input"], used["weight"]))


# ---- the draw ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "arguments", "shape", "out"),
    [
        (sg.nn.Linear, (6, 8), (24, 6), (24, 8)),
        (sg.nn.Conv2d, (3, 4, 3), (2, 3, 7, 7), (2, 4, 5, 5)),
    ],
)
def test_unbiased(kind, arguments, shape, out):
    """300 draws. Every gradient is within 5 standard errors of the plain one."""
    gradients = sg.Prune(0.8, sparse_backward="always")
    plain, ours = pair(kind, *arguments, gradients=gradients)
    x, grad = torch.randn(shape), lognormal(out, sigma=1.0)
    want = dense_gradients(plain, x, grad, grad)
    draws = [backward(ours, x, grad) for _ in range(300)]
    for name, exact in want.items():
        values = torch.stack([d[name].double() for d in draws])
        error = values.std(0) / math.sqrt(len(values))
        # A gradient whose parts all survive is the same in every draw, up to rounding.
        distance = (values.mean(0) - exact) / error.clamp(min=1e-6 * float(exact.abs().max()))
        assert float(distance.abs().max()) < 5, name
        assert float(error.max()) > 0


def test_the_products_draw_independently():
    """An identity as weight and as input makes both pruned gradients readable. With values of half
    the threshold each survives with probability 1/2, both with 1/4; 4 standard errors."""
    n = 256
    gradients = sg.Prune(0.5, sparse_backward="always")
    layer = any_size(sg.nn.Linear(n, n, bias=False, gradients=gradients, seed=3))
    with torch.no_grad():
        layer.weight.copy_(torch.eye(n))
    got = backward(layer, torch.eye(n), torch.ones(n, n))
    kept = [got["input"] != 0, got["weight"].T != 0]
    for k in kept:
        assert abs(float(k.double().mean()) - 0.5) < 4 * 0.5 / n
    both = float((kept[0] & kept[1]).double().mean())
    assert abs(both - 0.25) < 4 * math.sqrt(0.25 * 0.75) / n


def test_every_pass_draws_anew():
    _, layer = pair(sg.nn.Linear, 32, 32)
    x, grad = torch.randn(64, 32), lognormal((64, 32))
    first = backward(layer, x, grad)
    threshold = gates(layer)["weight"].plan[Plan.THRESHOLD].item()
    second = backward(layer, x, grad)
    assert gates(layer)["weight"].plan[Plan.THRESHOLD].item() == pytest.approx(threshold)
    assert all(not torch.equal(first[name], second[name]) for name in first)


def test_the_seed_decides():
    x, grad = torch.randn(64, 32), lognormal((64, 32))

    def weight_gradient(seed):
        return backward(pair(sg.nn.Linear, 32, 32, seed=seed)[1], x, grad)["weight"]

    assert torch.equal(weight_gradient(4), weight_gradient(4))
    assert not torch.equal(weight_gradient(4), weight_gradient(5))
    results = []
    for generator_seed in (7, 7, 8):
        torch.manual_seed(generator_seed)
        layer = sg.nn.Linear(32, 32, gradients=ALWAYS)
        results.append(seed_of(gates(layer)["weight"]))
    assert results[0] == results[1] != results[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("kind", "arguments", "shape"),
    [
        (sg.nn.Linear, (96, 80), (700, 96)),
        (sg.nn.Conv2d, (24, 40, 3), (6, 24, 17, 19)),
        (sg.nn.Conv2d, (32, 48, 1), (5, 32, 16, 16)),
    ],
)
def test_thread_count_does_not_matter(kind, arguments, shape, dtype):
    threads = torch.get_num_threads()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            plain, ours = pair(kind, *arguments)
            ours = ours.to(dtype)
            results.append(backward(ours, x, output_gradient(plain.to(dtype), x).to(dtype)))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(results[0][name], other[name]) for name in other)
