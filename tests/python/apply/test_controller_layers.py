"""compress(): which layers it converts."""

import pytest
import torch
from controller_samples import GATED, equal_keys, make, train
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")


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
    assert controller.converted == [str(i) for i in range(7)]
    assert controller.left.keys() == {"8", "9"}  # they have weights, and are no layers that we know


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
)
def test_include_and_exclude(options, converted):
    _, controller = make(**options)
    assert controller.converted == converted
    assert set(controller.left) == set(GATED) - set(converted)
    for name, why in controller.left.items():
        assert why in ("not included", "excluded")
        assert (
            f"not converted: {why}\n    " in controller.summary() and name in controller.summary()
        )


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


def test_lazy_layers_are_left():
    model = nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(4))
    controller = sg.compress(model, "fp6")
    assert controller.converted == ["0"] and "not initialised" in controller.left["1"]


def test_attention_and_a_projection_that_is_never_called():
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0)
    controller = sg.compress(model, "fp6", min_elements=1)
    model(torch.randn(2, 5, 16)).sum().backward()
    assert "self_attn.out_proj" in controller.converted and controller.left == {}
    assert all(row["calls"] == 1 for row in controller.report().values())
    strange = nn.Sequential(type(model.self_attn.out_proj)(2, 2), nn.Linear(2, 2))
    controller = sg.compress(strange, "fp6")
    assert controller.converted == ["1"] and "without calling it" in controller.left["0"]


def test_small_gradients_are_left_alone():
    model, controller = make(sg.Prune(0.8), min_elements=4096)
    train(model, 1)
    compressed = {name: row["compressed"] for name, row in controller.report().items()}
    assert compressed == {"conv1": True, "conv2": True, "head.1": False}  # 160 values
    assert "left alone" in controller.summary()
