"""Gates on the test device: gradient, plan and report are the CPU's to the bit, and nothing waits.

tests/device compares the kernels with the CPU's gate; here they are called as users call them."""

from collections import Counter
from contextlib import nullcontext

import pytest
import testdevice
import torch
from apply_samples import DTYPES, gradient, same, with_specials
from torch import nn

import slimgrad as sg
from slimgrad.compression.gate import GradientGate
from slimgrad.doctor.device_test import recorded

ops = torch.ops.slimgrad

# Options of a gate, as new_gate_plan has them.
GATES = {
    "prune": {"prune": "stochastic", "sparsity": 0.85},
    "prune, lognormal": {"prune": "stochastic", "sparsity": 0.6, "method": "lognormal"},
    "prune, mean": {"prune": "stochastic", "sparsity": 0.4, "method": "mean"},
    "top-k": {"prune": "topk", "sparsity": 0.7},
    "fp4": {"bits": 4},
    "fp6": {"bits": 6, "scale_method": "error"},
    "fp8": {"bits": 8, "split": "lognormal", "rounding": "nearest", "underflow": "zero"},
    "both": {"prune": "stochastic", "sparsity": 0.8, "bits": 6},
    "schedule": {
        "prune": "stochastic",
        "schedule_calls": [0, 2],
        "schedule_sparsities": [0.2, 0.9],
        "refresh_every": 2,
    },
}
# What the host alone can find.
ON_HOST = {
    "gennorm": {"prune": "stochastic", "sparsity": 0.5, "method": "gennorm"},
    "normal": {"prune": "stochastic", "sparsity": 0.5, "method": "normal"},
    "split": {"bits": 5, "split": "normal"},
    "predicted": {"bits": 5, "scale_method": "predicted"},
}
KERNELS = 5  # launches, a fill of memory included


@pytest.fixture(scope="module")
def device():
    return testdevice.load()


def state(**options):
    return ops.new_gate_plan(seed=7, min_elements=8, **options), ops.new_gate_stats()


def data(kind, dtype):
    if kind == "zeros":
        return torch.zeros(1000, dtype=dtype)
    if kind == "tiny":
        return gradient((3,), dtype=dtype)
    if kind == "special":
        return with_specials(gradient((5, 517), dtype=dtype))
    if kind == "nan":
        return torch.full((100,), float("nan"), dtype=dtype)
    return gradient((3, 1001) if kind == "odd" else (200_003,), dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["odd", "large", "special", "zeros", "nan", "tiny"])
@pytest.mark.parametrize("name", GATES)
def test_a_pass_is_that_of_the_cpu_and_waits_for_nothing(device, name, kind, dtype):
    (plan, stats), (far_plan, far_stats) = state(**GATES[name]), state(**GATES[name])
    x = data(kind, dtype)
    ops.compress_gradient(x.to(device), far_plan.clone(), far_stats.clone(), 0)  # kernels are found
    for call in range(3):
        expected = ops.compress_gradient(x, plan, stats, 5)
        on_device = x.to(device)
        if call == 0:  # before that, plan and statistics go there
            torch.classes.slimgrad.GateGroup.bring_state(far_plan, far_stats, str(on_device.device))
        testdevice.reset()
        with testdevice.strict():
            if call == 1:
                got = on_device
                ops.compress_gradient_(got, far_plan, far_stats, 5)
            else:
                got = ops.compress_gradient(on_device, far_plan, far_stats, 5)
        assert testdevice.counts() == {
            "kernels": KERNELS,
            "copies_to_host": 0,
            "waits": 0,
            "fallbacks": 0,
        }
        assert far_plan.device == far_stats.device == on_device.device
        assert same(got.cpu(), expected)
        assert torch.equal(far_plan.cpu(), plan)
        assert torch.equal(far_stats.cpu(), stats)
        x = x * 0.25


@pytest.mark.parametrize("name", ON_HOST)
def test_what_the_host_alone_finds_waits(device, name):
    (plan, stats), (far_plan, far_stats) = state(**ON_HOST[name]), state(**ON_HOST[name])
    x = gradient((3, 1001))
    on_device = x.to(device)
    testdevice.reset()
    got = ops.compress_gradient(on_device, far_plan, far_stats, 5)
    waits = 4 if "bits" in ON_HOST[name] else 3
    assert testdevice.counts()["waits"] == testdevice.counts()["copies_to_host"] == waits
    assert far_plan.device.type == far_stats.device.type == "cpu"
    assert same(got.cpu(), ops.compress_gradient(x, plan, stats, 5))
    assert torch.equal(far_plan, plan) and torch.equal(far_stats, stats)


def test_a_state_follows_the_gradients(device):
    """The tensors stay the same, whoever holds them, with their memory elsewhere."""
    gate = GradientGate(seed=1, min_elements=1, bits=4)
    plan, expected = gate.plan, GradientGate(seed=1, min_elements=1, bits=4)
    x = gradient((300,))
    for where in ("cpu", device, device, "cpu"):
        for one, there in ((gate, where), (expected, "cpu")):
            y = x.to(there).requires_grad_()
            one(y).backward(x.to(there))
        assert gate.plan is plan and gate.plan.device == torch.empty(0, device=where).device
        assert gate.report() == expected.report() and gate.fields() == expected.fields()


def test_reports_and_settings_of_a_gate_on_a_device(device):
    gate = GradientGate(seed=1, min_elements=1, prune="stochastic", sparsity=0.5)
    x = gradient((3000,)).to(device).requires_grad_()
    gate(x).backward(x.detach())
    gate.set_sparsity(0.9)
    assert gate.fields()["sparsity"] == 0.9 and gate.plan.device == x.device
    gate(x).backward(x.detach())
    assert gate.report()["calls"] == 2 and abs(gate.report()["sparsity"] - 0.9) < 0.03
    assert gate.seen().count == 3000
    with pytest.raises(ValueError, match="contiguous float64"):
        ops.gradient_gate(x, gate.plan[:5], gate.stats, 0)


def block(device):
    """Of a ResNet: two convolutions with normalization, and a way around them."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(8, 8, 3, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(8)
            self.relu = nn.ReLU()
            self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
            self.other_norm = nn.BatchNorm2d(8)
            self.last = nn.ReLU()

        def forward(self, x):
            y = self.relu(self.norm(self.first(x)))
            return self.last(self.other_norm(self.second(y)) + x)

    torch.manual_seed(0)
    return Block().to(device), torch.randn(4, 8, 12, 12).to(device)


def layer(device):
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(
        32, 4, 64, dropout=0.0, activation=nn.GELU(), batch_first=True
    )
    return encoder.to(device), torch.randn(8, 64, 32).to(device)


# What a backward pass launches for them: kernels of gates, and of activations.
GATES_OF = {block: 2, layer: 6}
ACTIVATIONS_OF = {block: {"step_backward1": 2}, layer: {"step_backward3": 1}}
KERNELS_OF_A_GATE = ("gate_see", "gate_decide", "gate_apply", "gate_compare")


@pytest.mark.parametrize("saved", [None, 4])
@pytest.mark.parametrize("model", [block, layer])
def test_a_step_waits_for_nothing(device, model, saved):
    """Gates, few-bit activations and packed tensors: no wait, no copy to the host, and nothing of
    ours that the CPU or ATen's operators do instead."""
    results = []
    for where in ("cpu", device):
        module, x = model(where)
        options = {} if saved is None else {"saved": saved}
        sg.compress(
            module,
            gradients=[sg.Prune(0.6), "fp6"],
            activations=3,
            seed=3,
            min_elements=1,
            **options,
        )
        x.requires_grad_()
        for call in range(2):  # the first step brings states, loads kernels
            module.zero_grad()
            testdevice.reset()
            is_strict = call == 1 and where == device
            with recorded() as launches, testdevice.strict() if is_strict else nullcontext():
                y = module(x)
                y.backward(torch.ones_like(y) / y.numel())
                counts = testdevice.counts()
        results.append([p.grad.cpu() for p in module.parameters()])
    assert counts["waits"] == counts["copies_to_host"] == 0
    names = [name.removeprefix("slimgrad_").removesuffix("_f32") for name, *_ in launches]
    launched = {name: count for name, count in Counter(names).items() if "codes" not in name}
    packed, unpacked = launched.pop("pack_saved4", 0), launched.pop("unpack_saved4", 0)
    assert (packed > 0) == (unpacked > 0) == (saved == 4)
    assert launched == dict.fromkeys(KERNELS_OF_A_GATE, GATES_OF[model]) | ACTIVATIONS_OF[model]
    # Beside these, fills of memory: one for a gate and one for a packed tensor.
    assert counts["kernels"] == len(names) + GATES_OF[model] + packed
    if model is block:  # torch's own attention has other bits on the test device
        assert all(map(torch.equal, *results))


def network(where, **options):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 8)
    )
    model = model.to(where)
    return model, sg.compress(model, seed=5, min_elements=1, **options)


def step(model, where):
    x = gradient((32, 64), 1).to(where)
    model.zero_grad()
    model(x).square().mean().backward()
    return [p.grad.cpu() for p in model.parameters()]


TOGETHER = {
    "allocation": {"gradients": sg.Prune(0.7, allocation="min_cosine")},
    "dynamic scale": {
        "gradients": sg.Quantize(4, scale=sg.LossScale(2.0**10, dynamic=True, growth_interval=1))
    },
}


@pytest.mark.parametrize("name", TOGETHER)
def test_what_looks_at_all_layers_copies_once_a_step(device, name):
    (near, _), (far, _) = network("cpu", **TOGETHER[name]), network(device, **TOGETHER[name])
    for i in range(4):
        expected = step(near, "cpu")
        testdevice.reset()
        got = step(far, device)
        counts = testdevice.counts()
        ours = counts["copies_to_host"] - len(got)  # the comparison's own
        assert ours == (1 if i > 0 else ours)
        assert i == 0 or counts["waits"] == counts["copies_to_host"] + 1  # that of the batch
        assert all(map(torch.equal, expected, got))


def test_states_travel_between_cpu_and_device(device):
    options = {"gradients": [sg.Prune(0.7), "fp6"]}
    (near, near_control), (far, far_control) = network("cpu", **options), network(device, **options)
    for model, where in ((near, "cpu"), (far, device)):
        step(model, where)
        step(model, where)
    saved, far_saved = near_control.state_dict(), far_control.state_dict()
    assert saved.keys() == far_saved.keys()
    assert all(t.device.type == "cpu" for t in far_saved.values())
    assert all(torch.equal(saved[key], far_saved[key]) for key in saved)
    expected = step(near, "cpu")
    # From the CPU to a device, to a gate that was there already and to a new one.
    far_control.load_state_dict(saved)
    assert all(map(torch.equal, expected, step(far, device)))
    fresh, control = network(device, **options)
    control.load_state_dict(saved)
    assert all(map(torch.equal, expected, step(fresh, device)))
    # And back.
    back, control = network("cpu", **options)
    control.load_state_dict(far_saved)
    assert all(map(torch.equal, expected, step(back, "cpu")))
    assert control.report() == near_control.report()


def test_sparse_products_are_dense_products_of_a_pruned_gradient(device):
    torch.manual_seed(0)
    linear = nn.Linear(40, 30).to(device)
    control = sg.compress(linear, gradients=sg.Prune(weight=0.8), seed=1, min_elements=1)
    x = gradient((500, 40), 1).to(device).requires_grad_()
    g = gradient((500, 30), 2).to(device)
    linear(x).backward(g)
    (row,) = control.report().values()
    assert row["way"] == "dense" and row["compressed"] and abs(row["sparsity"] - 0.8) < 0.03
    pruned = ops.prune(g.cpu(), row["threshold"], 0)
    assert (pruned == 0).float().mean() > 0.7
    # The input's product is exact, the weight's unbiased and not.
    exact = g.cpu().t() @ x.detach().cpu()
    assert torch.allclose(
        x.grad.cpu(), g.cpu() @ linear.weight.detach().cpu(), rtol=1e-4, atol=1e-5
    )
    assert not torch.allclose(linear.weight.grad.cpu(), exact)
    assert (
        torch.nn.functional.cosine_similarity(
            linear.weight.grad.cpu().flatten(), exact.flatten(), 0
        )
        > 0.5
    )
    y = linear(x)
    testdevice.reset()
    with testdevice.strict():
        y.backward(g)
    assert testdevice.counts()["waits"] == testdevice.counts()["copies_to_host"] == 0


def test_a_product_that_is_set_to_be_dense_is_exact(device):
    plain, control = network(device, gradients=sg.Prune(weight=0.9))
    control.remove()
    model, control = network(device, gradients=sg.Prune(weight=0.9, input=0.5))
    exact = step(plain, device)
    assert not any(map(torch.equal, step(model, device), exact))
    control.set_way("dense")
    assert all(map(torch.equal, step(model, device), exact))
    assert not any(row["compressed"] for row in control.report().values())
    x = gradient((32, 64), 1).to(device)
    y = model(x)
    with testdevice.strict():
        y.backward(torch.ones_like(y))
    control.set_way("auto")
    assert not any(map(torch.equal, step(model, device), exact))


def test_products_that_are_not_pruned_any_more_are_not_reported(device):
    reported = []
    for where in ("cpu", device):
        model, control = network(where, gradients=sg.Prune(weight=0.9, input=0.5))
        step(model, where)
        reported.append([])
        for sparsity, product in ((0.0, "weight"), (0.0, None), (0.6, None)):
            control.set_sparsity(sparsity, product=product)
            step(model, where)
            reported[-1].append([*control.report()])
    assert reported[0] == reported[1] and [len(names) for names in reported[0]] == [3, 0, 6]


def test_gates_in_graphs(device):
    """One graph on the device, with the gradients that it has without torch.compile."""
    x = gradient((32, 64), 1)
    gradients = []
    for where, compile in ((device, True), (device, False), ("cpu", False)):
        model, _ = network(where, gradients=[sg.Prune(0.7), "fp6"])
        run = torch.compile(model, backend="aot_eager", fullgraph=True) if compile else model
        for _ in range(2):
            model.zero_grad()
            run(x.to(where)).square().mean().backward()
        gradients.append([p.grad.cpu() for p in model.parameters()])
    for others in gradients[1:]:
        assert all(map(torch.equal, gradients[0], others))
