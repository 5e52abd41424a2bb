"""compress() with a sparse backward pass: what is converted, what is reported, how to undo it."""

import copy
import dataclasses
import json

import pytest
import torch
import torch.nn.functional as F
from controller_samples import GATED, Net, Shared
from sparse_controllers import ALWAYS, batch, make, train
from sparse_samples import set_break_even
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")


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
        "conv1d": "only nn.Linear, nn.Conv2d",
        "conv3d": "only nn.Linear, nn.Conv2d",
        "transposed": "only nn.Linear, nn.Conv2d",
        "sparse": "compressed already",
        "lazy": "not initialised",
    }
    assert controller.left.keys() == reasons.keys()
    for name, reason in reasons.items():
        assert reason in controller.left[name]
        assert f"not converted: {controller.left[name]}\n    " in controller.summary(width=200)
    assert "    own, conv1d, conv3d, transposed\n" in controller.summary(width=200)


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
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0)
    controller = sg.compress(model, ALWAYS, min_elements=1)
    projections = [f"self_attn.{which}" for which in ("q", "k", "v", "out_proj")]
    assert controller.converted == [*projections, "linear1", "linear2"]
    assert controller.left == {}
    model(torch.randn(2, 5, 16, requires_grad=True)).sum().backward()
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


def decide(controller, break_even):
    for name in controller.sparse:
        for product in ("weight", "input"):
            set_break_even(controller.model.get_submodule(name), product, break_even)


def test_report_summary_and_log(tmp_path):
    model, controller = make(dataclasses.replace(ALWAYS, sparse_backward=True))
    train(model, 1)
    for name, row in controller.report().items():
        if name == "conv1.input":  # Nobody wants the gradient of the images.
            assert row["chosen_by"] is None and row["break_even"] is None
        else:
            assert row["chosen_by"] == "model" and 0 <= row["break_even"] <= 1
    assert "(predicted)" in controller.summary()
    decide(controller, 0)
    train(model, 1)
    row = controller.report()["conv2.weight"]
    assert row["way"] == "sparse" and row["break_even"] == 0 and row["calls"] == 2
    assert "sparse 0.00 (predicted)" in " ".join(controller.summary().split())
    decide(controller, 1)
    train(model, 1)
    row = controller.report()["conv2.weight"]
    assert row["way"] == "dense" and row["break_even"] == 1 and not row["compressed"]
    assert "dense none (predicted)" in " ".join(controller.summary().split())
    controller.log(tmp_path / "log")
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    row = next(line for line in lines if line.get("layer") == "conv2.weight")
    assert row["way"] == "dense" and row["bits_per_value"] == 32


def test_remove():
    model, controller = make(dataclasses.replace(ALWAYS, allocation="min_cosine"))
    train(model, 2)
    controller.remove()
    assert list(model.state_dict()) == list(Net().state_dict())
    assert [type(model.get_submodule(name)) for name in GATED] == [nn.Conv2d, nn.Conv2d, nn.Linear]
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
    assert sg.compress(model, ALWAYS).converted == GATED


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
    assert changed.method == "mean" and changed.products == prune.products


def test_not_with_quantizing():
    model = Net()
    with pytest.raises(ValueError, match="sparse_backward without quantizing"):
        sg.compress(model, [ALWAYS, "fp6"])
    assert list(model.state_dict()) == list(Net().state_dict())


def test_schedule_needs_a_uniform_allocation():
    with pytest.raises(ValueError, match="schedule"):
        make(dataclasses.replace(ALWAYS, allocation="min_cosine"), schedule={0: 0.5})
