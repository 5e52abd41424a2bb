"""Coded sums between 1, 2, 3 and 5 ranks."""

import pytest
import torch
from exchange_workers import check_all
from ranks import run_ranks

from slimgrad.distributed import CODECS

# For single exchanges, which keep nothing for the next one.
SINGLE = tuple(name for name in CODECS if name != "topk")
FEW = ("lossless", "uniform8", "packed4", "fp6", "pruned", "rate2")


@pytest.fixture(scope="module", params=[1, 2, 3, 5])
def found(request, tmp_path_factory):
    """What each rank found."""
    world, results = request.param, tmp_path_factory.mktemp("ranks")
    run_ranks(check_all, (str(results), SINGLE if world == 2 else FEW), world)
    return [torch.load(results / f"{rank}.pt") for rank in range(world)]


def test_all_ranks_have_the_same_bits(found):
    for of_rank in found:
        for key, (hashed, *_) in found[0]["sums"].items():
            assert of_rank["sums"][key][0] == hashed, key
        assert of_rank["repeated"] == found[0]["repeated"]
        for key in ("all_gather", "coded_broadcast"):
            assert of_rank["others"][key] == found[0]["others"][key]


def test_lossless_is_the_float32_sum_in_the_order_of_ranks(found):
    for (name, dtype), (_, exact, _, _) in found[0]["sums"].items():
        if name == "lossless" or len(found) == 1:
            assert exact, dtype


def test_small_tensors_are_not_coded(found):
    assert all(small for (_, _, small, _) in found[0]["sums"].values())


def test_errors_are_those_of_the_codec(found):
    """Relative to the sum. Steps of 2 max / (2^bits - 2), each phase and peer with at most half of
    one as standard deviation; twice that, as shards have different maxima."""
    world = len(found)
    for (name, dtype), (_, _, _, error) in found[0]["sums"].items():
        if world == 1:
            assert error == 0
        elif name == "uniform8":
            assert 1e-3 < error < 0.3, (name, dtype)
        elif name == "lossless":
            assert error < 1e-2


def test_the_same_step_draws_the_same(found):
    first, again, other = found[0]["repeated"]
    assert first == again
    assert len(found) == 1 or first != other


def test_nan_and_inf_reach_every_rank(found):
    for of_rank in found:
        for name, (is_nan, inf, minus_inf, hashed) in of_rank["nonfinite"].items():
            assert is_nan, name
            assert inf == float("inf")
            assert minus_inf == float("-inf")
            assert hashed == found[0]["nonfinite"][name][3]


def test_the_other_exchanges(found):
    for of_rank in found:
        assert of_rank["others"]["reduce_scatter"]
        assert of_rank["others"]["broadcast"]
        assert of_rank["others"]["gathered_error"] < 0.3


def test_several_at_once_and_several_groups(found):
    for of_rank in found:
        assert all(of_rank["at_once"][0])
        assert all(of_rank["groups"])


def test_what_a_rank_sends_does_not_grow_with_the_ranks(found):
    """2 (n - 1) / n of the bytes, for n ranks: fewer than twice those of the tensors."""
    num_bytes = 4 * sum((70_000, 17, 5_000, 4_095, 40_001))
    for of_rank in found:
        assert of_rank["at_once"][1] <= 2 * num_bytes


def test_no_values_are_no_exchange(found):
    assert all(of_rank["nothing"] for of_rank in found)


def test_what_rounding_loses_is_sent_later(found):
    assert found[0]["fed_back"] < 1e-4


def test_sums_are_unbiased(found):
    """Neither shifted nor shrunk: within four standard errors, over 2.8 million draws."""
    if "mean" in found[0]:
        shifted, grown = found[0]["mean"]
        assert abs(shifted) < 4
        assert abs(grown) < 4
