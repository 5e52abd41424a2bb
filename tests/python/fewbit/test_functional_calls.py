"""Activations that are called as functions are found by reading the code, without false alarms."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import relu as imported

import slimgrad as sg


def found(model):
    """(layer, function) that the report names when there are no inputs."""
    report = sg.nn.convert_activations(model, 3)
    rows = [row for row in report.left if row[2].startswith("seems to call")]
    for _, function, why in rows:
        assert f"seems to call {function} as a function" in why and "inputs=" in why
    return {(layer, function) for layer, function, _ in rows}


def helper(x):
    return deeper(x)


def deeper(x):
    return torch.nn.functional.silu(x)


def optional(x):
    return F.elu(x)


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


def undecorated(function):
    def wrapper(*args):
        return function(*args)

    return wrapper


class Base(nn.Module):
    def forward(self, x):
        return F.mish(x)


class Space(Base):
    def forward(self, x):
        return F.relu(x) + torch.sigmoid(x)


class Name(Base):
    def forward(self, x):
        return imported(x)


class Method(Base):
    def forward(self, x):
        return (x + 1).tanh().relu_()


class Helper(Base):
    def forward(self, x):
        return helper(self._more(x)) + self.still(x)

    def _more(self, x):
        return F.gelu(x)

    @staticmethod
    def still(x):
        return F.softplus(x)


class Nested(Base):
    def forward(self, x):
        def inner(y):
            return F.celu(y)

        return sum(F.selu(part) for part in (inner(x), x))


class Decorated(Base):
    @decorated
    def forward(self, x):
        return F.relu6(x)


class Closure(Base):
    @undecorated
    def forward(self, x):
        return F.hardswish(x)


class Super(Base):
    def forward(self, x):
        return super().forward(x)


class Inherited(Base):
    pass


CALLS = [
    (Space, {"relu", "sigmoid"}),
    (Name, {"relu"}),
    (Method, {"tanh", "relu"}),
    (Helper, {"silu", "gelu", "softplus"}),
    (Nested, {"celu", "selu"}),
    (Decorated, {"relu6"}),
    (Closure, {"hardswish"}),
    (Super, {"mish"}),
    (Inherited, {"mish"}),
]


@pytest.mark.parametrize(("cls", "functions"), CALLS)
def test_calls_are_found(cls, functions):
    assert found(cls()) == {("(model)", function) for function in functions}
    assert found(nn.Sequential(nn.ReLU(), cls())) == {("1", function) for function in functions}


@pytest.mark.parametrize(("cls", "functions"), CALLS)
def test_a_forward_pass_finds_the_same(cls, functions):
    model = nn.Sequential(nn.Linear(4, 4), cls())
    report = sg.nn.convert_activations(model, 3, inputs=torch.randn(2, 4))
    names = {function.rstrip("_") for layer, function, _ in report.left if layer == "1"}
    assert names >= functions


def test_functions_held_as_attributes():
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    report = sg.nn.convert_activations(layer, 3)
    (row,) = [row for row in report.left if "seems" in row[2]]
    assert row[:2] == ("(model)", "relu") and "held as .activation" in row[2]
    assert "slimgrad.nn" in row[2]
    own = Own(functools.partial(F.leaky_relu, negative_slope=0.1))
    assert found(nn.Sequential(own)) == {("0", "leaky_relu")}
    assert found(nn.Sequential(Own(sg.functional.relu), Own(math.tanh), Own(nn.ReLU()))) == set()


class Own(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.act = act

    def forward(self, x):
        return self.act(x)


class NoSource:
    """Classes that were made by exec, as at a prompt."""

    TEXT = """
class Typed(nn.Module):
    def forward(self, x):
        return F.relu(x)

class Harmless(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x):
        return F.pad(self.relu(x), (1, 1))
"""


def test_without_source():
    space = {"nn": nn, "F": F, "__name__": "typed"}
    exec(NoSource.TEXT, space)
    assert found(space["Typed"]()) == {("(model)", "relu")}
    assert found(nn.Sequential(space["Harmless"]())) == set()


# ---- no false alarms -------------------------------------------------------------------------


class Bottleneck(nn.Module):
    """As torchvision writes it."""

    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.relu = nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layers = nn.ModuleList([Bottleneck(8), Bottleneck(8)])
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        return self._forward_impl(x)

    def _forward_impl(self, x):
        x = self.maxpool(self.relu(self.conv1(x)))
        for layer in self.layers:
            x = layer.relu(layer(x))  # a layer's, not a tensor's
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Names(nn.Module):
    """Names that are only like those of functions."""

    def __init__(self):
        super().__init__()
        self.dropout, self.threshold, self.activation = 0.1, 3, nn.GELU()

    def forward(self, x, relu=None):
        gelu = self.activation
        x = gelu(x) * math.tanh(self.threshold)
        chosen = {"elu": optional}.get(relu, self.elu)
        return F.softmax(chosen(x), -1) * (1 - self.dropout)

    def elu(self, x):
        return sg.functional.elu(x)


@pytest.mark.parametrize("make", [ResNet, Names])
def test_no_false_alarms(make):
    assert found(make()) == set()


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "vit", "t5"])
def test_no_false_alarms_in_transformers(name):
    t = pytest.importorskip("transformers")
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "vocab_size": 40}
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    small["intermediate_size"] = 32
    model = {
        "bert": lambda: t.BertForMaskedLM(t.BertConfig(**small, **ids)),
        "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(n_embd=16, n_layer=1, n_head=2, **ids)),
        "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**small, **ids)),
        "vit": lambda: t.ViTForImageClassification(t.ViTConfig(**small, image_size=16)),
        "t5": lambda: t.T5ForConditionalGeneration(
            t.T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, **ids)
        ),
    }[name]()
    assert found(model) == set()


# ---- nothing at all --------------------------------------------------------------------------


def test_a_report_of_nothing_says_why():
    model = nn.Sequential(nn.Linear(4, 4))
    report = sg.nn.convert_activations(model, 3)
    assert "nothing was converted: no module" in str(report) and "inputs=" in str(report)
    report = sg.nn.convert_activations(model, 3, inputs=torch.ones(1, 4))
    assert "nothing was converted" in str(report) and "inputs=" not in report.nothing
    left = sg.nn.convert_activations(nn.Sequential(nn.Sigmoid(), nn.Tanh()), 3)
    assert "nothing was converted; found and left: 2" in str(left)
    assert sg.nn.convert_activations(nn.Sequential(nn.ReLU()), 3).nothing == ""
    controller = sg.compress(model, "fp6")  # Activations were not asked for.
    assert controller.activations.nothing == "" and "activations" not in controller.summary()
    assert "activations: nothing was conv" in sg.compress(model, activations=3).summary()


@pytest.mark.parametrize(
    ("make", "kept"),
    [
        (nn.ReLU, "1 bit instead of the input, exact"),
        (nn.ReLU6, "2 bits instead of the input, exact"),
        (nn.Hardtanh, "1 bit instead of the input, exact"),
        (lambda: nn.Hardtanh(-1, 2), "2 bits instead of the input, exact"),
        (nn.GELU, "3 bits instead of the input"),
        (nn.Dropout, "1 bit instead of the mask"),
        (lambda: nn.MaxPool2d(2), "4 bits an output instead of the input and 64"),
    ],
)
def test_what_is_kept_is_said(make, kept):
    model = nn.Sequential(nn.Conv2d(2, 16, 1), make())
    x = torch.randn(2, 2, 16, 16)
    report = sg.nn.convert_activations(model, 3)
    assert report.kept == {"1": kept}
    elements = model(x).numel() if isinstance(model[1], nn.MaxPool2d) else 2 * 16 * 16 * 16
    saved = sg.saved_bytes(model, x).by_layer["1"]
    assert saved == elements * int(kept.split()[0]) // 8


def test_exact_random_and_wrapped_ones():
    report = sg.nn.convert_activations(nn.Sequential(nn.RReLU()), 3)
    assert report.kept == {"0": "torch's own in training, 1 bit in evaluation"}
    report = sg.nn.convert_activations(nn.Sequential(nn.GELU()), "exact")
    assert report.kept == {"0": "the output and 1 bit instead of the input"}
    activations = pytest.importorskip("transformers.activations")
    report = sg.nn.convert_activations(nn.Sequential(activations.NewGELUActivation()), 2)
    assert report.converted == [("0", "NewGELUActivation", "Stepwise(NewGELUActivation, levels=4)")]
    assert report.kept == {"0": "2 bits instead of the input"}
