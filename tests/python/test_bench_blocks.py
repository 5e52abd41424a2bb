"""What bench.blocks claims without a draw, against draws; and that it runs without any data."""

import itertools
import sys

import pytest
import torch
from bench import blocks


def draws(x: torch.Tensor, grid: torch.Tensor, scale: torch.Tensor, count: int) -> torch.Tensor:
    """Stochastic rounding, written another way: the place of |x| on a piecewise linear axis on
    which the grid's values are integers, rounded up with the probability of its fraction."""
    grid = grid * scale
    magnitude = x.abs()
    place = torch.zeros_like(x)
    for low, high in itertools.pairwise(grid):
        place += ((magnitude - low) / (high - low)).clamp(0, 1)
    generator = torch.Generator().manual_seed(3)
    noise = torch.rand((count, *x.shape), generator=generator, dtype=x.dtype)
    return x.sign() * grid[(place + noise).floor().long().clamp(max=len(grid) - 1)]


@pytest.mark.parametrize("name", blocks.GRIDS)
def test_variances_are_those_of_draws(name):
    x = torch.randn(64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    scale = x.abs().max()
    rounded = draws(x, blocks.GRIDS[name], scale, 40_000)
    expected = blocks.variances(x, blocks.GRIDS[name], scale)
    error = (rounded - x).square()
    tolerance = 5 * error.std(0) / 200 + 1e-12  # five standard errors of a mean of 40,000
    assert ((error.mean(0) - expected).abs() <= tolerance).all()
    assert ((rounded.mean(0) - x).abs() <= 5 * expected.sqrt() / 200 + 1e-12).all()


def test_scales_are_rounded_up_by_at_most_a_step():
    scale = torch.rand(1000, dtype=torch.float64) * 3 + 1e-3
    for kind, most in (("power of two", 2.0), ("E4M3", 1.125)):
        stored = blocks.rounded_up(scale, kind)
        assert (stored >= scale).all() and (stored <= most * scale).all()
    assert torch.equal(
        blocks.rounded_up(torch.tensor([0.5, 4.0]), "power of two"), torch.tensor([0.5, 4.0])
    )


def test_hadamard_is_orthogonal():
    matrix = blocks.hadamard(16, 5)
    assert torch.allclose(matrix @ matrix.T, torch.eye(16, dtype=torch.float64))
    assert torch.allclose(matrix.abs(), torch.full((16, 16), 0.25, dtype=torch.float64))


def test_blocks_leave_out_zeros_and_remainders():
    rows = torch.zeros(3, 40, dtype=torch.float64)
    rows[1, 17] = 1
    rows[2, 39] = 1  # in what remains of a row
    assert blocks.cut(rows, 16).shape == (1, 16)


def test_runs_without_data(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(blocks, "FITTED_BLOCKS", 2)
    monkeypatch.setattr(
        sys, "argv", ["blocks", "--moments", "0", "--out", str(tmp_path / "x.json")]
    )
    threads = torch.get_num_threads()
    blocks.main()
    torch.set_num_threads(threads)
    first = capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["blocks", "--show", "--out", str(tmp_path / "x.json")])
    blocks.main()
    assert capsys.readouterr().out == first and "16 with E4M3, best of a block" in first
