"""What compress() plans for a sparse backward pass: sparsity by product, schedule, allocation."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from controller_samples import GATED, Net
from gate_samples import lognormal
from plan_fields import Plan
from sparse_controllers import ALWAYS, batch, make, train
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")


def wanted(controller):
    return {name: row["sparsity_wanted"] for name, row in controller.report().items()}


def test_the_default_prunes_the_weight_product():
    _, controller = make(sg.Prune(sparse_backward=True))
    assert list(controller.report()) == [f"{name}.weight" for name in GATED]


def test_one_number_sets_both():
    prune = sg.Prune(0.8, sparse_backward=True)
    assert prune.is_sparse and prune.products == {"weight": 0.8, "input": 0.8}
    prune = sg.Prune(input=0.3)
    assert prune.is_sparse and prune.products == {"weight": 0, "input": 0.3}
    assert not sg.Prune(0.8).is_sparse and sg.Prune(0.8).products == {}


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
