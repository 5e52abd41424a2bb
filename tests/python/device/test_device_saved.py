"""What autograd saves, on the test device: the host never waits, and what the CPU decides by a look
at values has a rule of its own (docs/saved.md)."""

import pytest
import testdevice
import torch
from apply_samples import gradient, same

import slimgrad as sg

ops = torch.ops.slimgrad


@pytest.fixture(scope="module")
def device():
    return testdevice.load()


def network():
    """Saves floats, indices of a max-pooling, codes of activations and a log-softmax."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 8, 3, padding=1),
        torch.nn.GELU(),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 64, 10),
    )


def step(where, bits, strict=False):
    """The gradients of one step, and what it saved."""
    torch.manual_seed(1)
    images, labels = torch.randn(16, 3, 16, 16), torch.randint(10, (16,))
    model = network().to(where)
    images, labels = images.to(where), labels.to(where)
    saved = sg.saved_tensors(bits, seed=3, min_elements=1)
    with testdevice.strict() if strict else torch.enable_grad():
        with saved:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
    return [p.grad.cpu() for p in model.parameters()], saved.tally


@pytest.mark.parametrize("bits", [8, 4, 2, "exact"])
def test_a_step_never_waits_and_has_the_gradients_of_the_cpu(device, bits):
    expected, on_cpu = step("cpu", bits)
    testdevice.reset()
    got, on_device = step(device, bits, strict=True)
    assert all(name.startswith("aten::") for name in testdevice.fallback_names())
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert on_device.kinds["smaller type"][0] == on_cpu.kinds["smaller type"][0] > 0
    rounded = f"{bits} bits"
    assert on_device.kinds.get(rounded) == on_cpu.kinds.get(rounded)
    if bits == "exact":
        assert set(on_device.kinds) == {"smaller type"}
        assert any("on a GPU" in why for why in on_device.left)


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_a_tensor_is_a_kernel_and_a_fill_to_pack_and_a_kernel_to_unpack(device, bits):
    x = gradient((64, 129)).to(device).requires_grad_()
    y = x * 1.0
    testdevice.reset()
    with testdevice.strict(), sg.saved_tensors(bits, seed=5, min_elements=1):
        z = y.exp()
    assert testdevice.counts()["kernels"] == 2
    testdevice.reset()
    with testdevice.strict():
        z.backward(torch.ones_like(z))
    assert testdevice.counts()["kernels"] == 1


def test_exactly_nothing_is_launched(device):
    x = gradient((64, 129)).to(device).requires_grad_()
    y = x * 1.0
    with testdevice.strict(), sg.saved_tensors("exact") as saved:
        testdevice.reset()
        z = y.exp()
    assert testdevice.counts()["kernels"] == 0
    assert saved.tally.packed == 0
    z.backward(torch.ones_like(z))
    assert same(x.grad.cpu(), z.detach().cpu())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3.4e38])
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_groups_with_inf_and_nan_become_nan_and_others_what_they_are_on_the_cpu(device, bits, bad):
    x = torch.randn(40, 512, generator=torch.Generator().manual_seed(1))
    clean = x.clone()
    x[3, 100], x[3, 101] = bad, -3.4e38  # the last two are too far apart
    clean[3] = 0

    def unpacked(values, where):
        held = torch.ones_like(values).to(where).requires_grad_()
        with sg.saved_tensors(bits, seed=5, group=512, min_elements=1):
            # Of a product the gradient is the other factor, which is no leaf.
            (factor := values.to(where).requires_grad_() * 1.0)
            product = held * factor
        product.backward(torch.ones_like(product))
        return held.grad.cpu()

    got = unpacked(x, device)
    assert got[3].isnan().all()
    others = torch.arange(40) != 3
    assert same(got[others], unpacked(clean, "cpu")[others])
    assert same(unpacked(x, "cpu"), x)  # The CPU looks, and keeps all of it.


def test_indices_take_four_bytes(device):
    x = gradient((8, 16, 32, 32)).to(device).requires_grad_()
    with testdevice.strict(), sg.saved_tensors(8, seed=5) as saved:
        y = torch.nn.functional.max_pool2d(x * 1.0, 2)
    elements = 8 * 16 * 16 * 16
    assert saved.tally.kinds["smaller type"] == (1, 8 * elements, 4 * elements)
    y.backward(torch.ones_like(y))
    assert x.grad.cpu().sum() == elements


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**62])
def test_larger_integers_stop_the_device(device, value):
    for fits in (2**31 - 1, -(2**31)):
        source = torch.randn(5000, device="cpu").to(device).requires_grad_()
        factors = torch.full((5000,), fits).to(device)
        with testdevice.strict(), sg.saved_tensors(8, seed=5):
            y = source * factors
        y.backward(torch.ones_like(y))
        assert (source.grad.cpu() == float(fits)).all()
    factors = torch.full((5000,), 7)
    factors[4321] = value
    with sg.saved_tensors(8, seed=5), pytest.raises(ValueError, match="at most 32 bits"):
        source * factors.to(device)


def test_damaged_exact_bytes_become_nan(device):
    """The CPU raises; here the host would have to wait for the head of the bytes."""
    x = gradient((300, 401)).relu()
    packed = ops.pack_exact(x)
    for byte in (0, 32):  # the first and the last of five begins
        damaged = packed.clone()
        damaged[byte] ^= 4
        with pytest.raises(ValueError, match="unpack_exact"):
            ops.unpack_exact(damaged, x.shape, x.stride(), x.dtype)
        there = damaged.to(device)
        testdevice.reset()
        with testdevice.strict():
            back = ops.unpack_exact(there, x.shape, x.stride(), x.dtype)
        assert testdevice.counts()["kernels"] == 1 and back.cpu().isnan().any()
