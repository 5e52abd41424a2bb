"""compress() and its Controller: what is converted, what training sees, how to undo it."""

import copy
import io
import json
import math

import distributed_worker
import pytest
import torch
import torch.nn.functional as F
from gate_samples import lognormal
from ranks import run_ranks
from torch import nn
from torch.utils.checkpoint import checkpoint

import slimgrad as sg
from slimgrad.plan import Plan


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(width * 64, 10))

    def forward(self, x):
        x = F.relu(self.norm(self.conv1(x)), inplace=True)
        return self.head(F.relu(self.conv2(x)))


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Layers this small gain nothing from a second one, and lose much on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


GATED = ["conv1", "conv2", "head.1"]


def batch(step, size=16):
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(size, 3, 8, 8, generator=generator)
    return x, torch.randint(10, (size,), generator=generator)


def make(gradients="fp6", seed=3, width=16, **options):
    torch.manual_seed(0)
    model = Net(width)
    return model, sg.compress(model, gradients, seed=seed, **{"min_elements": 1, **options})


def train(model, steps, optimizer=None, first=0, forward=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    forward = model if forward is None else forward
    losses = []
    for step in range(first, first + steps):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def equal_states(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def snapshot(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def two_layers(gradients, scales=(1.0, 1.0), **options):
    """Two linear layers whose output gradients have spreads of their own; returns step()."""
    torch.manual_seed(0)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(32, 100), nn.Linear(32, 100)

        def forward(self, x):
            return self.a(x), self.b(x)

    model = Both()
    controller = sg.compress(model, gradients, **{"min_elements": 1, "seed": 1, **options})

    def step(number=0, scale=1.0):
        x = torch.randn(100, 32, generator=torch.Generator().manual_seed(number))
        outputs = model(x)
        gradients = [
            lognormal((100, 100), sigma=s, seed=2 * number + i, scale=scale)
            for i, s in enumerate(scales)
        ]
        torch.autograd.backward(outputs, gradients)
        return [row["sparsity"] for row in controller.report().values()]

    return model, controller, step


# ---- which layers --------------------------------------------------------------------------------


def test_finds_convolutions_and_linear_layers():
    model = nn.ModuleList(
        [
            nn.Linear(2, 2),
            nn.Conv1d(2, 2, 1),
            nn.Conv2d(2, 2, 1),
            nn.Conv3d(2, 2, 1),
            nn.ConvTranspose1d(2, 2, 1),
            nn.ConvTranspose2d(2, 2, 1),
            nn.ConvTranspose3d(2, 2, 1),
            nn.BatchNorm2d(2),
            nn.Embedding(2, 2),
            nn.Bilinear(2, 2, 2),
        ]
    )
    controller = sg.compress(model, "fp6")
    assert controller.converted == [str(i) for i in range(7)] and controller.left == {}


@pytest.mark.parametrize(
    ("options", "converted"),
    [
        ({}, GATED),
        ({"include": "head"}, ["head.1"]),
        ({"include": ["conv1", "head.1"]}, ["conv1", "head.1"]),
        ({"include": lambda name, module: isinstance(module, nn.Conv2d)}, ["conv1", "conv2"]),
        ({"exclude": "conv1"}, ["conv2", "head.1"]),
        ({"exclude": ["head"]}, ["conv1", "conv2"]),
        ({"exclude": lambda name, module: name.endswith("2")}, ["conv1", "head.1"]),
        ({"include": ["conv1", "conv2"], "exclude": "conv2"}, ["conv1"]),
    ],
    ids=str,
)
def test_include_and_exclude(options, converted):
    _, controller = make(**options)
    assert controller.converted == converted
    assert set(controller.left) == set(GATED) - set(converted)
    for name, why in controller.left.items():
        assert why in ("not included", "excluded")
        assert f"{name:28} not converted: {why}" in controller.summary()


def test_the_model_may_be_a_layer_itself():
    model = nn.Linear(8, 8)
    controller = sg.compress(model, "fp6")
    assert controller.converted == [""]
    controller.remove()
    assert list(model.state_dict()) == ["weight", "bias"]


def test_compressed_twice():
    model, first = make(include="conv1")
    second = sg.compress(model, sg.Prune(0.5), min_elements=1)
    assert second.converted == ["conv2", "head.1"] and second.left == {
        "conv1": "compressed already"
    }
    train(model, 1)
    first.remove()
    second.remove()
    assert equal_keys(model)


def equal_keys(model):
    return list(model.state_dict()) == list(Net().state_dict())


def test_lazy_layers_are_left():
    model = nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(4))
    controller = sg.compress(model, "fp6")
    assert controller.converted == ["0"] and "not initialised" in controller.left["1"]


def test_attention_whose_projection_is_never_called():
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0)
    controller = sg.compress(model, "fp6", min_elements=1)
    model(torch.randn(2, 5, 16)).sum().backward()
    assert "self_attn.out_proj" in controller.left
    assert all(row["calls"] == 1 for row in controller.report().values())


def test_small_gradients_are_left_alone():
    model, controller = make(sg.Prune(0.8), min_elements=4096)
    train(model, 1)
    compressed = {name: row["compressed"] for name, row in controller.report().items()}
    assert compressed == {"conv1": True, "conv2": True, "head.1": False}  # 160 values
    assert "left alone" in controller.summary()


# ---- training ------------------------------------------------------------------------------------


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
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
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
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(64, 64)
            self.second = self.first

        def forward(self, x):
            return self.second(torch.relu(self.first(x)))

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


# ---- seeds, saving, copies -----------------------------------------------------------------------


def test_seeds():
    def run(seed, manual=0):
        torch.manual_seed(0)
        model = Net()
        torch.manual_seed(manual)
        controller = sg.compress(model, sg.Prune(0.8), min_elements=1, seed=seed)
        x, y = batch(0)
        F.cross_entropy(model(x), y).backward()
        plans = [gate.plan[:2] for gate in controller.gates.values()]
        assert len({tuple(p.tolist()) for p in plans}) == len(plans)  # every layer its own
        return model.conv1.weight.grad

    assert torch.equal(run(7), run(7, manual=1))
    assert torch.equal(run(None), run(None))
    assert not torch.equal(run(None), run(None, manual=1))
    assert not torch.equal(run(7), run(8))
    assert torch.equal(run(-1), run(2**64 - 1))


RESUMED = [
    [sg.Prune(0.8), "fp4"],
    sg.Prune(0.8, allocation="min_cosine"),
    sg.Quantize(6, scale=sg.LossScale(2.0**14, dynamic=True, growth_interval=3)),
]


@pytest.mark.parametrize("gradients", RESUMED, ids=str)
@pytest.mark.parametrize("refresh", [1, 3])
def test_a_resumed_run_is_the_uninterrupted_one(gradients, refresh):
    options = {"refresh": refresh, "warmup": 1}
    straight, _ = make(gradients, **options)
    train(straight, 8)
    first, _ = make(gradients, **options)
    optimizer = torch.optim.SGD(first.parameters(), lr=0.05, momentum=0.9)
    train(first, 4, optimizer)
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second, _ = make(gradients, seed=99, **options)
    optimizer = torch.optim.SGD(second.parameters(), lr=0.05, momentum=0.9)
    second.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    train(second, 4, optimizer, first=4)
    assert equal_states(straight, second)


@pytest.mark.parametrize("allocation", ["uniform", "min_cosine"])
def test_a_resumed_run_keeps_a_late_change(allocation):
    model, controller = make(sg.Prune(0.7, allocation=allocation))
    train(model, 2)
    controller.set_sparsity(0.9)
    train(model, 2, first=2)
    resumed, other = make(sg.Prune(0.7, allocation=allocation))
    resumed.load_state_dict(model.state_dict())
    train(resumed, 2, first=4)
    rows = other.report().values()
    total = sum(row["sparsity"] * row["elements"] for row in rows)
    assert total / sum(row["elements"] for row in rows) == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("gradients", RESUMED, ids=str)
@pytest.mark.parametrize("how", ["deepcopy", "save"])
def test_copies_go_their_own_way(gradients, how):
    model, _ = make(gradients)
    train(model, 2)
    if how == "deepcopy":
        twin = copy.deepcopy(model)
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    before = snapshot(model)
    train(twin, 3, first=2)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    train(model, 3, first=2)
    assert equal_states(model, twin)


@pytest.mark.parametrize("gradients", RESUMED, ids=str)
def test_remove_restores_the_model(gradients):
    torch.manual_seed(0)
    plain = Net()
    model = copy.deepcopy(plain)
    controller = sg.compress(model, gradients, min_elements=1)
    x, y = batch(0)
    model.eval()  # no running statistics
    F.cross_entropy(model(x), y).backward()
    model.zero_grad()
    model.train()
    controller.remove()
    for a, b in zip(model.modules(), plain.modules(), strict=True):
        assert a.__dict__.keys() == b.__dict__.keys()
        assert not (a._forward_hooks or a._forward_pre_hooks or a._backward_hooks)
    assert equal_states(model, plain) and controller.converted == []
    for m in (model, plain):
        F.cross_entropy(m(x), y).backward()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    controller.remove()  # a second time is harmless
    assert sg.compress(model, gradients).converted == GATED


def test_other_hooks_stay():
    model, calls = Net(), []
    model.conv1.register_forward_hook(lambda *_: calls.append(1))
    controller = sg.compress(model, "fp6")
    model.conv1.register_forward_hook(lambda *_: calls.append(2))
    controller.remove()
    model(batch(0)[0])
    assert calls == [1, 2]


@pytest.mark.parametrize("gradients", RESUMED, ids=str)
def test_compile(gradients):
    """The same gradients to the bit, in one graph. aot_eager: inductor's own kernels round
    differently."""
    models = []
    for compiled in (False, True):
        model, _ = make(gradients)
        forward = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else None
        train(model, 3, forward=forward)
        models.append(model)
    assert equal_states(*models)


def test_compile_with_inductor():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64))
    controller = sg.compress(model, [sg.Prune(0.8), "fp6"], min_elements=1)
    forward = torch.compile(model, fullgraph=True)
    for step in range(3):
        forward(torch.randn(64, 32)).backward(lognormal((64, 64), seed=step))
    for row in controller.report().values():
        assert row["calls"] == 3 and row["sparsity"] == pytest.approx(0.8, abs=0.05)


def test_distributed(tmp_path):
    """Two ranks that see the same data: they draw differently and stay together."""
    gradients = [sg.Prune(0.8, allocation="min_cosine"), "fp4"]
    run_ranks(distributed_worker.train, (str(tmp_path), gradients))
    a, b = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2))
    for p, q in zip(a["parameters"], b["parameters"], strict=True):
        assert torch.equal(p, q)
    assert not torch.equal(a["draw"], b["draw"])
    for rank in (a, b):
        assert rank["losses"][-1] < 0.5 * rank["losses"][0]
        assert rank["report"]["0"]["calls"] == 31


# ---- plans over time -----------------------------------------------------------------------------


def test_schedule():
    _, controller, step = two_layers(sg.Prune(0.1), schedule={2: 0.5, 6: 0.9})
    expected = [0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.9, 0.9]
    for number, wanted in enumerate(expected):
        assert step(number) == pytest.approx([wanted] * 2, abs=0.02)
        assert controller.report()["a"]["sparsity_wanted"] == pytest.approx(wanted)


def test_schedule_is_exact():
    _, controller = make(sg.Prune(0.5), schedule={0: 0.5, 2**24 + 1: 0.85})
    plan = controller.gates["conv1"].plan[Plan.SCHEDULE :].tolist()
    assert plan[:4] == [0, 0.5, 2**24 + 1, 0.85]


def test_warmup():
    _, controller, step = two_layers([sg.Prune(0.8), "fp6"], warmup=2)
    for number in range(4):
        sparsity = step(number)
        row = controller.report()["a"]
        assert row["compressed"] == (number >= 2)
        assert (min(sparsity) > 0.75) == (number >= 2)
        assert row["log_std"] == pytest.approx(1, abs=0.05)  # measured all the time


@pytest.mark.parametrize("refresh", [0, 1, 3])
def test_refresh(refresh):
    _, controller, step = two_layers(sg.Prune(0.8), refresh=refresh)
    thresholds = []
    for number in range(7):
        step(number)
        thresholds.append(controller.report()["a"]["threshold"])
    changed = [i for i in range(1, 7) if thresholds[i] != thresholds[i - 1]]
    assert changed == {0: [], 1: [1, 2, 3, 4, 5, 6], 3: [3, 6]}[refresh]
    controller.refresh()
    step(7)
    assert controller.report()["a"]["threshold"] != thresholds[-1]


def test_refresh_once():
    """refresh() asks for one new plan, not for one from now on."""
    _, controller, step = two_layers(sg.Prune(0.8), refresh=0)
    step(0)
    controller.refresh()
    step(1)
    planned = controller.report()["a"]["threshold"]
    step(2)
    assert controller.report()["a"]["threshold"] == planned


def test_a_stale_plan_is_guarded():
    """A gradient a thousand times smaller than the one that was planned for: the threshold used is
    at most mean|x| / (1 - sparsity), so the noise stays bounded by the tensor."""
    _, controller, step = two_layers(sg.Prune(0.9), refresh=0)
    step(0)
    stale = controller.report()["a"]["threshold"]
    step(1, scale=1e-3)
    row = controller.report()["a"]
    assert row["sparsity"] < 0.99 and row["cosine"] > 0.1
    # The plan in force stays: it is right again when the gradient has its size again.
    assert row["threshold"] == stale
    assert step(2) == pytest.approx([0.9] * 2, abs=0.03)


def test_set_sparsity():
    _, controller, step = two_layers(sg.Prune(0.8), schedule={0: 0.2, 100: 0.3}, refresh=0)
    assert step(0) == pytest.approx([0.2] * 2, abs=0.02)
    controller.set_sparsity(0.7)
    assert step(1) == pytest.approx([0.7] * 2, abs=0.02)


@pytest.mark.parametrize("allocation", ["min_cosine", "mean_cosine", "mean_error", "total_error"])
def test_allocation(allocation):
    """A heavy-tailed layer can be pruned more; together they keep what was asked for."""
    prune = sg.Prune(0.8, allocation=allocation)
    _, controller, step = two_layers(prune, scales=(0.5, 2.0))
    assert step(0) == pytest.approx([0.8] * 2, abs=0.02)  # nothing measured yet
    for number in range(1, 4):
        narrow, wide = step(number)
        assert abs(wide - narrow) > 0.05
        assert (narrow + wide) / 2 == pytest.approx(0.8, abs=0.02)
    if allocation == "min_cosine":
        cosines = [row["cosine"] for row in controller.report().values()]
        _, uniform, plain = two_layers(sg.Prune(0.8), scales=(0.5, 2.0))
        plain(3)
        assert min(cosines) > min(row["cosine"] for row in uniform.report().values())
    controller.set_sparsity(0.5)
    assert sum(step(4)) / 2 == pytest.approx(0.5, abs=0.02)
    assert sum(step(5)) / 2 == pytest.approx(0.5, abs=0.02)


def test_allocation_of_gradients_that_are_sparse_already():
    """Behind a ReLU more than is wanted may be zero."""
    model = nn.Sequential(nn.Linear(32, 100), nn.ReLU(), nn.Linear(100, 100))
    controller = sg.compress(model, sg.Prune(0.3, allocation="min_cosine"), min_elements=1, seed=1)
    for number in range(3):
        model(torch.randn(100, 32)).backward(lognormal((100, 100), zeros=0.6, seed=number))
    rows = controller.report()
    assert rows["2"]["sparsity"] == pytest.approx(0.6, abs=0.02)


def test_gradients_behind_a_relu_that_are_sparse_already():
    model = nn.Sequential(nn.Linear(32, 100), nn.ReLU())
    controller = sg.compress(model, sg.Prune(0.3), min_elements=1)
    model(torch.randn(100, 32)).backward(lognormal((100, 100)))
    assert controller.report()["0"]["sparsity"] == pytest.approx(0.5, abs=0.1)


def test_static_loss_scale():
    _, controller, step = two_layers(sg.Quantize(format="1-4-3", scale=sg.LossScale(2.0**10)))
    step(0)
    row = controller.report()["a"]
    assert row["scale"] == 2.0**-10 and row["format"] == "1-4-3"
    step(1, scale=2.0**-10)
    assert controller.report()["a"]["scale"] == 2.0**-10


def test_dynamic_loss_scale():
    """Halved at once while a gradient exceeds the grid, doubled after three steps without."""
    scale = sg.LossScale(2.0**12, dynamic=True, growth_interval=3)
    _, controller, step = two_layers(sg.Quantize(format="1-4-3", scale=scale))
    top = max(sg.FloatFormat("1-4-3").values())
    scales, saturated = [], []
    for number in range(24):
        step(number)
        rows = controller.report().values()
        scales.append(next(iter(rows))["scale"])
        assert len({row["scale"] for row in rows}) == 1  # one for all layers
        saturated.append(any(row["saturated"] for row in rows))
        largest = max(
            float(lognormal((100, 100), sigma=1.0, seed=2 * number + i).abs().max())
            for i in range(2)
        )
        assert saturated[-1] == (largest > top * scales[-1])
    good = 0
    for i in range(1, 24):
        good = 0 if saturated[i - 1] else good + 1
        factor = 2 if saturated[i - 1] else 0.5 if good == 3 else 1
        good = 0 if good == 3 else good
        assert scales[i] == scales[i - 1] * factor
    assert saturated[0] and not all(saturated)


def test_dynamic_loss_scale_between_plans():
    """A plan that is used for ten steps must not make ten corrections of one overflow."""
    largest = max(
        float(lognormal((100, 100), sigma=1.0, seed=seed).abs().max()) for seed in range(24)
    )
    value = 1.9 * max(sg.FloatFormat("1-4-3").values()) / largest  # one halving is enough
    scale = sg.LossScale(value, dynamic=True)
    for refresh in (1, 10):
        quantize = sg.Quantize(format="1-4-3", scale=scale)
        _, controller, step = two_layers(quantize, refresh=refresh)
        for number in range(12):
            step(number)
        assert float(controller.gates["a"].plan[Plan.FIXED_SCALE]) == pytest.approx(2 / value)


def test_dynamic_loss_scale_without_backward():
    """A forward pass whose gradient is never taken says nothing about overflow."""
    scale = sg.LossScale(2.0**30, dynamic=True)
    model, controller, step = two_layers(sg.Quantize(format="1-4-3", scale=scale))
    step(0)
    for _ in range(5):
        model(torch.randn(100, 32))
    assert float(controller.gates["a"].plan[Plan.FIXED_SCALE]) <= 2.0**-29


# ---- seeing it -----------------------------------------------------------------------------------


def test_report_and_summary():
    _, controller, step = two_layers([sg.Prune(0.8), "fp6"], scales=(0.5, 2.0))
    fresh = controller.summary().splitlines()
    assert len(fresh) == 3
    step(0)
    for row in controller.report().values():
        assert row["elements"] == 10_000 and row["calls"] == 1 and row["compressed"]
        assert 0.5 < row["cosine"] <= 1 and 0 < row["relative_error"] < 3
        assert row["sparsity_wanted"] == 0.8 and row["format"].startswith("1-") and row["scale"] > 0
    assert controller.report()["b"]["log_std"] == pytest.approx(2, abs=0.1)
    head, a, b = controller.summary().splitlines()
    assert all(word in head for word in ("wanted", "zeros", "cosine", "rel.err", "format", "scale"))
    assert a.split()[0] == "a" and a.split()[2] == "10000" and "0.8000" in a
    assert len(head) == len(a) == len(b)


def test_json_lines(tmp_path):
    _, controller, step = two_layers([sg.Prune(0.8), "fp6"])
    file, path = io.StringIO(), tmp_path / "log.jsonl"

    def strict(line):
        def refuse(constant):
            raise AssertionError(f"{constant} is not JSON")

        return json.loads(line, parse_constant=refuse)

    controller.log(path)
    for number in range(2):
        step(number)
        controller.log(path)
        controller.log(file, step=100 + number)
    step(2, scale=float("nan"))
    controller.log(path)
    step(3, scale=0.0)
    controller.log(str(path))
    lines = [strict(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert lines[2]["layers"] == strict(file.getvalue().splitlines()[1])["layers"]
    assert strict(file.getvalue().splitlines()[0])["step"] == 100
    assert lines[2]["layers"]["a"]["sparsity"] == pytest.approx(0.8, abs=0.05)
    assert lines[3]["layers"]["a"]["nonfinite"] == 10_000


def test_tensorboard(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, controller, step = two_layers([sg.Prune(0.8), "fp6"])
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        for number in range(2):
            step(number)
            controller.log(writer)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    for key in ("sparsity", "sparsity_wanted", "cosine", "relative_error", "log_std", "scale"):
        for layer in "ab":
            series = events.Scalars(f"slimgrad/{key}/{layer}")
            assert [event.step for event in series] == [1, 2]
            assert series[-1].value == pytest.approx(controller.report()[layer][key], rel=1e-5)


# ---- misuse --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make_settings",
    [
        lambda: sg.Prune(1.0),
        lambda: sg.Prune(-0.1),
        lambda: sg.Prune(float("nan")),
        lambda: sg.Prune(0.5, method="guess"),
        lambda: sg.Prune(0.5, allocation="best"),
        lambda: sg.Prune(0.5, kind="none"),
        lambda: sg.Prune(0.5, cap=0),
        lambda: sg.Prune(0.5, cap=float("nan")),
        lambda: sg.Quantize(),
        lambda: sg.Quantize(6, format="1-3-2"),
        lambda: sg.Quantize(1),
        lambda: sg.Quantize(9),
        lambda: sg.Quantize(6.5),
        lambda: sg.Quantize(format="1-8-2"),
        lambda: sg.Quantize(format="fp6"),
        lambda: sg.Quantize(6, scale="best"),
        lambda: sg.Quantize(6, rounding="up"),
        lambda: sg.Quantize(6, underflow="up"),
        lambda: sg.LossScale(0),
        lambda: sg.LossScale(float("nan")),
        lambda: sg.LossScale(float("inf")),
        lambda: sg.LossScale(growth_interval=0),
    ],
)
def test_bad_settings(make_settings):
    with pytest.raises(ValueError):
        make_settings()


@pytest.mark.parametrize(
    ("gradients", "options"),
    [
        ("fp9", {}),
        ("fp1", {}),
        ("int8", {}),
        (None, {}),
        (6, {}),
        (["fp6", "fp4"], {}),
        ([sg.Prune(0.5), sg.Prune(0.6)], {}),
        ("fp6", {"refresh": -1}),
        ("fp6", {"refresh": 1.5}),
        ("fp6", {"warmup": -1}),
        ("fp6", {"sample": 0}),
        ("fp6", {"min_elements": -1}),
        ("fp6", {"schedule": {0: 0.5}}),
        (sg.Prune(0.5, allocation="min_cosine"), {"schedule": {0: 0.5}}),
        (sg.Prune(0.5), {"schedule": {0: 1.0}}),
        (sg.Prune(0.5), {"schedule": {-1: 0.5}}),
        (sg.Prune(0.5), {"schedule": {float("nan"): 0.5}}),
        (sg.Prune(0.5), {"schedule": {i: 0.5 for i in range(9)}}),
        ("fp6", {"include": "conv3"}),
        ("fp6", {"include": ["conv1", "conv3"]}),
        ("fp6", {"exclude": "conv3"}),  # a misspelt name must not be ignored
        ("fp6", {"exclude": "conv"}),  # names are whole
    ],
    ids=str,
)
def test_bad_arguments(gradients, options):
    model = Net()
    with pytest.raises(ValueError):
        sg.compress(model, gradients, **options)
    assert equal_keys(model) and not model.conv1._forward_hooks


def test_nothing_to_convert():
    with pytest.raises(ValueError, match="at least one"):
        sg.compress(nn.ReLU(), "fp6")


def test_nothing_to_do():
    """compress(model) without saying what is a mistake or at least does nothing."""
    model = Net()
    try:
        controller = sg.compress(model)
    except ValueError:
        return
    assert controller.converted == [] and equal_keys(model)


def test_set_sparsity_errors():
    with pytest.raises(ValueError, match="Prune"):
        make("fp6")[1].set_sparsity(0.5)
    _, controller = make(sg.Prune(0.5))
    for wrong in (1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="sparsity"):
            controller.set_sparsity(wrong)


def test_float64_is_refused_before_training():
    model = Net().double()
    with pytest.raises(ValueError, match="float32, bfloat16 or float16"):
        sg.compress(model, "fp6")
        model(batch(0)[0].double())
