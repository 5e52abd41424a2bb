"""A gate's state by name: what was asked for is in it, and Python knows the place of nothing."""

import re
from pathlib import Path

import pytest
from gate_samples import lognormal

import slimgrad as sg
from slimgrad.compression.gate import GradientGate

PACKAGE = Path(__file__).resolve().parents[3] / "python" / "slimgrad"


def test_options_are_found_by_their_names():
    options = {
        "sparsity": 0.75,
        "bits": 6,
        "exponent_bits": 3,
        "mantissa_bits": 2,
        "fixed_scale": 0.125,
        "min_elements": 7,
        "sample_size": 1000,
        "refresh_every": 5,
        "warmup": 3,
    }
    before = GradientGate(seed=0).fields()
    gate = GradientGate(**options, prune="stochastic", seed=5 << 32 | 9)
    fields = gate.fields()
    assert {name: fields[name] for name in options} == options
    assert (fields["seed_low"], fields["seed_high"]) == (9, 5)
    assert fields["target"] == options["sparsity"] and fields["prune"] != before["prune"]
    assert fields["asked_scale"] == options["fixed_scale"]
    # Nothing else was touched.
    asked = {*options, "seed_low", "seed_high", "target", "asked_scale", "prune"}
    assert {n: fields[n] for n in fields if n not in asked} == {
        n: before[n] for n in before if n not in asked
    }
    assert len(fields) == gate.plan.numel()


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("prune", ["none", "stochastic", "topk", "topk_stochastic"]),
        ("method", ["empirical", "lognormal", "gennorm", "normal", "mean"]),
        ("split", ["empirical", "lognormal", "normal"]),
        ("scale_method", ["max", "predicted", "error"]),
        ("rounding", ["nearest", "stochastic"]),
        ("underflow", ["zero", "stochastic"]),
        ("allocation", ["uniform", "min_cosine", "mean_cosine", "mean_error", "total_error"]),
        ("dynamic_scale", [False, True]),
    ],
)
def test_a_choice_changes_its_field_alone(option, values):
    needs = {"method": "prune", "allocation": "prune", "dynamic_scale": "scale"}.get(option, "bits")
    others = {
        "bits": {"bits": 6},
        "prune": {"prune": "stochastic"},
        "scale": {"bits": 6, "fixed_scale": 0.5},
    }[needs]
    found = [GradientGate(seed=0, **others | {option: value}).fields() for value in values]
    assert len({fields[option] for fields in found}) == len(values)
    for fields in found:
        assert fields | {option: 0} == found[0] | {option: 0}


def test_a_schedule_by_name():
    gate = GradientGate(prune="stochastic", schedule_calls=[0, 10], schedule_sparsities=[0.5, 0.9])
    fields = gate.fields()
    found = [(fields[f"schedule_call_{i}"], fields[f"schedule_sparsity_{i}"]) for i in range(3)]
    assert found == [(0, 0.5), (10, 0.9), (-1, -1)]
    gate.set_sparsity(0.7)
    fields = gate.fields()
    assert fields["schedule_call_0"] == -1 and fields["sparsity"] == fields["target"] == 0.7


def test_a_pass_is_in_the_fields_and_in_the_report():
    gate = GradientGate(prune="stochastic", sparsity=0.8, bits=6, min_elements=0)
    x, grad = lognormal((50, 100)).requires_grad_(), lognormal((50, 100), seed=1)
    gate(x).backward(grad)
    fields, report, seen = gate.fields(), gate.report(), gate.seen()
    assert fields["calls"] == report["calls"] == 1 and fields["due"] == 0
    assert fields["threshold"] == report["threshold"] > 0
    assert fields["scale"] == report["scale"] > 0
    split = f"1-{fields['format_exponent']:.0f}-{fields['format_mantissa']:.0f}"
    assert report["format"] == split
    assert report["elements"] == seen.count == grad.numel()
    assert report["log_std"] == seen.log_std == pytest.approx(sg.measure(grad).log_std)
    gate.refresh()
    assert gate.fields()["due"] == 1


# An index, or a slice: plan[3], gate.stats[:2], plan[0] = 1, choice.view(2, -1)[1].
INDEXED = re.compile(r"\b(plan|stats|choice)(\.view\([^)]*\))?\[")


def test_the_check_sees_an_index():
    for line in ("plan[3]", "gate.plan[0] = 1", "self.stats[:2]", "choice.view(2, -1)[1]"):
        assert INDEXED.search(line), line
    assert not INDEXED.search("plans[0]") and not INDEXED.search("self.plan, self.stats")


def test_no_layout_of_state_in_the_package():
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 20
    for file in files:
        found = [line for line in file.read_text().splitlines() if INDEXED.search(line)]
        assert not found, f"{file.name}: {found}"
