"""compress() with a sparse backward pass: what is converted, what is reported, how to undo it."""

import copy
import dataclasses
import json

import pytest
import torch
import torch.nn.functional as F
from controller_samples import Net, Shared, equal_states
from gate_samples import lognormal
from sparse_samples import set_break_even
from torch import nn

import slimgrad as sg
from slimgrad.plan import Plan

pytestmark = pytest.mark.usefixtures("one_thread")

ALWAYS = sg.Prune(weight=0.9, input=0.5, sparse_backward="always")


LAYERS = ["conv1", "conv2", "head.1"]


def make(gradients=ALWAYS, seed=3, **options):
    torch.manual_seed(0)
    model = Net()
    return model, sg.compress(model, gradients, seed=seed, **{"min_elements": 1, **options})


def batch(step, size=64):
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(size, 3, 8, 8, generator=generator)
    return x, torch.randint(10, (size,), generator=generator)


def train(model, steps, optimizer=None, first=0, each=lambda: None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(first, first + steps):
        x, y = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        each()


def wanted(controller):
    return {name: row["sparsity_wanted"] for name, row in controller.report().items()}


def decide(controller, break_even):
    for name in controller.sparse:
        for product in ("weight", "input"):
            set_break_even(controller.model.get_submodule(name), product, break_even)


# ---- which layers --------------------------------------------------------------------------------


def test_converts_linear_and_conv2d_alone():
    class Own(nn.Linear):
        pass

    model = nn.ModuleDict(
        {
            "linear": nn.Linear(2, 2),
            "conv2d": nn.Conv2d(2, 2, 1),
            "own": Own(2, 2),
            "conv1d": nn.Conv1d(2, 2, 1),
            "conv3d": nn.Conv3d(2, 2, 1),
            "transposed": nn.ConvTranspose2d(2, 2, 1),
            "sparse": sg.nn.Linear(2, 2),
            "lazy": nn.LazyLinear(2),
            "norm": nn.BatchNorm2d(2),
        }
    )
    controller = sg.compress(model, ALWAYS)
    assert controller.converted == ["linear", "conv2d"]
    assert type(model.linear) is sg.nn.Linear and type(model.conv2d) is sg.nn.Conv2d
    reasons = {
        "own": "subclasses",
        "conv1d": "only nn.Linear and nn.Conv2d",
        "conv3d": "only nn.Linear and nn.Conv2d",
        "transposed": "only nn.Linear and nn.Conv2d",
        "sparse": "compressed already",
        "lazy": "not initialised",
    }
    assert controller.left.keys() == reasons.keys()
    for name, reason in reasons.items():
        assert reason in controller.left[name]
        assert f"{name:28} not converted: {controller.left[name]}" in controller.summary()


def test_include_and_exclude():
    _, controller = make(include=["conv1", "conv2"], exclude="conv2")
    assert controller.converted == ["conv1"]
    assert controller.left == {"conv2": "excluded", "head.1": "not included"}


def test_nothing_to_convert():
    with pytest.raises(ValueError, match=r"at least one convolution or linear layer.*Conv2d"):
        sg.compress(nn.Sequential(nn.Conv1d(2, 2, 1)), ALWAYS)


def test_the_layer_stays_the_same_object():
    torch.manual_seed(0)
    model = Net()
    before = {n: id(p) for n, p in model.named_parameters()} | {"layer": id(model.conv1)}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sg.compress(model, ALWAYS, min_elements=1)
    after = {n: id(p) for n, p in model.named_parameters()} | {"layer": id(model.conv1)}
    assert before == after
    weight = model.conv1.weight.detach().clone()
    train(model, 1, optimizer)
    assert not torch.equal(model.conv1.weight, weight)


def test_attention():
    """Its projections are used without being called."""
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0)
    controller = sg.compress(model, ALWAYS, min_elements=1)
    assert controller.converted == ["linear1", "linear2"]
    assert "self_attn.out_proj" in controller.left
    model(torch.randn(2, 5, 16)).sum().backward()
    assert all(row["calls"] == 1 for row in controller.report().values())
    plain = copy.deepcopy(model).eval()
    controller.remove()
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        assert torch.allclose(plain(x), model.eval()(x), atol=1e-6)


def test_shared_modules():
    model = Shared()
    keys = list(model.state_dict())
    controller = sg.compress(model, ALWAYS, min_elements=1)
    assert controller.converted == ["first"]
    model(torch.randn(64, 64)).sum().backward()
    # The first call's input is data, which needs no gradient.
    calls = {name: row["calls"] for name, row in controller.report().items()}
    assert calls == {"first.weight": 2, "first.input": 1}
    controller.remove()
    assert type(model.second) is nn.Linear and list(model.state_dict()) == keys


def test_compressed_twice():
    model, first = make(include="conv1")
    second = sg.compress(model, "fp6", min_elements=1)
    assert second.converted == ["conv2", "head.1"]
    assert second.left == {"conv1": "compressed already"}
    train(model, 1)
    first.remove()
    second.remove()
    assert list(model.state_dict()) == list(Net().state_dict())


# ---- training ------------------------------------------------------------------------------------


def test_forward_is_unchanged():
    model, _ = make()
    torch.manual_seed(0)
    plain = Net()
    x, _ = batch(0)
    assert torch.equal(model(x), plain(x))


@pytest.mark.parametrize(("weight", "input"), [(0.9, 0.6), (0.7, 0.9), (0.95, 0.0)])
def test_the_sparsity_wanted_is_achieved(weight, input):
    """Within 0.01 in every layer of every step; 64 * 10 values of the last layer within 4 standard
    errors of the draw, which are at most 0.08."""
    gradients = sg.Prune(weight=weight, input=input, sparse_backward="always")
    model, controller = make(gradients)

    def look():
        for name, row in controller.report().items():
            target = weight if name.endswith("weight") else input
            if row["calls"]:  # conv1's input is data, which needs no gradient
                assert row["sparsity_wanted"] == target
                tolerance = 0.08 if name.startswith("head") else 0.01
                # A ReLU may have left more zeros than are wanted: then nothing is pruned.
                least = row["sparsity"] if row["threshold"] == 0 else 0
                assert row["sparsity"] == pytest.approx(max(target, least), abs=tolerance), name

    train(model, 6, each=look)
    products = [p for p, s in (("weight", weight), ("input", input)) if s > 0]
    assert list(controller.report()) == [f"{name}.{p}" for name in LAYERS for p in products]


def test_training_learns():
    """One batch, learned by heart."""
    model, _ = make(sg.Prune(weight=0.9, input=0.5, sparse_backward="always"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, y = batch(0, 16)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
@pytest.mark.parametrize("mode", ["always", True])
def test_resumed_training(mode, steps):
    """To the bit, as if there had been no interruption; wherever it comes."""
    gradients = dataclasses.replace(ALWAYS, sparse_backward=mode)
    model, _ = make(gradients)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train(model, steps, optimizer)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    train(model, 3, optimizer, first=steps)
    torch.manual_seed(99)
    again = Net()
    sg.compress(again, gradients, min_elements=1)
    optimizer = torch.optim.SGD(again.parameters(), lr=0.05, momentum=0.9)
    again.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    train(again, 3, optimizer, first=steps)
    ours, theirs = model.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_a_copy_goes_its_own_way():
    model, _ = make()
    train(model, 1)
    twin = copy.deepcopy(model)
    train(model, 2, first=1)
    train(twin, 2, first=1)
    assert equal_states(model, twin)


def test_torch_manual_seed_decides():
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(0)
        model = Net()
        torch.manual_seed(seed)
        sg.compress(model, ALWAYS, min_elements=1)
        train(model, 1)
        results.append(model.conv2.weight.grad)
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


def test_layers_and_products_have_seeds_of_their_own():
    _, controller = make(sg.Prune(0.5, sparse_backward=True))
    seeds = {tuple(gate.plan[:2].tolist()) for gate in controller.gates.values()}
    assert len(seeds) == 2 * len(LAYERS)


# ---- planning ------------------------------------------------------------------------------------


def test_the_default_prunes_the_weight_product():
    _, controller = make(sg.Prune(sparse_backward=True))
    assert list(controller.report()) == [f"{name}.weight" for name in LAYERS]


def test_one_number_sets_both():
    prune = sg.Prune(0.8, sparse_backward=True)
    assert (prune.weight, prune.input) == (0.8, 0.8)
    prune = sg.Prune(input=0.3)
    assert (prune.weight, prune.input, prune.sparse_backward) == (0, 0.3, True)
    assert sg.Prune(0.8).sparse_backward is False


def test_set_sparsity():
    model, controller = make()
    controller.set_sparsity(0.7, product="weight")
    train(model, 1)
    assert {n: w for n, w in wanted(controller).items() if n.startswith("conv2")} == {
        "conv2.weight": 0.7,
        "conv2.input": 0.5,
    }
    assert (controller.prune.weight, controller.prune.input) == (0.7, 0.5)
    controller.set_sparsity(0.6)
    train(model, 1)
    assert {w for n, w in wanted(controller).items() if n != "conv1.input"} == {0.6}
    assert controller.report()["conv2.input"]["sparsity"] == pytest.approx(0.6, abs=0.01)
    for wrong in [{"sparsity": 1.0}, {"sparsity": 0.5, "product": "bias"}]:
        with pytest.raises(ValueError, match=r"\[set_sparsity\] expected"):
            controller.set_sparsity(**wrong)
    _, gated = make(sg.Prune(0.5))
    with pytest.raises(ValueError, match="sparse_backward"):
        gated.set_sparsity(0.5, product="weight")


def test_a_product_that_is_pruned_from_now_on_is_reported():
    model, controller = make(sg.Prune(weight=0.9, sparse_backward="always"))
    controller.set_sparsity(0.6, product="input")
    train(model, 1)
    assert controller.report()["conv2.input"]["sparsity"] == pytest.approx(0.6, abs=0.01)
    assert "conv2.input" in controller.summary()


def test_schedule():
    """Linear between its points; a product that is left dense stays so."""
    gradients = sg.Prune(weight=0.9, sparse_backward="always")
    model, controller = make(gradients, schedule={0: 0.6, 4: 0.8})
    seen = []
    train(model, 6, each=lambda: seen.append(controller.report()["conv2.weight"]))
    targets = [0.6, 0.65, 0.7, 0.75, 0.8, 0.8]
    assert [row["sparsity_wanted"] for row in seen] == pytest.approx(targets)
    assert [row["sparsity"] for row in seen] == pytest.approx(targets, abs=0.01)
    assert all(s.choices()["input"]["way"] == "dense" for s in controller.sparse.values())


def test_warmup():
    model, controller = make(warmup=2)
    seen = []
    train(model, 4, each=lambda: seen.append(controller.report()["conv2.weight"]))
    assert [row["compressed"] for row in seen] == [False, False, True, True]
    assert [row["way"] for row in seen] == ["dense", "dense", "sparse", "sparse"]


def test_warmup_is_plain_training():
    model, _ = make(warmup=1)
    torch.manual_seed(0)
    plain = Net()
    for m in (model, plain):
        x, y = batch(0)
        F.cross_entropy(m(x), y).backward()
    for (name, p), q in zip(plain.named_parameters(), model.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, rtol=1e-4, atol=1e-6), name


def test_allocation_by_product():
    """Each product spends a budget of its own; layers with other spreads get other shares."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(32, 100), nn.Linear(32, 100)

        def forward(self, x):
            return self.a(x), self.b(x)

    torch.manual_seed(0)
    model = Both()
    gradients = dataclasses.replace(ALWAYS, weight=0.8, allocation="min_cosine")
    controller = sg.compress(model, gradients, min_elements=1, seed=1)
    for step in range(4):
        outputs = model(torch.randn(100, 32, requires_grad=True))
        grads = [lognormal((100, 100), s, seed=10 * step + i) for i, s in enumerate((1.0, 3.0))]
        torch.autograd.backward(outputs, grads)
    report = controller.report()
    for product, target in (("weight", 0.8), ("input", 0.5)):
        rows = [report[f"{name}.{product}"] for name in "ab"]
        assert sum(row["sparsity"] for row in rows) / 2 == pytest.approx(target, abs=0.02)
        assert rows[1]["sparsity"] > rows[0]["sparsity"] + 0.05


def test_refresh():
    """Without planning anew the threshold stays, until it is asked for."""
    model, controller = make(refresh=0)
    plan = model.conv2.slimgrad_sparse.weight.plan
    thresholds = []
    train(model, 2, each=lambda: thresholds.append(plan[Plan.THRESHOLD].item()))
    controller.refresh()
    train(model, 1, first=2, each=lambda: thresholds.append(plan[Plan.THRESHOLD].item()))
    assert thresholds[0] == thresholds[1] != thresholds[2]


# ---- reports and the way back --------------------------------------------------------------------


def test_report_summary_and_log(tmp_path):
    model, controller = make(dataclasses.replace(ALWAYS, sparse_backward=True))
    train(model, 1)
    for name, row in controller.report().items():
        if name == "conv1.input":  # Nobody wants the gradient of the images.
            assert row["chosen_by"] is None and row["break_even"] is None
        else:
            assert row["chosen_by"] == "model" and 0 <= row["break_even"] <= 1
    assert "(model)" in controller.summary()
    decide(controller, 0)
    train(model, 1)
    row = controller.report()["conv2.weight"]
    assert row["way"] == "sparse" and row["break_even"] == 0 and row["calls"] == 2
    assert "sparse, sparse pays from 0.00 (model)" in controller.summary()
    decide(controller, 1)
    train(model, 1)
    row = controller.report()["conv2.weight"]
    assert row["way"] == "dense" and row["break_even"] == 1 and not row["compressed"]
    assert "dense, sparse pays never (model)" in controller.summary()
    controller.log(tmp_path / "log")
    layers = json.loads((tmp_path / "log").read_text())["layers"]
    assert layers["conv2.weight"]["way"] == "dense"


def test_remove():
    model, controller = make(dataclasses.replace(ALWAYS, allocation="min_cosine"))
    train(model, 2)
    controller.remove()
    assert list(model.state_dict()) == list(Net().state_dict())
    assert [type(model.get_submodule(name)) for name in LAYERS] == [nn.Conv2d, nn.Conv2d, nn.Linear]
    assert controller.converted == [] and not model._forward_pre_hooks
    plain = Net()
    plain.load_state_dict(model.state_dict())
    gradients = []
    for m in (model, plain):
        m.zero_grad()
        x, y = batch(0)
        F.cross_entropy(m(x), y).backward()
        gradients.append([p.grad for p in m.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert sg.compress(model, ALWAYS).converted == LAYERS


# ---- misuse --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsity": 0.5, "weight": 0.5}, "either sparsity or weight and input, got both"),
        ({"sparsity": 0.5, "input": 0.5}, "either sparsity or weight and input, got both"),
        ({"weight": 1.0}, "0 <= weight < 1, got 1.0"),
        ({"input": -0.1}, "0 <= input < 1, got -0.1"),
        ({"weight": float("nan")}, "0 <= weight < 1, got nan"),
        ({"weight": "0.9"}, "weight.*got '0.9'"),
        ({"sparsity": 1.5, "sparse_backward": True}, "0 <= sparsity < 1, got 1.5"),
        ({"weight": 0.5, "kind": "topk"}, "kind='stochastic', got 'topk'"),
        ({"weight": 0.5, "sparse_backward": False}, "sparse_backward=True with weight and input"),
        ({"sparsity": 0.5, "sparse_backward": "never"}, "sparse_backward to be.*got 'never'"),
        ({"sparse_backward": "yes"}, "sparse_backward to be.*got 'yes'"),
        ({}, "a sparsity, got none"),
        ({"sparse_backward": False}, "a sparsity, got none"),
        ({"weight": 0.5, "method": "guess"}, "method to be one of.*got 'guess'"),
    ],
    ids=str,
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        sg.Prune(**settings)


@pytest.mark.parametrize("prune", [sg.Prune(0.8, sparse_backward=True), sg.Prune(weight=0.8)])
def test_settings_can_be_changed_by_replace(prune):
    changed = dataclasses.replace(prune, method="mean")
    assert changed.method == "mean"
    assert (changed.weight, changed.input) == (prune.weight, prune.input)


def test_not_with_quantizing():
    model = Net()
    with pytest.raises(ValueError, match="sparse_backward without quantizing"):
        sg.compress(model, [ALWAYS, "fp6"])
    assert list(model.state_dict()) == list(Net().state_dict())


def test_schedule_needs_a_uniform_allocation():
    with pytest.raises(ValueError, match="schedule"):
        make(dataclasses.replace(ALWAYS, allocation="min_cosine"), schedule={0: 0.5})
