"""Exchanges of tensors on the test device: fixed-size codes travel by plain collectives without a
wait, with the bits of the same codec on the CPU; others are coded on the host."""

import exchange_ranks
import pytest
import torch
from ranks import run_ranks


@pytest.mark.parametrize("world", [2, 3])
def test_packed_codes_have_the_bits_of_the_cpu_and_never_wait(world):
    names = ("sums", "types", "feedback", "scattered", "nonfinite")
    run_ranks(exchange_ranks.check, (names,), world)


def test_other_codecs_are_coded_on_the_host(tmp_path):
    run_ranks(exchange_ranks.check, (("host",),), 2)


def test_data_parallel_training(tmp_path):
    run_ranks(exchange_ranks.check, (("parallel",),), 2)


def test_fully_sharded_training():
    run_ranks(exchange_ranks.check, (("sharded",),), 2)


CAUSES = {
    "settings": "a header with seed",
    "divisor": "a header with divide_by",
    "first phase": "rank 1 stopped: [all_reduce] testdevice: out of order",
    "second phase": "rank 1 stopped: [all_reduce] testdevice: out of order",
}


@pytest.mark.parametrize("kind", CAUSES)
def test_all_ranks_say_why_one_stopped(tmp_path, kind):
    world = 3
    run_ranks(exchange_ranks.check_faults, (kind, str(tmp_path)), world)
    for rank in range(world):
        first, second = torch.load(tmp_path / f"{rank}.pt")
        cause = CAUSES[kind]
        if "phase" in kind and rank == 1:
            cause = "[all_reduce] testdevice: out of order"
        assert cause in first, (rank, first)
        assert "has failed before" in second and cause in second


def test_a_failed_exchange_raises_whenever_it_is_waited_for():
    run_ranks(exchange_ranks.check, (("twice",),), 2)


def test_a_rank_that_is_gone(tmp_path):
    """Who waits in a collective learns it when Gloo does."""
    run_ranks(exchange_ranks.check_faults, ("lost", str(tmp_path)), 2)
    (message,) = torch.load(tmp_path / "0.pt")
    assert "a rank of the group is gone or does not answer" in message
