"""load_gate: a saved state goes on to the bit, settings stay, and damage is refused."""

import pytest
import torch
from gate_samples import SETTINGS, load_gate, lognormal, state
from plan_fields import SCHEDULE, Plan, layer_report

import slimgrad as sg

ops = torch.ops.slimgrad

NAN, INF = float("nan"), float("inf")


def used(*parts, passes=3, **fields):
    plan, stats = state(*parts, **fields)
    for seed in range(passes):
        ops.compress_gradient(lognormal((100, 100), seed=seed), plan, stats, 0)
    return plan, stats


@pytest.mark.parametrize("name", SETTINGS)
def test_equal_settings_go_on_to_the_bit(name):
    plan, stats = used(*SETTINGS[name], REFRESH_EVERY=0)
    plan_again, stats_again = state(*SETTINGS[name], REFRESH_EVERY=0, SEED_LOW=99)
    assert load_gate(plan_again, stats_again, plan, stats) == []
    assert torch.equal(plan_again, plan) and torch.equal(stats_again, stats)
    grad = lognormal((100, 100), seed=9)
    got = ops.compress_gradient(grad, plan_again, stats_again, 0)
    assert torch.equal(got, ops.compress_gradient(grad, plan, stats, 0))


def test_its_own_state_and_a_fresh_one():
    plan, stats = used(sg.Prune(0.8))
    before = plan.clone(), stats.clone()
    assert load_gate(plan, stats, plan, stats) == []
    assert torch.equal(plan, before[0]) and torch.equal(stats, before[1])
    assert load_gate(plan, stats, *state(sg.Prune(0.8))) == []
    assert layer_report(plan, stats)["calls"] == 0 and not stats.any()


def test_settings_stay_and_are_named():
    plan, stats = state(sg.Prune(0.5, method="lognormal"), sg.Quantize(format="1-3-2"))
    saved = used(sg.Prune(0.9), sg.Quantize(4))
    assert load_gate(plan, stats, *saved) == [
        "sparsity 0.5, the state has 0.9",
        "bits 6, the state has 4",
        "format '1-3-2', the state has none",
        "method 'lognormal', the state has 'empirical'",
    ]
    assert plan[Plan.SPARSITY] == plan[Plan.TARGET] == 0.5
    assert plan[Plan.CALLS] == 3 and plan[Plan.DUE] == 1 and torch.equal(stats, saved[1])
    ops.compress_gradient(lognormal((100, 100)), plan, stats, 0)
    report = layer_report(plan, stats)
    assert report["format"] == "1-3-2" and report["sparsity_wanted"] == 0.5


def test_the_loss_scale():
    ours = sg.Quantize(6, scale=sg.LossScale(2.0**16))
    plan, stats = state(ours)
    saved, saved_stats = used(ours, FIXED_SCALE=2.0**-12, GOOD_STEPS=7)
    assert load_gate(plan, stats, saved, saved_stats) == []
    assert plan[Plan.FIXED_SCALE] == 2.0**-12 and plan[Plan.GOOD_STEPS] == 7
    plan, stats = state(sg.Quantize(6, scale=sg.LossScale(1000.0)))
    said = load_gate(plan, stats, saved, saved_stats)
    assert said == ["loss scale 1000, the state has 65536"]
    assert plan[Plan.FIXED_SCALE] == 1e-3 and plan[Plan.GOOD_STEPS] == 0


def test_a_saved_state_that_has_a_gap():
    """As a slice of something larger would be; another device is the same to it."""
    plan, stats = used(sg.Prune(0.8))
    ours = state(sg.Prune(0.8))
    gaps = [torch.stack([t, t], 1)[:, 0] for t in (plan, stats)]
    assert load_gate(*ours, *gaps) == []
    assert torch.equal(ours[0], plan) and torch.equal(ours[1], stats)


SPOILT_PLANS = {
    "SEED_LOW": 2.0**32,
    "DUE": 0.5,
    "DROPS": NAN,
    "SPARSITY": 1,
    "TARGET": NAN,
    "ASKED_SCALE": INF,
    "FIXED_SCALE": -1,
    "THRESHOLD": INF,
    "FORMAT_EXPONENT": 8,
    "FORMAT_MANTISSA": 0.5,
    "SCALE": 0,
    "CALLS": 0.5,
    "GOOD_STEPS": -1,
    "SEEN_CALLS": NAN,
    "MANTISSA_BITS": 2,  # of no format
    "SCHEDULE_SPARSITY_3": 0.5,  # behind the end of the schedule
    "ALLOCATION": 17,
}
SPOILT_STATS = {
    "count": (0, -1),
    "zeros": (1, 1e9),
    "nonfinite": (2, 0.5),
    "zero_fraction": (3, 1.5),
    "log_mean": (4, NAN),
    "log_std": (5, -1),
    "max_abs": (6, INF),
    "histogram": (1000, 0.25),
    "elements": (-10, NAN),
    "wanted": (-9, 2),
    "achieved": (-8, -0.1),
    "compressed": (-3, 3),
}


def refused(saved_plan, saved_stats, match):
    plan, stats = used(sg.Prune(0.5), sg.Quantize(6), passes=1)
    before = plan.clone(), stats.clone()
    with pytest.raises(ValueError, match=match):
        load_gate(plan, stats, saved_plan, saved_stats)
    assert torch.equal(plan, before[0]) and torch.equal(stats, before[1])


@pytest.mark.parametrize("field", SPOILT_PLANS)
def test_a_spoilt_plan_changes_nothing(field):
    plan, stats = used(sg.Prune(0.5), sg.Quantize(6))
    plan[Plan[field]] = SPOILT_PLANS[field]
    refused(plan, stats, r"expected .*, got ")


def test_garbage_in_the_schedule():
    plan, stats = used(sg.Prune(0.5))
    plan[SCHEDULE] = 7
    refused(plan, stats, "schedule")


@pytest.mark.parametrize("field", SPOILT_STATS)
def test_spoilt_statistics_change_nothing(field):
    plan, stats = used(sg.Prune(0.5))
    index, value = SPOILT_STATS[field]
    stats[index] = value
    refused(plan, stats, r"\[load_state_dict\] \(model\): expected in saved_stats .*, got ")


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    "spoil",
    [lambda t: t[:-1], lambda t: t.float(), lambda t: t.to("meta"), lambda t: t[:0]],
    ids=["short", "float32", "meta", "empty"],
)
def test_another_size_or_type(which, spoil):
    saved = list(used(sg.Prune(0.5)))
    saved[which] = spoil(saved[which])
    name = ("saved_plan", "saved_stats")[which]
    refused(
        *saved,
        rf"\[load_state_dict\] .*: expected {name} as a contiguous float64 CPU tensor of \d+",
    )


def test_ours_is_on_the_cpu():
    saved = used(sg.Prune(0.5))
    plan, stats = state(sg.Prune(0.5))
    with pytest.raises(ValueError, match=r"expected plan as a contiguous float64 CPU .* on meta"):
        load_gate(plan.to("meta"), stats, *saved)
    with pytest.raises(ValueError, match=r"expected stats as a contiguous float64 CPU .* on meta"):
        load_gate(plan, stats.to("meta"), *saved)


def test_a_state_that_requires_a_gradient():
    plan, stats = used(sg.Prune(0.5))
    ours = state(sg.Prune(0.5))
    assert load_gate(*ours, plan.clone().requires_grad_(), stats) == []
    assert torch.equal(ours[0], plan) and not ours[0].requires_grad
