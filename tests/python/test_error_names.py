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
        (lambda: sg.saved_tensors(seed="a"), "[saved_tensors] expected seed"),
        (lambda: sg.saved_tensors(group=24), "[saved_tensors] expected group"),
        (lambda: sg.Saved(group=24), "[Saved] expected group"),
        (
            lambda: sg.compress(model(), activations=7),
            "[compress] expected bits to be 1, 2, 3, 4 or 'exact'",
        ),
        (lambda: sg.nn.convert_activations(model(), 7), "[convert_activations] expected bits"),
        (
            lambda: sg.compress(model(), "fp9"),
            "[compress] expected gradients to be 'fp2' to 'fp8', a format such as '1-4-1', a Prune",
        ),
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


X = torch.randn(5000, generator=torch.Generator().manual_seed(0))
STATS = sg.measure(X)
# Wrong arguments that another function or op than the one called notices.
WRONG = {
    "Distribution": [
        lambda: sg.Distribution("normal", scale=-1),
        lambda: sg.Distribution("normal", scale="a"),
    ],
    "fit": [lambda: sg.fit(X, "foo"), lambda: sg.fit(X, 3)],
    "wasserstein": [lambda: sg.Distribution("normal", scale=1).wasserstein(X, 3)],
    "best_format": [
        lambda: sg.best_format(6, STATS, scale="foo"),
        lambda: sg.best_format(6, STATS, rounding="foo"),
        lambda: sg.best_format(6, STATS, error=3),
    ],
    "expected_error": [
        lambda: sg.expected_error(STATS, "foo", 1),
        lambda: sg.expected_error(STATS, "1-4-3", -1),
        lambda: sg.expected_error(STATS, "1-4-3", 1, underflow="foo"),
    ],
    "gradient_scale": [lambda: sg.gradient_scale(STATS, "1-4-3", 3)],
    "threshold": [lambda: sg.threshold({"log_mean": 0, "log_std": -1}, 0.5, "lognormal")],
    "expected_sparsity": [lambda: sg.expected_sparsity(STATS, 1, "foo")],
    "expected_cosine": [lambda: sg.expected_cosine(STATS, 1, 3)],
    "allocate": [
        lambda: sg.allocate([STATS], 0.5, cap="a"),
        lambda: sg.allocate([STATS], 0.5, method="foo"),
        lambda: sg.allocate([STATS], 0.5, targets=3),
        lambda: sg.allocate([STATS], 0.5, targets={0: "a"}),
    ],
    "steps": [
        lambda: sg.steps("foo"),
        lambda: sg.steps(torch.tanh, weight="foo"),
        lambda: sg.steps(torch.tanh, bits=9),
        lambda: sg.steps(torch.tanh, num_samples=1),
    ],
    "quantize": [lambda: sg.quantize(X, "foo", 1), lambda: sg.quantize(X, "1-4-3", 1, seed="a")],
    "prune_": [lambda: sg.prune_(X, "a"), lambda: sg.prune_(X, 0.1, seed=1.5)],
    "pack": [lambda: sg.pack(X, "1-4-3", 1, "foo")],
    "encode": [
        lambda: sg.encode(X, "uniform", rounding="foo"),
        lambda: sg.encode(X, "uniform", coder=3),
        lambda: sg.encode(X, "uniform", scale="a"),
        lambda: sg.encode(X, "uniform", rounding="stochastic", seed="a"),
    ],
    "decode": [
        lambda: sg.decode(b"abc", max_bytes=10),
        lambda: sg.decode(sg.encode(X), max_bytes=10),
        lambda: sg.decode(sg.encode(X), max_bytes="a"),
    ],
    "inspect": [lambda: sg.inspect(b"abc")],
    "load": [lambda: sg.load(b"abc"), lambda: sg.load(sg.encode(X), max_bytes=10)],
    "save": [
        lambda: sg.save(X, "unwritten.sg", mode="foo"),
        lambda: sg.save(X, "unwritten.sg", foo=1),
        lambda: sg.save({"a": X}, "unwritten.sg", metadata=3),
    ],
    "derive_seed": [lambda: sg.derive_seed("a"), lambda: sg.derive_seed(1, 1.5)],
    "saved_tensors": [lambda: sg.saved_tensors(seed="a")],
    "gelu": [
        lambda: sg.functional.gelu(X, "tanh", bits=9),
        lambda: sg.functional.gelu(X, interval=(1, 0)),
        lambda: sg.functional.gelu(X, interval=3),
        lambda: sg.functional.gelu(X, weight=3),
    ],
    "rrelu": [lambda: sg.functional.rrelu(X, bits=9), lambda: sg.functional.rrelu(X, "a")],
    "celu": [lambda: sg.functional.celu(X, 0), lambda: sg.functional.celu(X, "a")],
    "dropout": [lambda: sg.functional.dropout(X, "a")],
    "max_pool2d": [lambda: sg.functional.max_pool2d(X, "a")],
    "stepwise": [
        lambda: sg.functional.stepwise(X, torch.tanh, 3),
        lambda: sg.functional.stepwise(X, 3, sg.steps("gelu")),
    ],
    "Stepwise": [lambda: sg.nn.Stepwise(torch.tanh, 3)],
    "Linear": [lambda: sg.nn.Linear(3, 3, seed="a"), lambda: sg.nn.Linear(3, 3, gradients="fp6")],
    "Conv2d": [lambda: sg.nn.Conv2d(3, 3, 3, stream=-1)],
    "MultiheadAttention": [lambda: sg.nn.MultiheadAttention(4, 2, seed="a")],
    "convert_activations": [
        lambda: sg.nn.convert_activations(3),
        lambda: sg.nn.convert_activations(model(), interval=(1, 0)),
        lambda: sg.nn.convert_activations(model(), weight="foo"),
        lambda: sg.nn.convert_activations(model(), include=3),
        lambda: sg.nn.convert_activations(model(), named="foo"),
    ],
    "all_reduce": [
        lambda: sg.distributed.all_reduce(X, "foo"),
        lambda: sg.distributed.all_reduce(X, "uniform8"),
    ],
    "register": [lambda: sg.distributed.register(3, "uniform8")],
    "estimate": [
        lambda: sg.distributed.estimate(3, 1e9),
        lambda: sg.distributed.estimate(model(), 1e9, codecs=["foo"]),
        lambda: sg.distributed.estimate(model(), 1e9, codecs=3),
    ],
    "StageBoundary": [
        lambda: sg.distributed.StageBoundary(gradients="foo"),
        lambda: sg.distributed.StageBoundary(gradients="fp6", warmup=-1),
        lambda: sg.distributed.StageBoundary(gradients="fp6", seed="a"),
    ],
}


@pytest.mark.parametrize("name", WRONG)
def test_what_another_function_notices_names_what_was_called(name):
    for call in WRONG[name]:
        with pytest.raises((ValueError, TypeError)) as error:
            call()
        assert str(error.value).startswith(f"[{name}] expected "), error.value


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
    with pytest.raises(ValueError, match=r"\[load_state_dict\] expected the number of draws"):
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
