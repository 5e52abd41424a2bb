"""An allocation weighs layers by their size, not by the sample that is measured of them; and a
product that was done densely stays in it."""

import pytest
import torch
from gate_samples import lognormal
from plan_fields import Plan
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = 100
SIZES = {"small": 40, "large": 400}  # a gradient of the large one has ten times the values
SPREADS = {"small": 1.8, "large": 1.0}
SPARSE = sg.Prune(weight=0.8, input=0.6, sparse_backward="always", allocation="min_cosine")


class TwoSizes(nn.Module):
    def __init__(self):
        super().__init__()
        self.small, self.large = (nn.Linear(32, size) for size in SIZES.values())

    def forward(self, x):
        return self.small(x), self.large(x)


def make(prune, **options):
    torch.manual_seed(0)
    model = TwoSizes()
    return model, sg.compress(model, prune, **{"min_elements": 1, "seed": 1, **options})


def step(model, number, before_backward=lambda: None):
    outputs = model(torch.randn(ROWS, 32, requires_grad=True))
    before_backward()
    gradients = [
        lognormal((ROWS, size), SPREADS[name], seed=10 * number + i)
        for i, (name, size) in enumerate(SIZES.items())
    ]
    torch.autograd.backward(outputs, gradients)


def overall(controller, suffix):
    """The zeros of all gradients together."""
    report = controller.report()
    zeros = sum(report[name + suffix]["sparsity"] * size for name, size in SIZES.items())
    return zeros / sum(SIZES.values())


@pytest.mark.parametrize(
    "prune, budgets",
    [
        (sg.Prune(0.8, allocation="min_cosine"), {"": 0.8}),
        (SPARSE, {".weight": 0.8, ".input": 0.6}),
    ],
    ids=["gates", "sparse"],
)
@pytest.mark.parametrize("sample", [2000, 1 << 16])
def test_layers_weigh_what_they_hold(prune, budgets, sample):
    """With a sample that is smaller than both gradients, both have as many values in it. The layer
    with the heavy tail is pruned much further, so that equal weights would miss the budget."""
    model, controller = make(prune, sample=sample)
    for number in range(3):
        step(model, number)
    report = controller.report()
    for suffix, budget in budgets.items():
        small, large = (report[name + suffix]["sparsity"] for name in SIZES)
        assert small > large + 0.1
        assert overall(controller, suffix) == pytest.approx(budget, abs=0.015)
        assert abs((small + large) / 2 - budget) > 0.03  # equal weights would have given this


@pytest.mark.parametrize("product, budget", [("weight", 0.8), ("input", 0.6)])
@pytest.mark.parametrize("name", SIZES)
def test_a_product_that_became_dense_comes_back(name, product, budget):
    """A dense product measures nothing. What was measured before stays, so that the allocation
    gives it a share again, and the others no more than theirs."""
    model, controller = make(SPARSE)
    gate = controller.gates[f"{name}.{product}"]
    other = next(n for n in SIZES if n != name)
    for _ in range(2):
        step(model, 0)  # always the same gradients: what is measured does not move
    before = controller.report()[f"{name}.{product}"]
    share = controller.report()[f"{other}.{product}"]["sparsity_wanted"]

    def without_sparsity():
        gate.plan[Plan.SPARSITY] = 0

    for _ in range(2):  # after the allocation, so that this pass is dense and exact
        step(model, 0, without_sparsity)
        row = controller.report()[f"{name}.{product}"]
        assert row["way"] == "dense" and not row["compressed"] and row["sparsity"] == 0
        # It counts all the while: nobody else takes its share of the budget.
        wanted = controller.report()[f"{other}.{product}"]["sparsity_wanted"]
        assert wanted == pytest.approx(share, abs=1e-9)
    step(model, 0)
    row = controller.report()[f"{name}.{product}"]
    assert row["way"] == "sparse" and row["compressed"]
    assert row["sparsity_wanted"] == pytest.approx(before["sparsity_wanted"], abs=1e-9)
    assert overall(controller, f".{product}") == pytest.approx(budget, abs=0.015)
