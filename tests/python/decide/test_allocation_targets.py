"""Allocation by targets: cosines for some layers, the rest takes what remains of the sparsity."""

import copy
import dataclasses

import pytest
import torch
from controller_samples import Net, equal_keys, two_layers
from gate_samples import lognormal, ops, state
from plan_fields import Plan
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")

LAYERS = {
    "wide": {"log_mean": -6, "log_std": 2.0, "count": 1000},
    "narrow": {"log_mean": -7, "log_std": 1.0, "count": 4000},
    "other": {"log_mean": -8, "log_std": 1.5, "count": 2000},
}


def overall(found):
    counts = [layer["count"] for layer in LAYERS.values()]
    return sum(s * n for s, n in zip(found, counts, strict=True)) / sum(counts)


# ---- allocate ------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["min_cosine", "targets"])
def test_by_name_and_by_index(objective):
    named = sg.allocate(LAYERS, 0.6, objective, targets={"narrow": 0.95})
    assert named.names == list(LAYERS)
    assert named.cosines[1] == pytest.approx(0.95, abs=1e-9)
    assert named.cosines[0] == pytest.approx(named.cosines[2], abs=1e-9)  # the rest: min_cosine
    assert overall(named) == pytest.approx(0.6, abs=1e-12)
    listed = sg.allocate(list(LAYERS.values()), 0.6, objective, targets={1: 0.95})
    assert listed == named and listed.names is None


def test_the_rest_follows_the_objective():
    """Slopes d MSE / dS = threshold^2 are equal for total_error, sparsities for uniform."""
    found = sg.allocate(LAYERS, 0.5, "total_error", targets={"narrow": 0.95})
    assert found.thresholds[0] == pytest.approx(found.thresholds[2], rel=1e-9)
    found = sg.allocate(LAYERS, 0.7, "uniform", targets={"narrow": 0.95})
    assert found[0] == pytest.approx(found[2], abs=1e-9)
    assert overall(found) == pytest.approx(0.7, abs=1e-12)


def test_what_is_out_of_reach_is_said():
    with pytest.raises(ValueError, match=r"between 0\.0+ .*targets.* and 0\.42.*got 0\.[67]"):
        sg.allocate(LAYERS, 0.7, targets={"narrow": 1})  # 0.98 * 3000 / 7000 at most
    with pytest.raises(ValueError, match="targets"):  # nothing is free to make up
        sg.allocate(LAYERS, 0.7, targets=dict.fromkeys(LAYERS, 0.95))


@pytest.mark.parametrize(
    "layers, options, message",
    [
        (LAYERS, {"targets": {"head": 0.9}}, "'narrow'.*got 'head'"),
        (LAYERS, {"targets": {0: 0.9}}, "got 0"),
        (list(LAYERS.values()), {"targets": {3: 0.9}}, "got 3"),
        (list(LAYERS.values()), {"targets": {-1: 0.9}}, "got -1"),
        (LAYERS, {"targets": {"wide": 0}}, "0 < cosine <= 1, got 0"),
        (LAYERS, {"targets": {"wide": 1.1}}, "0 < cosine <= 1, got 1.1"),
        (LAYERS, {"targets": {"wide": float("nan")}}, "0 < cosine <= 1"),
        (LAYERS, {"objective": "targets"}, "at least one target"),
    ],
)
def test_misuse_of_allocate(layers, options, message):
    with pytest.raises(ValueError, match=message):
        sg.allocate(layers, 0.5, **options)


# ---- compress ------------------------------------------------------------------------------------


def targets(cosines, sparsity=0.8, **options):
    return sg.Prune(sparsity, allocation="targets", targets=cosines, **options)


def test_targets_hold_and_the_rest_makes_up():
    _, controller, step = two_layers(targets({"a": 0.97}, 0.6), scales=(1.0, 2.0))
    assert step(0) == pytest.approx([0.6] * 2, abs=0.02)  # nothing measured yet
    for number in range(1, 4):
        first, second = step(number)
        assert (first + second) / 2 == pytest.approx(0.6, abs=0.02)
        assert controller.report()["a"]["cosine"] == pytest.approx(0.97, abs=0.01)
        assert second > first + 0.1
    assert controller.warnings() == []
    controller.set_sparsity(0.5)  # the targets stay
    step(4)
    assert sum(step(5)) / 2 == pytest.approx(0.5, abs=0.02)
    assert controller.report()["a"]["cosine"] == pytest.approx(0.97, abs=0.01)


def test_a_cosine_of_one_is_exact():
    model, controller, step = two_layers(targets({"b": 1}, 0.4), scales=(2.0, 1.0))
    step(0)
    model.zero_grad()
    _, zeros = step(1)
    assert zeros == 0 and controller.report()["b"]["cosine"] == pytest.approx(1)
    x = torch.randn(100, 32, generator=torch.Generator().manual_seed(1))
    exact = lognormal((100, 100), sigma=1.0, seed=3).T @ x
    assert torch.allclose(model.b.weight.grad, exact, rtol=1e-4, atol=1e-4 * exact.abs().max())


def test_an_exact_layer_does_not_prune_away_what_its_last_gradient_lacked():
    """Zeros of the gradient before are no sparsity that the next one has to have."""
    model = nn.Sequential(nn.Linear(32, 100))
    controller = sg.compress(model, targets({"0": 1}, 0.5), min_elements=1, seed=1)
    for number, zeros in enumerate((0.6, 0.6, 0.0)):
        model(torch.randn(100, 32)).backward(lognormal((100, 100), zeros=zeros, seed=number))
    assert controller.report()["0"]["sparsity"] == 0


def test_what_cannot_be_reached_is_approached_and_told():
    """In training the nearest sparsity serves: the free layer at its cap."""
    _, controller, step = two_layers(targets({"a": 1}, 0.8, cap=0.9))
    step(0)
    assert step(1) == pytest.approx([0, 0.9], abs=0.01)
    (sentence,) = [s for s in controller.warnings() if s.startswith("all layers")]
    assert "0.45 zeros instead of 0.80" in sentence and "targets" in sentence
    assert sentence in controller.summary(width=300)


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.ModuleDict({"a": nn.Linear(32, 100), "b": nn.Linear(32, 100)})
        self.blocks = nn.Linear(32, 100)

    def forward(self, x):
        return self.block["a"](x), self.block["b"](x), self.blocks(x)


def cosines_of(model, controller):
    for step in range(3):
        gradients = [lognormal((100, 100), 1.0, seed=3 * step + i) for i in range(3)]
        x = torch.randn(100, 32, requires_grad=True)
        torch.autograd.backward(model(x), gradients)
    return {name: row["cosine"] for name, row in controller.report().items()}


def test_names_may_be_prefixes_and_the_longest_counts():
    torch.manual_seed(0)
    model = Blocks()
    prune = targets({"block": 0.99, "block.b": 0.95}, 0.5)
    cosines = cosines_of(model, sg.compress(model, prune, min_elements=1, seed=1))
    assert cosines["block.a"] == pytest.approx(0.99, abs=0.005)
    assert cosines["block.b"] == pytest.approx(0.95, abs=0.01)
    assert cosines["blocks"] < 0.9  # not below "block": it makes up


def test_other_allocations_take_targets():
    """Layers of one spread are then alike, whatever their objective is."""
    torch.manual_seed(0)
    model = Blocks()
    prune = sg.Prune(0.5, allocation="total_error", targets={"blocks": 0.99})
    cosines = cosines_of(model, sg.compress(model, prune, min_elements=1, seed=1))
    assert cosines["blocks"] == pytest.approx(0.99, abs=0.005)
    assert cosines["block.a"] == pytest.approx(cosines["block.b"], abs=0.02)


@pytest.mark.parametrize("name, aimed", [("blocks", "weight input"), ("blocks.weight", "weight")])
def test_products(name, aimed):
    """Of a sparse backward pass: a layer's name means both, each within its own budget."""
    torch.manual_seed(0)
    model = Blocks()
    prune = sg.Prune(
        weight=0.7,
        input=0.5,
        sparse_backward="always",
        allocation="targets",
        targets={name: 0.98},
    )
    cosines = cosines_of(model, sg.compress(model, prune, min_elements=1, seed=1))
    for product in ("weight", "input"):
        has_target = product in aimed.split()
        assert (abs(cosines[f"blocks.{product}"] - 0.98) < 0.005) == has_target


def test_copies_of_a_model_keep_their_targets():
    model, _, step = two_layers(targets({"a": 1}, 0.4))
    step(0)
    copied = copy.deepcopy(model)
    for seed in (5, 6):
        gradients = [lognormal((100, 100), seed=seed + 10 * i) for i in range(2)]
        torch.autograd.backward(copied(torch.randn(100, 32)), gradients)
    assert copied.a.slimgrad_gate.plan[Plan.SPARSITY] == 0
    assert copied.b.slimgrad_gate.plan[Plan.SPARSITY] == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("name", ["conv3", "conv", "norm", "head.0", "conv1.weight", ""])
def test_names_of_nothing_are_refused_before_anything_changes(name):
    model = Net()
    model.head.append(nn.GELU())
    before = [type(m) for m in model.modules()]
    with pytest.raises(ValueError, match=rf"targets, got '{name}'; there are: conv1, conv2"):
        sg.compress(model, targets({"conv1": 0.9, name: 0.9}), activations=3)
    with pytest.raises(ValueError, match="got 'conv1'"):
        sg.compress(model, targets({"conv1": 0.9}), activations=3, exclude="conv1")
    assert equal_keys(model) and [type(m) for m in model.modules()] == before
    assert not model._forward_pre_hooks and not model.conv1._forward_hooks


def test_a_product_that_is_not_pruned_has_no_target():
    prune = sg.Prune(weight=0.8, input=0, allocation="targets", targets={"conv1.input": 0.9})
    with pytest.raises(ValueError, match=r"there are: conv1\.weight, conv2\.weight"):
        sg.compress(Net(), prune)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"allocation": "targets"}, "targets={name: cosine}, got none"),
        ({"targets": {"a": 0.9}}, "allocation='targets' with targets, got 'uniform'"),
        ({"allocation": "targets", "targets": {}}, "targets={name: cosine}"),
        ({"allocation": "targets", "targets": ["a"]}, "targets={name: cosine}"),
        ({"allocation": "targets", "targets": {"a": 0}}, "0 < cosine <= 1.*'a': 0"),
        ({"allocation": "targets", "targets": {"a": 1.5}}, "0 < cosine <= 1.*'a': 1.5"),
        ({"allocation": "targets", "targets": {"a": float("nan")}}, "0 < cosine <= 1"),
        ({"allocation": "targets", "targets": {"a": "high"}}, "0 < cosine <= 1"),
        ({"allocation": "targets", "targets": {3: 0.9}}, "0 < cosine <= 1"),
        ({"allocation": "min_cosine", "method": "mean"}, "another method than 'mean'"),
    ],
)
def test_wrong_settings(options, message):
    with pytest.raises(ValueError, match=message):
        sg.Prune(0.8, **options)


def test_settings_are_values():
    mine = {"a": 0.9}
    prune = targets(mine)
    mine["b"] = 0.8
    assert prune.targets == {"a": 0.9}
    assert hash(prune) == hash(targets({"a": 0.9})) and prune == targets({"a": 0.9})
    assert dataclasses.replace(prune, cap=0.9).targets == {"a": 0.9}
    with pytest.raises(ValueError, match="allocation='uniform' for a single layer"):
        sg.nn.Linear(4, 4, gradients=targets({"a": 0.9}, sparse_backward=True))


# ---- the op --------------------------------------------------------------------------------------


def measured_plans():
    states = [state(sg.Prune(0.8)) for _ in range(3)]
    for seed, (plan, stats) in enumerate(states):
        shape = (20, 20) if seed == 1 else (100, 100)
        plan[Plan.MIN_ELEMENTS] = 1000
        ops.compress_gradient(lognormal(shape, sigma=1 + seed), plan, stats, 0)
    plans, stats = zip(*states, strict=True)
    return list(plans), list(stats)


def test_opcheck():
    arguments = (*measured_plans(), "targets", "empirical", 0.98, [2], [0.9])
    torch.library.opcheck(ops.allocate_plans_.default, arguments)


def test_a_target_of_a_layer_that_is_too_small_is_left():
    plans, stats = measured_plans()
    ops.allocate_plans_(plans, stats, "targets", "empirical", 0.98, [1], [0.9])
    with_it = [plan[Plan.SPARSITY].item() for plan in plans]
    ops.allocate_plans_(plans, stats, "min_cosine", "empirical", 0.98)
    assert with_it == [plan[Plan.SPARSITY].item() for plan in plans]
    assert with_it[1] == 0.8


@pytest.mark.parametrize(
    "layers, cosines", [([0], []), ([3], [0.9]), ([-1], [0.9]), ([0, 0], [0.9, 0.8]), ([0], [0.0])]
)
def test_misuse_of_the_op(layers, cosines):
    with pytest.raises(ValueError, match="target"):
        ops.allocate_plans_(*measured_plans(), "min_cosine", "empirical", 0.98, layers, cosines)
