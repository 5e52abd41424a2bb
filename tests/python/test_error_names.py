"""Errors name what the user called, and one mistake has one type of exception."""

from types import SimpleNamespace

import pytest
import torch
from plan_fields import Plan as Fields
from torch import nn

import slimgrad as sg
from slimgrad.distributed.plan import Plan


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: sg.compress(model(), saved=5), "[compress] expected bits"),
        (lambda: sg.saved_tensors(bits=5), "[saved_tensors] expected bits"),
        (lambda: sg.Saved(bits=5), "[Saved] expected bits"),
        (lambda: sg.compress(model(), activations=7), "[compress] expected bits"),
        (lambda: sg.nn.convert_activations(model(), 7), "[convert_activations] expected bits"),
        (lambda: sg.compress(model(), "fp9"), "[compress] expected 2 to 8 bits"),
        (lambda: sg.Quantize(bits=9), "[Quantize] expected 2 to 8 bits"),
        (
            lambda: sg.compress(model(), sg.Prune(0.5), schedule={0: 2.0}),
            "[compress] expected a schedule",
        ),
        (lambda: sg.steps("gelu", bits=9), "[steps] expected 1 to 5 bits"),
        (lambda: sg.functional.gelu(torch.arange(3)), "[gelu] expected x of type"),
    ],
)
def test_misuse_names_what_was_called(call, text):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value).startswith(text)


@pytest.mark.parametrize(
    "call",
    [
        lambda: sg.best_format("a", 1.0),
        lambda: sg.encode(torch.ones(4), bits="a"),
        lambda: sg.encode(torch.ones(4), 3),
        lambda: sg.compress(model(), sg.Prune(0.5)).set_sparsity("a"),
        lambda: sg.saved_tensors().load_state_dict(3),
    ],
)
def test_another_type_is_a_type_error(call):
    with pytest.raises(TypeError, match=r"\[\w+\] expected "):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: sg.Prune(0.5, cap=0.9),
        lambda: sg.Prune(0.5, kind="topk", method="normal"),
        lambda: sg.Prune(0.5, allocation="min_cosine", cap="a"),
        lambda: sg.Quantize(format="1-3-2", method="lognormal"),
        lambda: sg.LossScale(growth_interval=5),
        lambda: sg.LossScale("a"),
        lambda: sg.Saved(bits="exact", rounding="nearest"),
        lambda: sg.nn.GELU(bits="exact", interval=(-5, 5)),
        lambda: sg.functional.silu(torch.ones(3), bits="exact", weight="uniform"),
        lambda: sg.compress(model(), "fp6", inputs=torch.ones(1, 8)),
    ],
)
def test_what_would_have_no_effect_is_refused(call):
    with pytest.raises(ValueError, match=r"\[\w+\] expected "):
        call()


@pytest.mark.parametrize("field", ["calls", "good_steps", "seen_calls"])
def test_counters_that_would_stand_still_do_not_load(field):
    controller = sg.compress(model(), sg.Prune(0.5), seed=1)
    state = controller.state_dict()
    state["0.plan"][Fields[field.upper()]] = 2.0**53
    with pytest.raises(ValueError, match=r"\[load_state_dict\] 0: expected .* 2\^48"):
        controller.load_state_dict(state)


def test_a_number_of_draws_that_nobody_made_does_not_load():
    keeping = sg.saved_tensors(bits=4, seed=1)
    state = keeping.state_dict()
    state["draws"][1] = 2**53
    with pytest.raises(ValueError, match=r"\[load_state_dict\] expected the number in 'draws'"):
        keeping.load_state_dict(state)


@pytest.mark.parametrize("step", [2**53, -1, True, 0.5, "1"])
def test_a_step_that_no_exchange_came_to_does_not_load(step):
    plan = SimpleNamespace(order={})
    with pytest.raises(ValueError, match=r"\[load_state_dict\] expected step"):
        Plan.load_state_dict(plan, {"step": step, "residuals": {}})  # type: ignore[arg-type]
    Plan.load_state_dict(plan, {"step": torch.tensor(7), "residuals": {}})  # type: ignore[arg-type]
    assert plan.step == 7


@pytest.mark.parametrize("change", [lambda p: p[1:], lambda p: p.float(), lambda p: p * 0 - 1])
def test_a_bad_plan_is_refused_in_forward(change):
    layer = nn.Sequential(nn.Linear(8, 8))
    controller = sg.compress(layer, sg.Prune(0.5), seed=1)
    gate = controller.gates["0"]
    gate.plan = change(gate.plan)
    with pytest.raises(ValueError, match=r"\[gradient_gate\] expected "):
        layer(torch.ones(4, 8))
