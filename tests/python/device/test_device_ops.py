"""Every op with device kernels, on the test device: how many kernels it is, that nothing waits,
copies to the host or falls back to the CPU, and that its bits are the CPU's.

docs/gpu.md states the numbers of kernels. `pytest --device` has many more inputs."""

import pytest
import testdevice
import torch
from apply_samples import DTYPES, gradient, layouts, same, with_specials

import slimgrad as sg

ops = torch.ops.slimgrad
BOTH = (3, 2, 0.5, "stochastic", "stochastic", 5)
BORDERS = [-1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 2.0]
LEVELS = [0.0, 0.1, 0.2, 0.5, 0.7, 0.9, 1.0, 1.1]

# Calls of ops, and the kernels that they are: launches, fills of memory included.
CALLS = {
    "measure": (3, lambda x: ops.measure(x)),
    "quantize": (1, lambda x: ops.quantize(x, *BOTH)),
    "prune": (1, lambda x: ops.prune(x, 0.5, 7)),
    "prune_quantize": (1, lambda x: ops.prune_quantize(x, 0.5, *BOTH)),
    "quantize_": (1, lambda x: in_place(ops.quantize_, x, *BOTH)),
    "prune_": (1, lambda x: in_place(ops.prune_, x, 0.5, 7)),
    "prune_quantize_": (1, lambda x: in_place(ops.prune_quantize_, x, 0.5, *BOTH)),
    "pack": (3, lambda x: ops.pack(finite(x), *BOTH)),
    "pack and unpack": (4, lambda x: unpacked(x)),
    "stepwise_codes": (1, lambda x: ops.stepwise_codes(x, BORDERS, False)),
    "stepwise_backward": (2, lambda x: backward(x)),
    "stepwise_backward_": (2, lambda x: backward_in_place(x)),
    "pack_saved 8": (2, lambda x: ops.pack_saved(x, 8, 0, "stochastic", 1, 2)),
    "pack_saved 4": (2, lambda x: ops.pack_saved(x, 4, 32, "nearest", 1, 2)),
    "pack_saved 2": (2, lambda x: ops.pack_saved(x, 2, 0, "stochastic", 1, 2)),
    "unpack_saved": (3, lambda x: saved_and_back(x)),
}


def in_place(op, x, *arguments):
    y = x.detach().clone(memory_format=torch.preserve_format)
    op(y, *arguments)
    return y


def finite(x):
    return x


def unpacked(x):
    return ops.unpack(ops.pack(x, *BOTH), x.shape, 3, 2, 0.5, x.dtype)


def backward(x):
    codes = ops.stepwise_codes(x, BORDERS, False)
    return ops.stepwise_backward(x, codes, LEVELS, x.stride())


def backward_in_place(x):
    codes = ops.stepwise_codes(x, BORDERS, False)
    return in_place(ops.stepwise_backward_, x, codes, LEVELS)


def saved_and_back(x):
    words = ops.pack_saved(x, 4, 0, "stochastic", 1, 2)
    return ops.unpack_saved(words, x.shape, x.stride(), x.dtype, 4, 0)


@pytest.fixture(scope="module")
def device():
    return testdevice.load()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_kernels_and_nothing_else(device, name, dtype):
    kernels, call = CALLS[name]
    x = gradient((3, 1001), dtype=dtype)
    on_device = x.to(device)
    testdevice.reset()
    with testdevice.strict():
        result = call(on_device)
    counts = testdevice.counts()
    assert result.device == on_device.device
    assert same(result.cpu(), call(x))
    assert counts == {"kernels": kernels, "copies_to_host": 0, "waits": 0, "fallbacks": 0}


@pytest.mark.parametrize("layout", layouts())
def test_layouts_as_on_the_cpu(device, layout):
    x = layouts()[layout]
    on_device = x.to(device)  # without gaps, if x has some: a view has to be made anew
    if layout == "sliced":
        on_device = gradient((4, 6, 5, 14)).to(device)[..., ::2]
    elif layout == "expanded":
        on_device = gradient((4, 6, 1, 7)).to(device).expand(4, 6, 5, 7)
    assert on_device.stride() == x.stride()
    for name, (_, call) in CALLS.items():
        if layout in ("sliced", "expanded") and name in ("stepwise_backward_", "unpack_saved"):
            continue
        if layout in ("sliced", "expanded") and "backward" in name:
            continue
        assert same(call(on_device).cpu(), call(x)), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values(device, dtype):
    x = with_specials(gradient((5, 517), dtype=dtype))
    for name, (_, call) in CALLS.items():
        if not name.startswith("pack and") and name != "pack":
            assert same(call(x.to(device)).cpu(), call(x)), name


def test_pack_refuses_what_is_not_finite(device):
    x = with_specials(gradient((100,)))
    for where in ("cpu", device):
        with pytest.raises(ValueError, match=r"\[pack\] expected finite values"):
            ops.pack(x.to(where), *BOTH)


@pytest.mark.parametrize("name", ["gelu", "silu", "mish"])
def test_exact_activations(device, name):
    results = []
    for where in ("cpu", device):
        x = gradient((7, 333)).to(where).requires_grad_()
        getattr(sg.functional, name)(x, bits="exact").backward(gradient((7, 333), 1).to(where))
        results.append(x.grad.cpu())
    assert same(*results)


def test_packing_exactly_waits_once(device):
    """The number of its bytes depends on values."""
    x = gradient((300, 401)).relu()
    for given in (x, (x > 0).float()):
        on_device = given.to(device)
        testdevice.reset()
        packed = ops.pack_exact(on_device)
        assert testdevice.counts()["waits"] <= 1 and testdevice.counts()["fallbacks"] == 0
        assert packed.shape == ops.pack_exact(given).shape  # unused bytes may differ
        with testdevice.strict():
            back = ops.unpack_exact(packed, given.shape, given.stride(), given.dtype)
        assert same(back.cpu(), given)
        assert same(ops.unpack_exact(packed.cpu(), given.shape, given.stride(), given.dtype), given)


def test_large_tensors_are_sampled_alike(device):
    """More than 2^21 values: the histogram is a sample."""
    x = gradient((2**21 + 12345,), dtype=torch.bfloat16)
    assert same(ops.measure(x.to(device)).cpu(), ops.measure(x))


def test_no_kernels_for_what_is_empty(device):
    x = torch.empty(0, 3, device=device)
    testdevice.reset()
    assert ops.prune(x, 0.5, 1).shape == (0, 3)
    assert testdevice.counts()["kernels"] == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bits", [2, 4, 6, 8])
def test_uniform_codes_are_those_of_payloads(device, bits, dtype):
    """What travels between machines: the values that a payload of mode "uniform" stands for."""
    x = gradient((4321,), dtype=dtype)
    on_device, out = x.to(device), torch.empty(4321, dtype=dtype, device=device)
    sums = torch.ones(4321, device=device)
    for rounding in ("nearest", "stochastic"):
        expected = sg.decode(sg.encode(x, "uniform", bits=bits, rounding=rounding, seed=9))
        testdevice.reset()
        with testdevice.strict():
            codes = ops._pack_uniform(on_device, bits, rounding == "stochastic", 9)
            ops._unpack_uniform_(*codes, bits, False, out)
        assert testdevice.counts()["kernels"] == 4 and testdevice.counts()["fallbacks"] == 0
        assert codes[0].numel() == (4321 * bits + 7) // 8
        assert same(out.cpu(), expected)
    if dtype == torch.float32:
        ops._unpack_uniform_(*codes, bits, True, sums)
        assert same(sums.cpu(), 1 + expected)
    else:
        with pytest.raises(ValueError, match="sums of float32"):
            ops._unpack_uniform_(*codes, bits, True, out)
