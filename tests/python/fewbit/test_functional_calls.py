"""A forward pass finds the activations that are called as functions, without false alarms."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import relu as imported

import slimgrad as sg


def with_gradient(module):
    return nn.Sequential(nn.Linear(4, 4), module)


def found(model, x=None):
    """(layer, function) that the report names."""
    report = sg.nn.convert_activations(model, 3, inputs=torch.randn(2, 4) if x is None else x)
    rows = [row for row in report.left if row[2].startswith("called as a function")]
    return {(layer, function.rstrip("_")) for layer, function, _ in rows}


def helper(x):
    return deeper(x)


def deeper(x):
    return torch.nn.functional.silu(x)


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
    assert found(with_gradient(cls())) == {("1", function) for function in functions}


def test_functions_held_as_attributes():
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    assert ("(model)", "relu") in found(layer, torch.randn(3, 2, 8))
    own = Own(functools.partial(F.leaky_relu, negative_slope=0.1))
    assert found(with_gradient(own)) == {("1", "leaky_relu")}
    assert found(with_gradient(Own(sg.functional.relu))) == set()
    assert found(with_gradient(Own(nn.ReLU()))) == set()


def test_without_inputs_nothing_is_said_of_functions():
    assert sg.nn.convert_activations(with_gradient(Space()), 3).left == []


class Own(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.act = act

    def forward(self, x):
        return self.act(x)


# ---- no false alarms -------------------------------------------------------------------------


class Branches(nn.Module):
    """Its code names functions that do not run, and has names that are only like theirs."""

    def __init__(self):
        super().__init__()
        self.dropout, self.threshold, self.activation = 0.1, 3, nn.GELU()

    def forward(self, x, relu=None):
        if relu is not None:
            return F.elu(x)
        gelu = self.activation
        x = gelu(x) * math.tanh(self.threshold)
        return F.softmax(self.elu(x), -1) * (1 - self.dropout)

    def elu(self, x):
        return sg.functional.elu(x)


def test_no_false_alarms():
    assert found(with_gradient(Branches())) == set()


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
    ("make", "saved"),
    [
        (nn.ReLU, "1 bit instead of the input, exact"),
        (nn.ReLU6, "2 bits instead of the input, exact"),
        (nn.Hardtanh, "1 bit instead of the input, exact"),
        (lambda: nn.Hardtanh(-1, 2), "2 bits instead of the input, exact"),
        (nn.GELU, "3 bits instead of the input"),
        (nn.Dropout, "1 bit instead of the mask"),
        (lambda: nn.MaxPool2d(2), "4 bits per output instead of the input and 64 bits per output"),
    ],
)
def test_what_is_saved_is_said(make, saved):
    model = nn.Sequential(nn.Conv2d(2, 16, 1), make())
    x = torch.randn(2, 2, 16, 16)
    report = sg.nn.convert_activations(model, 3)
    assert report.saved == {"1": saved}
    elements = model(x).numel() if isinstance(model[1], nn.MaxPool2d) else 2 * 16 * 16 * 16
    total = sg.saved_bytes(model, x).by_layer["1"]
    assert total == elements * int(saved.split()[0]) // 8


def test_exact_random_and_wrapped_ones():
    report = sg.nn.convert_activations(nn.Sequential(nn.RReLU()), 3)
    assert report.saved == {"0": "torch's own in training, 1 bit in evaluation"}
    report = sg.nn.convert_activations(nn.Sequential(nn.GELU()), "exact")
    assert report.saved == {"0": "the output and 1 bit instead of the input"}
    activations = pytest.importorskip("transformers.activations")
    report = sg.nn.convert_activations(nn.Sequential(activations.NewGELUActivation()), 2)
    assert report.converted == [("0", "NewGELUActivation", "Stepwise(NewGELUActivation, levels=4)")]
    assert report.saved == {"0": "2 bits instead of the input"}
