"""controller.tune() and set_way(): the clock and the user, where they are asked."""

import copy

import pytest
import torch
import torch.nn.functional as F
from controller_samples import Net, equal_states, whole_state
from plan_fields import Plan

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")

LAYERS = ["conv1", "conv2", "head.1"]


def make(gradients=None, seed=3, **options):
    torch.manual_seed(0)
    model = Net()
    gradients = gradients or sg.Prune(weight=0.8, input=0.7)
    return model, sg.compress(model, gradients, seed=seed, **{"min_elements": 1, **options})


def step(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(64, 3, 8, 8, generator=generator).requires_grad_()
    y = torch.randint(10, (64,), generator=generator)
    F.cross_entropy(model(x), y).backward()


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for i in range(steps):
        optimizer.zero_grad()
        step(model, i)
        optimizer.step()


def choices(controller):
    return {
        f"{name}.{product}": row
        for name, state in controller.sparse.items()
        for product, row in state.choices().items()
    }


# ---- tune ----------------------------------------------------------------------------------------


def test_tune_times_and_pins():
    model, controller = make()
    rows = controller.tune(lambda: step(model), rounds=2)
    assert set(rows) == {f"{name}.{product}" for name in LAYERS for product in ("weight", "input")}
    for row in rows.values():
        assert row["chosen_by"] == "tune" and row["trials"] == 2 and 0 <= row["break_even"] <= 1
        assert min(row["dense_seconds"], row["multiply_seconds"]) > 0
        spare = row["dense_seconds"] - row["compress_seconds"]
        want = max(0, 1 - spare / row["multiply_seconds"]) if spare > 0 else 1
        assert row["break_even"] == pytest.approx(min(want, 1), abs=0.0011)
    before = controller.report()
    train(model, 2)
    for name, row in controller.report().items():
        assert row["break_even"] == before[name]["break_even"] and row["chosen_by"] == "tune"
        pays = row["break_even"] < 1 and row["sparsity_wanted"] >= row["break_even"]
        assert row["way"] == ("sparse" if pays else "dense")
    assert "(measured)" in controller.summary()


def test_the_best_time_is_kept():
    model, controller = make()
    choice = controller.sparse["conv2"].choice

    def spoiled():
        step(model)
        # After the first pass: the dense product in no time, as none will be again.
        choice[2:].view(2, -1)[:, 5] = 1e-12

    rows = controller.tune(spoiled, rounds=2)
    assert rows["conv2.weight"]["dense_seconds"] == rows["conv2.input"]["dense_seconds"] == 1e-12
    assert rows["conv2.weight"]["break_even"] == 1


def test_tuning_leaves_no_trace():
    """But the ways: counters, running means, gradients and generators are as before."""
    model, controller = make()
    train(model, 1)
    twin = copy.deepcopy(model)
    gradients = [p.grad for p in model.parameters()]
    torch.manual_seed(5)
    controller.tune(lambda: (step(model), torch.randn(3)))
    assert torch.equal(torch.randn(4), (torch.manual_seed(5), torch.randn(4))[1])
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    state, other = whole_state(model), whole_state(twin)
    assert all(torch.equal(state[k], other[k]) for k in state if not k.endswith(".choice"))
    for state, other in zip(controller.sparse.values(), LAYERS, strict=True):
        state.set_way("sparse")
        twin.get_submodule(other).slimgrad_sparse.set_way("sparse")
    train(model, 2)
    train(twin, 2)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_tuned_run_resumes():
    model, controller = make()
    controller.tune(lambda: step(model))
    again, other = make(seed=9)
    again.load_state_dict(model.state_dict())
    other.load_state_dict(controller.state_dict())
    train(model, 2)
    train(again, 2)
    assert equal_states(model, again)


def test_tune_in_warm_up():
    model, controller = make(warmup=10)
    rows = controller.tune(lambda: step(model))
    assert len(rows) == 2 * len(LAYERS)
    train(model, 1)
    assert all(row["way"] == "dense" for row in controller.report().values())


def test_what_is_set_is_not_timed():
    model, controller = make()
    controller.set_way("dense", "conv2")
    rows = controller.tune(lambda: step(model))
    assert not any(name.startswith("conv2") for name in rows) and rows
    assert choices(controller)["conv2.weight"]["chosen_by"] == "user"


def test_nothing_is_learned_from_a_gradient_of_zeros():
    """A layer behind a branch that starts at zero sees such gradients first. How long a product of
    nothing takes does not say what a survivor costs."""
    model, controller = make()
    with pytest.raises(ValueError, match=r"\[tune\] expected a step whose backward pass reaches"):
        controller.tune(lambda: model(torch.randn(64, 3, 8, 8)).mul(0).sum().backward())
    assert not any("trials" in row for row in choices(controller).values())


def test_a_step_that_fails_pins_nothing():
    model, controller = make()
    before = copy.deepcopy(whole_state(model))

    def fails():
        step(model)
        raise KeyError("no data")

    with pytest.raises(KeyError):
        controller.tune(fails)
    after = whole_state(model)
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert all(p.grad is None for p in model.parameters())


def test_a_step_that_trains_is_refused():
    model, controller = make()
    with pytest.raises(ValueError, match=r"forward and a backward pass only, got one that changed"):
        controller.tune(lambda: train(model, 1))
    assert all(row["chosen_by"] is None for row in choices(controller).values())


@pytest.mark.parametrize("rounds", [0, -1, 1.5, True, "3"])
def test_wrong_rounds(rounds):
    model, controller = make()
    with pytest.raises(ValueError, match=r"\[tune\] expected rounds >= 1, got"):
        controller.tune(lambda: step(model), rounds=rounds)


def test_tune_needs_a_callable_and_sparse_layers():
    _, controller = make()
    with pytest.raises(ValueError, match=r"\[tune\] expected a callable"):
        controller.tune(None)
    _, controller = make(sg.Prune(0.8))
    with pytest.raises(ValueError, match=r"\[tune\] expected a model compressed with sparse"):
        controller.tune(lambda: None)


# ---- set_way -------------------------------------------------------------------------------------


def settings(controller):
    return {name: row["setting"] for name, row in choices(controller).items()}


@pytest.mark.parametrize(
    ("layers", "product", "expected"),
    [
        (None, None, {f"{name}.{p}" for name in LAYERS for p in ("weight", "input")}),
        ("conv2", None, {"conv2.weight", "conv2.input"}),
        ("head", "weight", {"head.1.weight"}),
        (["conv1", "head.1"], "input", {"conv1.input", "head.1.input"}),
        (lambda name, module: name == "conv1", None, {"conv1.weight", "conv1.input"}),
    ],
)
def test_set_way(layers, product, expected):
    model, controller = make(sg.Prune(weight=0.8, input=0.7))
    controller.set_way("sparse", layers, product)
    assert {name for name, way in settings(controller).items() if way == "sparse"} == expected
    train(model, 1)
    report = controller.report()
    assert all(report[name]["way"] == "sparse" for name in expected)
    assert "sparse set by user" in " ".join(controller.summary().split())
    controller.set_way("auto")
    assert set(settings(controller).values()) == {"auto"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fast",), "way to be one of auto, dense, sparse, got 'fast'"),
        (("dense", None, "bias"), "product 'weight' or 'input', got 'bias'"),
        (("dense", "conv9"), "layers with a sparse backward pass in layers, got 'conv9'"),
        (("dense", ["conv1", "norm"]), "in layers, got 'norm'"),
    ],
)
def test_wrong_set_way(arguments, message):
    _, controller = make()
    with pytest.raises(ValueError, match=r"\[set_way\] expected.*" + message):
        controller.set_way(*arguments)
    assert set(settings(controller).values()) == {"auto"}


def test_set_way_needs_sparse_layers():
    _, controller = make(sg.Prune(0.8))
    with pytest.raises(ValueError, match="compressed with sparse_backward"):
        controller.set_way("dense")


def test_a_way_that_is_set_is_state():
    _, controller = make()
    controller.set_way("dense", "conv2", "input")
    _, other = make(seed=8)
    other.load_state_dict(controller.state_dict())
    assert settings(other) == settings(controller)
    assert int(other.sparse["conv2"].input.plan[Plan.CALLS]) == 0
