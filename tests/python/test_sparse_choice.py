"""Sparse or dense: what the layers measure, what they decide from it, and that they remember."""

import pytest
import torch
from gate_samples import lognormal
from sparse_samples import (
    assert_close,
    backward,
    dense_gradients,
    gates,
    pair,
    pruned,
    set_choice,
)

import slimgrad as sg
from slimgrad.plan import Plan, layer_report

pytestmark = pytest.mark.usefixtures("one_thread")

MEASURED = sg.Prune(weight=0.8, input=0.7, sparse_backward=True)
TRIALS = 3


def linear(gradients=MEASURED):
    plain, ours = pair(sg.nn.Linear, 24, 40, gradients=gradients)
    generator = torch.Generator().manual_seed(2)
    return plain, ours, torch.randn(50, 24, generator=generator), lognormal((50, 40))


def break_even_at(layer, product, sparsity):
    """As if compressing took 1 of the dense product's 5 seconds, and multiplying all values so
    long that the sparse product takes 5 at ``sparsity``."""
    multiply = 4 / (1 - sparsity) if sparsity < 1 else 1e30
    set_choice(
        layer,
        product,
        trials=TRIALS,
        dense_seconds=5,
        compress_seconds=1,
        multiply_seconds=multiply,
    )


def ways(layer):
    return {name: row["way"] for name, row in layer.slimgrad_sparse.choices().items()}


def test_before_anything_is_measured():
    _, ours, _, _ = linear()
    for row in ours.slimgrad_sparse.choices().values():
        assert row == {
            "trials": 0,
            "dense_seconds": 0,
            "compress_seconds": 0,
            "multiply_seconds": 0,
            "way": "dense",
            "break_even": None,
        }


def test_the_first_passes_measure():
    plain, ours, x, grad = linear()
    for trial in range(1, TRIALS + 1):
        got = backward(ours, x, grad)
        for row in ours.slimgrad_sparse.choices().values():
            assert row["trials"] == trial and row["way"] == "measured"
            assert min(row["dense_seconds"], row["compress_seconds"], row["multiply_seconds"]) > 0
            assert (row["break_even"] is None) == (trial < TRIALS)
        used = {name: pruned(grad, gate, trial - 1) for name, gate in gates(ours).items()}
        assert_close(got, dense_gradients(plain, x, used["input"], used["weight"]))
    backward(ours, x, grad)
    for row in ours.slimgrad_sparse.choices().values():
        assert row["trials"] == TRIALS and row["way"] in ("dense", "sparse")
        assert 0 <= row["break_even"] <= 1


def test_the_best_time_is_kept():
    _, ours, x, grad = linear()
    for product in ("weight", "input"):
        set_choice(ours, product, trials=1, dense_seconds=1e-12, compress_seconds=1e9)
    backward(ours, x, grad)
    for row in ours.slimgrad_sparse.choices().values():
        assert row["dense_seconds"] == 1e-12 and 0 < row["compress_seconds"] < 1e9


@pytest.mark.parametrize(
    ("weight", "input"), [(0.5, 0.5), (0.79, 0.71), (0.81, 0.69), (0.9, 0.9), (1, 0), (0, 1)]
)
def test_sparse_from_the_break_even_on(weight, input):
    """A dense product is the plain one, a sparse one that of the pruned gradient."""
    plain, ours, x, grad = linear()
    break_even_at(ours, "weight", weight)
    break_even_at(ours, "input", input)
    choices = ours.slimgrad_sparse.choices()
    assert choices["weight"]["break_even"] == pytest.approx(weight)
    assert choices["input"]["break_even"] == pytest.approx(input)
    got = backward(ours, x, grad)
    expected = {"weight": weight < 0.8, "input": input < 0.7}
    assert ways(ours) == {name: "sparse" if s else "dense" for name, s in expected.items()}
    used = {n: pruned(grad, g) if expected[n] else grad for n, g in gates(ours).items()}
    assert_close(got, dense_gradients(plain, x, used["input"], used["weight"]))
    for name, gate in gates(ours).items():
        assert int(gate.plan[Plan.CALLS]) == 1
        assert layer_report(gate.plan, gate.stats)["compressed"] == expected[name]


def test_compressing_alone_takes_longer_than_the_dense_product():
    _, ours, x, grad = linear()
    for product in ("weight", "input"):
        set_choice(
            ours, product, trials=3, dense_seconds=1, compress_seconds=2, multiply_seconds=1e-9
        )
    assert all(row["break_even"] == 1 for row in ours.slimgrad_sparse.choices().values())
    backward(ours, x, grad)
    assert ways(ours) == {"weight": "dense", "input": "dense"}


def test_always_measures_nothing():
    _, ours, x, grad = linear(sg.Prune(weight=0.8, input=0.7, sparse_backward="always"))
    for product in ("weight", "input"):
        break_even_at(ours, product, 1)
        set_choice(ours, product, trials=0)
    backward(ours, x, grad)
    assert ways(ours) == {"weight": "sparse", "input": "sparse"}
    assert all(row["trials"] == 0 for row in ours.slimgrad_sparse.choices().values())


def test_a_product_that_is_not_pruned_is_dense_and_exact():
    """Even where the layer is told to be sparse always."""
    for mode in (True, "always"):
        plain, ours, x, grad = linear(sg.Prune(weight=0.8, sparse_backward=mode))
        got = backward(ours, x, grad)
        assert ways(ours)["input"] == "dense" and ways(ours)["weight"] != "dense"
        for_weight = pruned(grad, gates(ours)["weight"])
        assert_close(got, dense_gradients(plain, x, grad, for_weight))


def test_as_it_comes_the_zeros_decide():
    plain, ours, x, _ = linear(None)
    for product in ("weight", "input"):
        break_even_at(ours, product, 0.6)
    for zeros, way in [(0.1, "dense"), (0.9, "sparse"), (0.4, "dense")]:
        grad = lognormal((50, 40), zeros=zeros)
        got = backward(ours, x, grad)
        assert ways(ours) == {"weight": way, "input": way}
        assert_close(got, dense_gradients(plain, x, grad, grad))


def test_few_zeros_are_not_worth_a_trial():
    _, ours, x, _ = linear(None)
    backward(ours, x, lognormal((50, 40), zeros=0.1))
    assert all(row["trials"] == 0 for row in ours.slimgrad_sparse.choices().values())


def test_nothing_is_learned_from_a_gradient_of_zeros():
    """A layer behind a branch that starts at zero sees such gradients first. How long a product of
    nothing takes does not say what a survivor costs: the decision must wait for one that does."""
    _, ours, x, grad = linear()
    for _ in range(TRIALS):
        backward(ours, x, torch.zeros_like(grad))
    assert all(row["break_even"] is None for row in ours.slimgrad_sparse.choices().values())


def test_small_gradients_are_dense():
    plain, ours, x, grad = linear()
    for gate in gates(ours).values():
        gate.plan[Plan.MIN_ELEMENTS] = grad.numel() + 1
    assert_close(backward(ours, x, grad), dense_gradients(plain, x, grad, grad))
    assert ways(ours) == {"weight": "dense", "input": "dense"}


def test_a_spoiled_choice():
    _, ours, x, grad = linear()
    ours.slimgrad_sparse.choice[0] = 7
    with pytest.raises(ValueError, match="mode of 0 or 1 in choice, got 7"):
        backward(ours, x, grad)
