"""What training sees of a compressed model."""

import math

import pytest
import torch
import torch.nn.functional as F
from controller_samples import Net, Shared, batch, make, snapshot, train, whole_state
from gate_samples import lognormal
from plan_fields import Plan
from torch import nn
from torch.utils.checkpoint import checkpoint

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")


def test_forward_is_unchanged():
    model, _ = make()
    torch.manual_seed(0)
    plain = Net()
    x, _ = batch(0)
    assert torch.equal(model(x), plain(x))
    model.eval(), plain.eval()
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))
    with torch.inference_mode():
        assert torch.equal(model(x), plain(x))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_counted(context):
    model, controller = make([sg.Prune(0.5, allocation="min_cosine"), sg.Quantize(6)])
    before = snapshot(model.eval())
    with context():
        model(batch(0)[0])
    assert all(torch.equal(v, before[k]) for k, v in whole_state(model).items())
    assert controller.report()["conv1"]["calls"] == 0


@pytest.mark.parametrize(
    "gradients",
    [
        "fp4",
        "fp5",
        "fp6",
        "fp7",
        "fp8",
        sg.Quantize(format="1-4-1"),
        sg.Quantize(format=sg.FloatFormat("1-5-2"), scale="error"),
        sg.Quantize(6, scale="predicted"),
        sg.Quantize(8, scale=sg.LossScale(2.0**12)),
        sg.Quantize(8, scale=sg.LossScale(2.0**12, dynamic=True)),
        sg.Prune(0.5),
        sg.Prune(0.8, method="lognormal"),
        sg.Prune(0.8, method="gennorm"),
        sg.Prune(0.8, method="normal"),
        sg.Prune(0.8, method="mean"),
        sg.Prune(0.8, kind="topk"),
        sg.Prune(0.8, kind="topk_stochastic"),
        sg.Prune(0.8, allocation="min_cosine"),
        sg.Prune(0.8, allocation="mean_cosine"),
        sg.Prune(0.8, allocation="mean_error"),
        sg.Prune(0.8, allocation="total_error"),
        [sg.Prune(0.8), "fp6"],
        [sg.Quantize(4), sg.Prune(0.8)],
    ],
    ids=str,
)
def test_training_learns(gradients):
    """One batch, learned by heart."""
    model, controller = make(gradients)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, y = batch(0)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0] and all(map(math.isfinite, losses))
    for row in controller.report().values():
        assert row["compressed"] and row["calls"] == 25


def test_gradients_are_unbiased():
    """The mean weight gradient over many draws is the plain one, within 5 standard errors."""
    torch.manual_seed(0)
    layer = nn.Linear(16, 32)
    x, grad = torch.randn(128, 16), lognormal((128, 32), sigma=1.0)
    plain = grad.T.double() @ x.double()
    sg.compress(layer, sg.Prune(0.8), min_elements=1, seed=1)
    draws = []
    for _ in range(200):
        layer.weight.grad = None
        layer(x).backward(grad)
        draws.append(layer.weight.grad.double())
    draws = torch.stack(draws)
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - plain).abs() <= 5 * error).all()


def test_the_weight_gradient_is_that_of_the_compressed_gradient():
    model = nn.Sequential(nn.Linear(16, 64))
    controller = sg.compress(model, sg.Prune(0.8, kind="topk"), min_elements=1)
    x, grad = torch.randn(128, 16), lognormal((128, 64))
    model(x).backward(grad)
    kept = torch.where(grad.abs() < controller.report()["0"]["threshold"], 0.0, grad)
    assert torch.allclose(model[0].weight.grad, kept.T @ x, rtol=1e-4, atol=1e-4)
    assert torch.allclose(model[0].bias.grad, kept.sum(0), rtol=1e-4, atol=1e-4)
    assert float((kept == 0).float().mean()) == pytest.approx(0.8, abs=0.01)


def test_gradient_accumulation():
    model, controller = make(sg.Prune(0.8))
    x, y = batch(0)
    parts = []
    for half in (slice(0, 8), slice(8, 16)):
        F.cross_entropy(model(x[half]), y[half]).backward()
        parts.append({n: p.grad.clone() for n, p in model.named_parameters()})
    again, _ = make(sg.Prune(0.8))
    total = {}
    for half in (slice(0, 8), slice(8, 16)):
        again.zero_grad()
        F.cross_entropy(again(x[half]), y[half]).backward()
        for name, p in again.named_parameters():
            total[name] = total.get(name, 0) + p.grad
    assert all(torch.allclose(parts[1][n], total[n]) for n in total)
    assert all(row["calls"] == 2 for row in controller.report().values())


def test_autocast_bfloat16():
    model, controller = make([sg.Prune(0.8), "fp6"])
    seen = []
    model.conv1.slimgrad_gate.register_full_backward_hook(
        lambda m, grad_in, grad_out: seen.append(grad_in[0].dtype)
    )
    for step in range(3):
        x, y = batch(step)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
    assert seen == [torch.bfloat16] * 3
    for row in controller.report().values():
        assert row["sparsity"] == pytest.approx(0.8, abs=0.05)


def test_grad_scaler_sees_an_overflow():
    """float16 with a scale that is far too high: steps are skipped and the scale comes down until
    gradients are finite; then training goes on."""
    model, controller = make([sg.Prune(0.8), "fp6"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    skipped = 0
    for step in range(16):
        x, y = batch(step)
        before = model.conv1.weight.detach().clone()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        overflow = not all(torch.isfinite(p.grad).all() for p in model.parameters())
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        assert (scaler.get_scale() < scale) == overflow
        assert torch.equal(before, model.conv1.weight) == overflow
        skipped += overflow
    assert 1 <= skipped < 16
    assert all(row["nonfinite"] == 0 for row in controller.report().values())


def test_an_inf_reaches_every_layer_below():
    model, controller = make([sg.Prune(0.9), "fp4"])
    x, _ = batch(0)
    y = model(x)
    grad = torch.ones_like(y)
    grad[0, 0] = float("inf")
    y.backward(grad)
    assert not torch.isfinite(model.conv1.weight.grad).all()
    assert controller.report()["head.1"]["nonfinite"] == 1
    model.zero_grad()
    y = model(x)
    y.backward(torch.ones_like(y))
    assert torch.isfinite(model.conv1.weight.grad).all()


def test_bfloat16_model():
    """Types of the model's parameters are no business of the gates' state."""
    model, controller = make(sg.Prune(0.8, allocation="min_cosine"), seed=(1 << 63) + 12345)
    plans = {name: gate.plan.clone() for name, gate in controller.gates.items()}
    for change in (model.bfloat16, model.half, model.float, model.bfloat16):
        change()
        for name, gate in controller.gates.items():
            assert torch.equal(gate.plan, plans[name])
            assert gate.stats.dtype == torch.float64
    for step in range(3):
        model(batch(step)[0].bfloat16()).sum().backward()
    wanted = [row["sparsity_wanted"] for row in controller.report().values()]
    assert len({round(w, 6) for w in wanted}) > 1  # the allocation reached the gates


def test_module_sharing():
    model = Shared()
    keys = list(model.state_dict())
    controller = sg.compress(model, sg.Prune(0.8), min_elements=1)
    assert controller.converted == ["first"]
    model(torch.randn(64, 64)).sum().backward()
    assert controller.report()["first"]["calls"] == 2
    model.load_state_dict(model.state_dict())
    controller.remove()
    assert list(model.state_dict()) == keys


def test_a_layer_called_twice_draws_twice():
    layer = nn.Linear(64, 64)
    sg.compress(layer, sg.Prune(0.9), min_elements=1)
    x = torch.randn(2, 64, 64, requires_grad=True)
    grad = lognormal((64, 64))
    outputs = [layer(x[0]), layer(x[1])]
    torch.autograd.backward(outputs, [grad, grad])
    assert int(layer.slimgrad_gate.plan[Plan.CALLS]) == 2
    assert not torch.equal(x.grad[0], x.grad[1])


def test_frozen_layers():
    model, controller = make(sg.Prune(0.8))
    model.conv1.requires_grad_(False)
    model.norm.requires_grad_(False)
    train(model, 2, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1))
    calls = {name: row["calls"] for name, row in controller.report().items()}
    assert calls == {"conv1": 0, "conv2": 2, "head.1": 2}
    assert model.conv1.weight.grad is None
    assert "conv1" in controller.summary()


def test_a_frozen_layer_above_passes_the_gradient():
    model, controller = make(sg.Prune(0.8))
    model.head.requires_grad_(False)
    train(model, 1, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1))
    assert controller.report()["head.1"]["calls"] == 1
    assert model.conv1.weight.grad.any()


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant):
    results = []
    for wrap in (False, True):
        model, controller = make(sg.Prune(0.8))
        x, y = batch(0)
        x.requires_grad_()
        out = checkpoint(model, x, use_reentrant=reentrant) if wrap else model(x)
        F.cross_entropy(out, y).backward()
        assert all(row["calls"] == 1 for row in controller.report().values())
        results.append(model.conv1.weight.grad)
    assert torch.equal(*results)


def test_backward_hooks_see_the_plain_gradient():
    """A full backward hook of a layer gets what it got before compress(), and may keep it."""
    model = nn.Sequential(nn.Linear(64, 64))
    sg.compress(model, sg.Prune(0.9), min_elements=1)
    kept = []
    model[0].register_full_backward_hook(lambda m, grad_in, grad_out: kept.append(grad_out[0]))
    grad = lognormal((64, 64))
    (model(torch.randn(64, 64, requires_grad=True)) * grad).sum().backward()
    assert torch.equal(kept[0], grad)


def test_double_backward_raises():
    model, _ = make()
    x = batch(0)[0].requires_grad_()
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(model(x).sum(), x, create_graph=True)


def test_thread_count_does_not_matter():
    """To the bit, wherever torch's own kernels are."""
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            layer = nn.Linear(64, 512)
            controller = sg.compress(layer, [sg.Prune(0.9), "fp4"], seed=4)
            out = torch.zeros(512, 512, requires_grad=True)
            layer.slimgrad_gate(out).backward(lognormal((512, 512)))
            results.append((out.grad, controller.gates[""].plan, controller.gates[""].stats))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
