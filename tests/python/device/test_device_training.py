"""Models on the test device: what slimgrad does to them has the bits that it has on the CPU.
(torch's own operations are the CPU's there, so that whole steps can be compared.)"""

import pytest
import testdevice
import torch

import slimgrad as sg


@pytest.fixture(scope="module")
def device():
    return testdevice.load()


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.GELU(),
        torch.nn.MaxPool2d(2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Dropout(0.0),
        torch.nn.Linear(16 * 64, 10),
    )


def gradients(where, **options):
    torch.manual_seed(1)
    images, labels = torch.randn(16, 3, 16, 16), torch.randint(10, (16,))
    model = network().to(where)
    sg.compress(model, seed=3, min_elements=1, **options)
    loss = torch.nn.functional.cross_entropy(model(images.to(where)), labels.to(where))
    loss.backward()
    return [p.grad.cpu() for p in model.parameters()]


OPTIONS = {
    "pruned": {"gradients": [sg.Prune(0.5), "fp6"]},
    "quantized": {"gradients": "fp4"},
    "few bits": {"activations": 3},
    "saved 8": {"saved": 8},
    "saved 4": {"saved": 4},
    "saved 2": {"saved": 2},
    "saved exactly": {"saved": "exact"},
    "all": {"gradients": "fp6", "activations": 2, "saved": 4},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_step_has_the_gradients_of_the_cpu(device, name):
    options = OPTIONS[name]
    expected = gradients("cpu", **options)
    testdevice.reset()
    got = gradients(device, **options)
    assert testdevice.counts()["kernels"] > 0
    assert all(fallback.startswith("aten::") for fallback in testdevice.fallback_names())
    for a, b in zip(expected, got, strict=True):
        assert torch.equal(a, b)


def test_few_bit_layers_do_not_wait(device):
    model = network().to(device)
    sg.compress(model, activations=3)
    x = torch.randn(16, 3, 16, 16).to(device)
    y = model(x)
    g = torch.ones_like(y)
    with testdevice.strict():
        y.backward(g)


def test_masks_of_dropout_and_pooling(device):
    grads = []
    for where in ("cpu", device):
        torch.manual_seed(4)
        x = torch.randn(4, 6, 12, 12).to(where).requires_grad_()
        y = torch.ops.slimgrad.max_pool2d(x, [3, 2], [2, 2], [1, 0], [1, 1], False)
        y = torch.ops.slimgrad.prelu(y, torch.full((6,), 0.3).to(where))
        y.backward(torch.arange(1.0, 1 + y.numel()).view(y.shape).to(where))
        grads.append(x.grad.cpu())
    assert torch.equal(*grads)
    x = torch.ones(10_000, device=device, requires_grad=True)
    y = torch.ops.slimgrad.dropout(x, 0.4, True)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())
    assert 0.55 < (x.grad.cpu() != 0).float().mean() < 0.65
