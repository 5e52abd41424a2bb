"""Plans over time and over layers: schedules, refreshing, allocation, loss scales."""

import pytest
import torch
from controller_samples import make, two_layers
from gate_samples import lognormal
from plan_fields import SCHEDULE, Plan
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")


def test_schedule():
    _, controller, step = two_layers(sg.Prune(0.1), schedule={2: 0.5, 6: 0.9})
    expected = [0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.9, 0.9]
    for number, wanted in enumerate(expected):
        assert step(number) == pytest.approx([wanted] * 2, abs=0.02)
        assert controller.report()["a"]["sparsity_wanted"] == pytest.approx(wanted)


def test_schedule_is_exact():
    _, controller = make(sg.Prune(0.5), schedule={0: 0.5, 2**24 + 1: 0.85})
    plan = controller.gates["conv1"].plan[SCHEDULE].tolist()
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
