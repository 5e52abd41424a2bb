"""Sparse or dense: what decides, and that it is remembered."""

import pytest
import torch
from gate_samples import lognormal
from plan_fields import Plan, layer_report
from sparse_samples import (
    any_size,
    assert_close,
    backward,
    dense_gradients,
    gates,
    pair,
    pruned,
    set_break_even,
)

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")

AUTO = sg.Prune(weight=0.8, input=0.7, sparse_backward=True)


def linear(gradients=AUTO):
    plain, ours = pair(sg.nn.Linear, 24, 40, gradients=gradients)
    generator = torch.Generator().manual_seed(2)
    return plain, ours, torch.randn(50, 24, generator=generator), lognormal((50, 40))


def choices(layer):
    return layer.slimgrad_sparse.choices()


def ways(layer):
    return {name: row["way"] for name, row in choices(layer).items()}


def break_evens(layer):
    return {name: row["break_even"] for name, row in choices(layer).items()}


UNDECIDED = {"way": "dense", "break_even": None, "chosen_by": None, "setting": "auto"}


def test_before_the_first_pass():
    _, ours, _, _ = linear()
    assert choices(ours) == {"weight": UNDECIDED, "input": UNDECIDED}


def test_the_first_pass_decides():
    _, ours, x, grad = linear()
    backward(ours, x, grad)
    for row in choices(ours).values():
        assert row["chosen_by"] == "model" and 0 <= row["break_even"] <= 1
        assert row.keys() == UNDECIDED.keys()  # and no times
    first = break_evens(ours)
    _, again, x, grad = linear()
    backward(again, x, grad)
    assert break_evens(again) == first


def test_the_decision_is_for_all_shapes_that_follow():
    """A small batch of a wide layer is not worth it; what the first batch said stays."""
    layer = any_size(sg.nn.Linear(512, 512, gradients=AUTO, seed=1))
    backward(layer, torch.randn(2048, 512), lognormal((2048, 512)))
    first = break_evens(layer)
    backward(layer, torch.randn(8, 512), lognormal((8, 512)))
    assert break_evens(layer) == first
    fresh = any_size(sg.nn.Linear(512, 512, gradients=AUTO, seed=1))
    backward(fresh, torch.randn(8, 512), lognormal((8, 512)))
    assert break_evens(fresh) != first


def test_warm_up_decides_nothing():
    _, ours, x, grad = linear()
    for gate in gates(ours).values():
        gate.plan[Plan.WARMUP] = 1
    backward(ours, x, grad)
    assert choices(ours) == {"weight": UNDECIDED, "input": UNDECIDED}
    backward(ours, x, grad)
    assert all(row["chosen_by"] == "model" for row in choices(ours).values())


def test_copies_are_in_the_price():
    """Either layout is read as it is, but a gradient with gaps has to be copied first."""
    found = []
    for grad in (lognormal((4, 64, 32, 32)), lognormal((4, 64, 32, 64))[..., ::2]):
        layer = any_size(sg.nn.Conv2d(64, 64, 3, padding=1, gradients=AUTO, seed=1))
        backward(layer, torch.randn(4, 64, 32, 32), grad)
        found.append(break_evens(layer))
    assert all(found[0][product] < found[1][product] for product in ("weight", "input"))


@pytest.mark.parametrize(
    ("weight", "input"), [(0.5, 0.5), (0.79, 0.71), (0.81, 0.69), (0.9, 0.9), (1, 0), (0, 1)]
)
def test_sparse_from_the_break_even_on(weight, input):
    """A dense product is the plain one, a sparse one that of the pruned gradient."""
    plain, ours, x, grad = linear()
    set_break_even(ours, "weight", weight)
    set_break_even(ours, "input", input)
    assert break_evens(ours) == {"weight": weight, "input": input}
    got = backward(ours, x, grad)
    expected = {"weight": weight < 0.8, "input": input < 0.7}
    assert ways(ours) == {name: "sparse" if s else "dense" for name, s in expected.items()}
    used = {n: pruned(grad, g) if expected[n] else grad for n, g in gates(ours).items()}
    assert_close(got, dense_gradients(plain, x, used["input"], used["weight"]))
    for name, gate in gates(ours).items():
        assert int(gate.plan[Plan.CALLS]) == 1
        assert layer_report(gate.plan, gate.stats)["compressed"] == expected[name]


def test_where_none_pays_a_gradient_of_zeros_is_dense():
    _, ours, x, grad = linear(None)
    for product in ("weight", "input"):
        set_break_even(ours, product, 1)
    backward(ours, x, torch.zeros_like(grad))
    assert ways(ours) == {"weight": "dense", "input": "dense"}


def test_always_asks_nobody():
    _, ours, x, grad = linear(sg.Prune(weight=0.8, input=0.7, sparse_backward="always"))
    for product in ("weight", "input"):
        set_break_even(ours, product, 1)
    backward(ours, x, grad)
    assert ways(ours) == {"weight": "sparse", "input": "sparse"}
    assert all(row["chosen_by"] == "user" for row in choices(ours).values())


@pytest.mark.parametrize("product", ["weight", "input"])
def test_a_way_that_is_set(product):
    plain, ours, x, grad = linear()
    other = {"weight": "input", "input": "weight"}[product]
    set_break_even(ours, product, 0)
    set_break_even(ours, other, 1)
    ours.slimgrad_sparse.set_way("dense", product)
    assert_close(backward(ours, x, grad), dense_gradients(plain, x, grad, grad))
    assert ways(ours) == {"weight": "dense", "input": "dense"}
    row = choices(ours)[product]
    assert (row["setting"], row["chosen_by"]) == ("dense", "user")
    ours.slimgrad_sparse.set_way("auto")
    backward(ours, x, grad)
    assert ways(ours) == {product: "sparse", other: "dense"}
    assert choices(ours)[product]["chosen_by"] == "model"
    with pytest.raises(ValueError, match=r"\[set_way\] expected way to be auto.* got slow"):
        ours.slimgrad_sparse.set_way("slow")


def test_a_product_that_is_not_pruned_is_dense_and_exact():
    """Even where the layer is told to be sparse always."""
    for mode in (True, "always"):
        plain, ours, x, grad = linear(sg.Prune(weight=0.8, sparse_backward=mode))
        set_break_even(ours, "weight", 0)
        got = backward(ours, x, grad)
        assert ways(ours) == {"input": "dense", "weight": "sparse"}
        for_weight = pruned(grad, gates(ours)["weight"])
        assert_close(got, dense_gradients(plain, x, grad, for_weight))


def test_as_it_comes_the_zeros_decide():
    plain, ours, x, _ = linear(None)
    for product in ("weight", "input"):
        set_break_even(ours, product, 0.6)
    for zeros, way in [(0.1, "dense"), (0.9, "sparse"), (0.4, "dense")]:
        grad = lognormal((50, 40), zeros=zeros)
        got = backward(ours, x, grad)
        assert ways(ours) == {"weight": way, "input": way}
        assert_close(got, dense_gradients(plain, x, grad, grad))


def test_small_gradients_are_dense():
    plain, ours, x, grad = linear()
    for gate in gates(ours).values():
        gate.plan[Plan.MIN_ELEMENTS] = grad.numel() + 1
    assert_close(backward(ours, x, grad), dense_gradients(plain, x, grad, grad))
    assert ways(ours) == {"weight": "dense", "input": "dense"}


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (0, 2, "in choice always to be 0 or 1, got 2"),
        (1, 2, "in choice timing to be 0 or 1, got 2"),
        (2, 7, "in choice a way from 0 to 3, got 7"),
        (3, 3, "in choice a decision by 0, 1 or 2, got 3"),
        (4, -0.1, "in choice a break-even sparsity from 0 to 1, got -0.1"),
        (4, float("nan"), "in choice a break-even sparsity from 0 to 1, got nan"),
        (5, 0.5, "in choice a last way of 0 or 1, got 0.5"),
        (6, 1e300, "in choice a number of trials, got"),
        (7, float("inf"), "in choice seconds, got inf"),
    ],
)
def test_a_spoiled_choice(index, value, message):
    _, ours, x, grad = linear()
    ours.slimgrad_sparse.choice[index] = value
    with pytest.raises(ValueError, match=message):
        backward(ours, x, grad)
    with pytest.raises(ValueError, match=message):
        choices(ours)


def test_a_choice_of_another_size():
    _, ours, x, grad = linear()
    ours.slimgrad_sparse.choice = torch.zeros(11, dtype=torch.float64)
    with pytest.raises(
        ValueError,
        match="choice as a contiguous float64 CPU tensor of 18 elements, got a tensor of 11",
    ):
        backward(ours, x, grad)


OPS = torch.ops.slimgrad


def layer_with(choice):
    """Another layer's state with this choice, and the group that holds it alone."""
    state = linear()[1].slimgrad_sparse
    state.choice = choice
    return state, state.alone()


def saved_choice(always=False):
    """Of a layer with one way by hand, and one that the model has chosen."""
    _, ours, x, grad = linear()
    choice = OPS.new_sparse_choice(always)
    ours.slimgrad_sparse.choice = choice
    ours.slimgrad_sparse.set_way("dense", "weight")
    backward(ours, x, grad)
    return choice


def load(choice, saved):
    """The settings that a saved choice does not have, in words."""
    _, group = layer_with(choice)
    return list(group.load_state(group.state() | {"choice": saved})["differences"])


def test_a_saved_choice_goes_on():
    saved = saved_choice()
    choice = OPS.new_sparse_choice(False)
    assert load(choice, saved) == []
    assert torch.equal(choice, saved)
    rows = layer_with(choice)[0].choices()
    assert rows["weight"]["setting"] == "dense" and rows["weight"]["chosen_by"] == "user"
    assert rows["input"]["chosen_by"] == "model"


def test_always_stays_as_it_was_set():
    always, choice = OPS.new_sparse_choice(True), OPS.new_sparse_choice(False)
    said = load(choice, saved_choice(always=True))
    assert said == ["sparse_backward True, the state has 'always'"]
    said = load(always, saved_choice())
    assert said == ["sparse_backward 'always', the state has True"]
    # What was set by hand is state; what was not follows the setting.
    for here, way in [(choice, "auto"), (always, "sparse")]:
        rows = layer_with(here)[0].choices()
        assert rows["weight"]["setting"] == "dense" and rows["input"]["setting"] == way


def test_by_hand_comes_before_always():
    state, _ = layer_with(OPS.new_sparse_choice(True))
    state.set_way("auto", "weight")
    rows = state.choices()
    assert rows["weight"]["setting"] == "auto" and rows["input"]["setting"] == "sparse"


def test_timing_is_no_part_of_a_saved_choice():
    saved, choice = saved_choice(), OPS.new_sparse_choice(False)
    layer_with(saved)[1].time_ways(True)
    load(choice, saved)
    assert torch.equal(choice[2:], saved[2:]) and choice[1] == 0 and saved[1] == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: t[:-1],
        lambda t: t.float(),
        lambda t: t.to("meta"),
        lambda t: t.index_fill(0, torch.tensor([0]), 7),
        lambda t: t.index_fill(0, torch.tensor([17]), float("nan")),
    ],
    ids=["short", "float32", "meta", "always", "seconds"],
)
def test_a_damaged_choice_changes_nothing(spoil):
    choice = OPS.new_sparse_choice(True)
    before = choice.clone()
    with pytest.raises(
        ValueError, match=r"\[load_state_dict\] \(model\): expected .*saved .*, got "
    ):
        load(choice, spoil(saved_choice()))
    assert torch.equal(choice, before)


@pytest.mark.parametrize("which", ["weight_plan", "weight_stats", "input_plan", "choice"])
def test_a_state_elsewhere(which):
    _, ours, x, grad = linear()
    layer = ours.slimgrad_sparse
    names = ("weight_plan", "weight_stats", "input_plan", "input_stats", "choice")
    plan, stats = OPS.new_gate_plan(prune="stochastic", sparsity=0.5), OPS.new_gate_stats()
    state = dict(zip(names, [plan, stats, plan.clone(), stats.clone(), layer.choice], strict=True))
    state[which] = state[which].to("meta")
    arguments = grad, x, ours.weight.detach(), [True, True, True], list(state.values()), 0
    with pytest.raises(ValueError, match=f"expected {which} as a contiguous float64 CPU"):
        OPS.sparse_linear_backward(*arguments)
