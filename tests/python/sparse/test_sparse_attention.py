"""nn.MultiheadAttention whose projections have a sparse backward pass."""

import copy
import pickle

import pytest
import torch
from attention_samples import (
    EMBED,
    LAYOUTS,
    MODULES,
    assert_unbiased,
    attention,
    in_a_model,
    inputs_of,
    run,
    ways_to_call,
)
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")

ALWAYS = sg.Prune(weight=0.6, input=0.4, sparse_backward="always")
PARTS = ["attn.q", "attn.k", "attn.v", "attn.out_proj"]
ROWS = [f"{name}.{product}" for name in PARTS for product in ("weight", "input")]


def compressed(module, gradients=ALWAYS, **options):
    model = in_a_model(module)
    return model, sg.compress(model, gradients, **{"seed": 1, "min_elements": 1, **options})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", MODULES.values(), ids=MODULES)
def test_without_pruning_everything_is_torchs_but_for_rounding(options, layout):
    plain = attention(options, layout)
    model, controller = compressed(plain, sg.Prune(weight=0, input=0))
    for inputs, arguments in ways_to_call(plain, layout):
        want, got = (run(m, inputs, arguments) for m in (plain, model["attn"]))
        for a, b in zip(want, got, strict=True):
            if a is not None:
                torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
    assert controller.converted == PARTS and controller.report() == {}


def test_names_rows_and_ways():
    plain = attention({})
    model, controller = compressed(plain)
    inputs = inputs_of(plain, "length first", "one")
    run(model["attn"], inputs, {})
    assert type(model["attn"]) is sg.nn.MultiheadAttention
    assert controller.converted == list(controller.sparse) == PARTS and controller.left == {}
    rows = controller.report()
    assert list(rows) == list(controller.gates) == ROWS
    assert all(row["way"] == "sparse" and row["calls"] == 1 for row in rows.values())
    for name, row in rows.items():
        assert row["sparsity"] == pytest.approx(0.6 if name.endswith("weight") else 0.4, abs=0.15)
    controller.set_way("dense", "attn.q")
    controller.set_sparsity(0.3, product="input")
    run(model["attn"], inputs, {})
    rows = controller.report()
    assert [n for n in ROWS if rows[n]["way"] == "dense"] == ["attn.q.weight", "attn.q.input"]
    assert rows["attn.k.input"]["sparsity_wanted"] == 0.3
    with pytest.raises(ValueError, match=r"sparse backward pass in layers, got 'attn\.z'"):
        controller.set_way("dense", "attn.z")


def test_tuning_reaches_every_product():
    plain = attention({})
    model, controller = compressed(plain, sg.Prune(weight=0.6, input=0.4))
    inputs = inputs_of(plain, "length first", "one")
    rows = controller.tune(lambda: run(model["attn"], inputs, {}), rounds=1)
    assert list(rows) == ROWS and all(row["chosen_by"] == "tune" for row in rows.values())


@pytest.mark.parametrize("layout", ["length first", "batch first"])
def test_unbiased_through_the_attention(layout):
    plain = attention({}, layout)
    inputs = inputs_of(plain, layout, "two")
    model, _ = compressed(plain)
    assert_unbiased(model["attn"], plain, inputs)


def test_some_projections_alone():
    plain = attention({})
    model, controller = compressed(plain, exclude=["attn.k", "attn.out_proj"])
    assert controller.converted == ["attn.q", "attn.v"]
    assert controller.left == {"attn.k": "excluded", "attn.out_proj": "excluded"}
    inputs = inputs_of(plain, "length first", "one")
    want, got = (run(m, inputs, {}) for m in (plain, model["attn"]))
    torch.testing.assert_close(got[0], want[0], rtol=1e-4, atol=1e-5)
    # The projection behind the others has its exact gradient.
    for a, b in zip(want[-2:], got[-2:], strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)


def test_copies_pickles_and_resumed_runs_go_on_to_the_bit():
    plain = attention({})
    inputs = inputs_of(plain, "length first", "one")
    model, controller = compressed(plain)
    run(model["attn"], inputs, {})
    state = controller.state_dict()
    assert {"attn.q.choice", "attn.q.weight.plan", "attn.out_proj.input.stats"} < state.keys()
    resumed, other = compressed(plain, seed=2)
    other.load_state_dict(state)
    others = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), resumed]
    want = run(model["attn"], inputs, {})
    for one in others:
        got = run(one["attn"], inputs, {})
        assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


def test_remove():
    plain = attention({})
    model, controller = compressed(plain)
    inputs = inputs_of(plain, "length first", "one")
    run(model["attn"], inputs, {})
    assert controller.remove() == []
    assert type(model["attn"]) is nn.MultiheadAttention
    for a, b in zip(run(plain, inputs, {}), run(model["attn"], inputs, {}), strict=True):
        assert torch.equal(a, b)


def test_the_layer_by_itself():
    torch.manual_seed(0)
    ours = sg.nn.MultiheadAttention(EMBED, 4, gradients=ALWAYS, seed=1)
    plain = nn.MultiheadAttention(EMBED, 4)
    ours.load_state_dict(plain.state_dict())
    inputs = inputs_of(plain, "length first", "one")
    want, got = (run(m, inputs, {}) for m in (plain, ours))
    torch.testing.assert_close(got[0], want[0], rtol=1e-4, atol=1e-5)
    state = sg.state_dict(ours)
    assert {"q.choice", "out_proj.weight.plan"} < state.keys()
    other = sg.nn.MultiheadAttention(EMBED, 4, gradients=ALWAYS, seed=2)
    other.load_state_dict(plain.state_dict())
    sg.load_state_dict(other, state)
    want, got = (run(m, inputs, {}) for m in (ours, other))
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
    with pytest.raises(ValueError, match="sparse_backward=True"):
        sg.nn.MultiheadAttention(EMBED, 4, gradients=sg.Prune(0.5))
