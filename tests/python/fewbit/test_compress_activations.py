"""compress(activations=): the bytes kept fall, values are torch's, what is left is said, and all of
it can be undone."""

import pytest
import torch
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH, WIDTH = 64, 256
SAVED = BATCH * WIDTH  # elements of an activation's input


class Net(nn.Module):
    """Nothing but the activations keeps their inputs; Sigmoid, PReLU and a function are left."""

    def __init__(self):
        super().__init__()
        self.first, self.gelu = nn.Linear(32, WIDTH), nn.GELU()
        self.second, self.relu = nn.Linear(WIDTH, WIDTH), nn.ReLU()
        self.third, self.silu = nn.Linear(WIDTH, WIDTH), nn.SiLU()
        self.slope, self.gate = nn.PReLU(), nn.Sigmoid()

    def forward(self, x):
        x = self.relu(self.second(self.gelu(self.first(x))))
        return torch.tanh(self.gate(self.slope(self.silu(self.third(x)))))


ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU, "slope": nn.PReLU}
ACTIVATIONS["gate"] = nn.Sigmoid


@pytest.fixture
def nets():
    """Two equal ones, and an input."""
    torch.manual_seed(0)
    plain, ours = Net(), Net()
    ours.load_state_dict(plain.state_dict())
    return plain, ours, torch.randn(BATCH, 32)


def types(model):
    return {name: type(model.get_submodule(name)) for name in ACTIVATIONS}


def gradients(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_the_bytes_kept_fall_to_the_bits(nets, bits):
    plain, ours, x = nets
    before = sg.saved_bytes(plain, x)
    sg.compress(ours, activations=bits)
    after = sg.saved_bytes(ours, x)
    # The output of a ReLU is all that torch keeps of it, and the next layer keeps that, too.
    for name, exact in (("gelu", None), ("silu", None), ("relu", 1)):
        assert before.by_layer[name] == 4 * SAVED
        assert after.by_layer[name] == SAVED * (exact or bits) // 8
    # What the layer behind it then keeps for itself.
    assert after.by_layer["third"] == before.by_layer.get("third", 0) + 4 * SAVED
    assert after.total == sum(after.by_layer.values()) < before.total - 2 * SAVED


@pytest.mark.parametrize("bits", [1, 3, "exact"])
def test_values_forward_are_those_of_torch(nets, bits):
    plain, ours, x = nets
    sg.compress(ours, activations=bits)
    assert types(ours)["gelu"] is sg.nn.GELU
    assert torch.equal(ours(x), plain(x))
    ours.eval(), plain.eval()
    with torch.no_grad():
        assert torch.equal(ours(x), plain(x))


def test_gradients_follow_the_bits(nets):
    """Backward is what changes: less with every bit, and hardly if it is exact."""
    plain, ours, x = nets
    want = gradients(plain, x)[0]
    errors = []
    for bits in (1, 2, 3, 4, "exact"):
        controller = sg.compress(ours, activations=bits)
        errors.append(float((gradients(ours, x)[0] - want).norm() / want.norm()))
        controller.remove()
    assert errors == sorted(errors, reverse=True)
    assert 0.001 < errors[3] < 0.1 and errors[4] < 1e-3


@pytest.mark.parametrize(
    "how",
    [
        {"activations": 3},
        {"activations": "exact", "saved": 4},
        {"gradients": "fp6", "activations": 3, "saved": "exact"},
        {"gradients": sg.Prune(weight=0.9, input=0.5), "activations": 2},
    ],
)
def test_the_plain_column_is_that_of_the_plain_model(nets, how):
    plain, ours, x = nets
    before = sg.saved_bytes(plain, x)
    sg.compress(ours, **how)
    for model in (ours, nn.Sequential(ours)):
        found = sg.saved_bytes(model, x)
        assert found.plain == before.plain == before.total > found.total
        assert [*found.plain_by_layer.values()] == [*before.by_layer.values()]
        assert sum(found.by_layer.values()) == found.total
    lines = str(sg.saved_bytes(ours, x)).splitlines()
    total = next(line for line in lines if line.endswith("total"))
    assert lines[0].split() == ["plain", "saved"] and f"{before.total:,}" in total
    rows = [line.replace(",", "").split()[:2] for line in lines[1 : lines.index(total)]]
    assert [sum(int(row[i]) for row in rows) for i in (0, 1)] == [before.total, found.total]


def test_modules_inside_of_stepwise_ones_are_counted_as_them():
    x = torch.randn(64, 64)
    table = sg.steps("gelu", bits=3)
    model = nn.Sequential(nn.Linear(64, 64), sg.nn.Stepwise(nn.GELU(), table), nn.Linear(64, 8))
    found = sg.saved_bytes(model, x)
    assert found.plain_by_layer == {"0": 4 * 64 * 64, "1": 4 * 64 * 64, "2": 4 * 64 * 64}
    assert found.by_layer["1"] == 3 * 64 * 64 // 8


def test_what_is_left_is_reported(nets):
    _, ours, x = nets
    controller = sg.compress(ours, activations=3, inputs=x)
    report = controller.activations
    assert {name for name, _, _ in report.converted} == {"gelu", "relu", "silu"}
    left = {(name, what): why for name, what, why in report.left}
    assert left.keys() == {("slope", "PReLU"), ("gate", "Sigmoid"), ("(model)", "tanh")}
    assert "its weight" in left["slope", "PReLU"] and "called as a f" in left["(model)", "tanh"]
    for name, what, why in report.left:
        assert f"left {name}: {what}: {why}" in str(report)
        assert f"activations left, 1 {what}: {why}\n    {name}" in controller.summary(width=200)
    for name, was, now in report.converted:
        assert f"converted {name}: {was} -> {now}" in str(report)
    kept = "3 bits instead of the input"
    assert f"activations, {kept}: 1 GELU, 1 SiLU\n    gelu, silu\n" in controller.summary()
    assert "1 bit instead of the input, exact: 1 ReLU\n    relu\n" in controller.summary()
    assert controller.converted == ["gelu", "relu", "silu"] and controller.report() == {}


def test_include_and_exclude(nets):
    _, ours, _ = nets
    controller = sg.compress(ours, activations=3, include=["gelu", "relu", "gate"], exclude="relu")
    assert types(ours) == ACTIVATIONS | {"gelu": sg.nn.GELU, "gate": sg.nn.Sigmoid}
    left = {name: why for name, _, why in controller.activations.left}
    assert left == dict.fromkeys(["relu", "silu", "slope"], "not included")


def test_together_with_gradients(nets):
    """Each does what it does alone: the bytes of the activations, the sparsity of the gates."""
    plain, ours, x = nets
    alone = Net()
    sg.compress(alone, activations=3)
    controller = sg.compress(
        ours, [sg.Prune(0.8), "fp6"], activations=3, exclude="third", min_elements=1, seed=1
    )
    assert list(controller.layers) == ["first", "second"]
    assert controller.left == {"third": "excluded"}
    assert controller.converted == ["first", "second", "gelu", "relu", "silu"]
    assert sg.saved_bytes(ours, x).total == sg.saved_bytes(alone, x).total
    assert torch.equal(ours(x), plain(x))
    gradients(ours, x)
    for row in controller.report().values():
        assert row["calls"] == 1 and row["compressed"]
        assert row["sparsity"] == pytest.approx(0.8, abs=0.02)
    assert "1 GELU, 1 SiLU" in controller.summary() and "third" in controller.summary()


@pytest.mark.parametrize("with_gradients", [(), sg.Prune(0.8), sg.Prune(weight=0.8)], ids=str)
def test_remove_restores(nets, with_gradients):
    plain, ours, x = nets
    originals = {name: ours.get_submodule(name) for name in ACTIVATIONS}
    controller = sg.compress(ours, with_gradients, activations=2, min_elements=1)
    gradients(ours, x)
    ours.eval()
    controller.remove()
    assert all(ours.get_submodule(name) is module for name, module in originals.items())
    assert not any(module.training for module in ours.modules())
    assert list(ours.state_dict()) == list(plain.state_dict())
    assert sg.saved_bytes(ours, x) == sg.saved_bytes(plain, x)
    both = zip(gradients(ours, x), gradients(plain, x), strict=True)
    assert all(torch.equal(a, b) for a, b in both)
