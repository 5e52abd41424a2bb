"""docs/activations.md says what the tables are: in the tails, and how far off at most."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from step_bounds import BITS, TORCHS, difference_table, tail_table

import slimgrad as sg
import slimgrad.functional as S
from slimgrad.nn.step_tables import table_for

DOCUMENT = (Path(__file__).parents[3] / "docs" / "activations.md").read_text()


def rows(text):
    """The cells of a table's rows by the first one, as numbers."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return {
        cells[0].strip(): [[float(v) for v in cell.split("/")] for cell in cells[1:]]
        for cells in lines
        if cells[0].strip() in TORCHS
    }


def section(title):
    return DOCUMENT.split(f"\n### {title}\n")[1].split("\n#")[0]


def test_every_table_that_approximates_is_in_the_document():
    steps = {name for name in TORCHS if table_for(name, {}, 4).error > 0}
    assert steps == set(TORCHS) == set(rows(section("The tails")))
    assert set(rows(section("The largest difference"))) == set(TORCHS)
    exact = ["relu", "leaky_relu", "threshold", "relu6", "hardtanh", "hardsigmoid", "hardshrink"]
    assert all(table_for(name, {}, 4).error == 0 for name in [*exact, "softshrink"])


def test_the_tails_are_the_tables():
    """An optimum may have an equally good mirror image, where f'(x) + f'(-x) is constant."""
    written, found = rows(section("The tails")), rows(tail_table())
    for name in TORCHS:
        limits = found[name][0]
        assert written[name][0] == limits
        for left_right, levels in zip(written[name][1:], found[name][1:], strict=True):
            mirrored = [sum(limits) - level for level in reversed(levels)]
            assert left_right in (
                pytest.approx(levels, abs=1.5e-4),
                pytest.approx(mirrored, abs=1.5e-4),
            ), name


def test_the_largest_differences_are_the_tables():
    written, found = rows(section("The largest difference")), rows(difference_table())
    for name in TORCHS:
        assert [v for (v,) in written[name]] == pytest.approx(
            [v for (v,) in found[name]], abs=1.5e-4
        ), name


@pytest.mark.parametrize("name", TORCHS)
@pytest.mark.parametrize("bits", BITS)
def test_a_layer_has_its_level_far_out(name, bits):
    call = (lambda x, bits: S.gelu(x, "tanh", bits)) if name == "gelu_tanh" else getattr(S, name)
    levels = table_for(name, {}, bits).levels
    for x, level in (
        (1e4, levels[-1]),
        (-1e4, levels[-1 if table_for(name, {}, bits).even else 0]),
    ):
        x = torch.tensor([x, x * 3], requires_grad=True)
        call(x, bits=bits).sum().backward()
        assert torch.equal(x.grad, torch.full((2,), level))


def test_a_loss_that_divides_by_the_slope():
    x = torch.tensor([12.0], requires_grad=True)
    F.binary_cross_entropy(sg.nn.Sigmoid(bits=3)(x), torch.zeros(1)).backward()
    assert round(x.grad.item(), -2) == 10_700 and "about 10,700" in DOCUMENT
    x.grad = None
    F.binary_cross_entropy_with_logits(x, torch.zeros(1)).backward()
    assert x.grad.item() == pytest.approx(1, abs=1e-4)
    (level,) = (v for v in rows(section("The tails"))["sigmoid"][3][:1])
    assert f"{level:.4f}" in S.__doc__
