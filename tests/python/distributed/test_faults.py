"""A rank that dies, bytes that change on their way, settings that differ: all ranks stop, soon, and
say why. (The limits on seconds are those of a hang, not of a speed.)"""

import pytest
import torch
from fault_workers import damaged, different, killed, killed_in_backward
from ranks import run_ranks

SOON = 60


def what_was_raised(results, ranks):
    return {rank: torch.load(results / f"{rank}.pt") for rank in ranks}


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_named(tmp_path, victim):
    run_ranks(killed, (str(tmp_path), victim), world=3)
    for raised in what_was_raised(tmp_path, {0, 1, 2} - {victim}).values():
        assert raised["kind"] == "ExchangeError"
        assert f"rank {victim} is gone or does not answer" in raised["text"]
        assert raised["text"].startswith(("[all_reduce]", "rank "))
        assert raised["seconds"] < SOON
        assert "an exchange of this group has failed before" in raised["again"]


def test_a_rank_killed_in_backward_is_named(tmp_path):
    run_ranks(killed_in_backward, (str(tmp_path),), world=2)
    (raised,) = what_was_raised(tmp_path, [0]).values()
    assert "rank 1 is gone or does not answer" in raised["text"]
    assert raised["seconds"] < SOON


DAMAGE = {
    (0, "frame"): "frame 0 from rank 1: [decode] the checksum is wrong",
    (1, "frame"): "frame 0 from rank 1: [decode] the checksum is wrong",
    (0, "header"): "rank 1 sent a header that is damaged, or none",
    (2, "header"): "rank 1 sent a header that is damaged, or none",
    (0, "size"): "rank 1 sent a header with 1099511627776 bytes announced, expected",
    (1, "codec"): "rank 1 sent a header with codec 'uniform2', expected 'uniform8'",
    (0, "frame number"): "rank 1 sent a header with frame 7, expected 0",
    (1, "exchange"): "rank 1 sent a header with exchange 77, expected 2",
}


def test_what_was_damaged_is_named_by_all(tmp_path):
    run_ranks(damaged, (str(tmp_path), list(DAMAGE)), world=3)
    for rank, by_case in what_was_raised(tmp_path, range(3)).items():
        for case, raised in by_case.items():
            assert raised["kind"] == "ExchangeError", (rank, case)
            assert DAMAGE[case] in raised["text"], (rank, case)
            assert raised["seconds"] < SOON
            assert raised["again"] is not None
            if rank == 1:  # who sent it hears it from others
                assert "stopped: [all_reduce]" in raised["text"]


def test_different_settings_are_refused_with_both(tmp_path):
    run_ranks(different, (str(tmp_path),), world=2)
    by_rank = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert by_rank[0] == by_rank[1]
    codec, warmup, schedule, seed, version, same = by_rank[0]
    assert codec.startswith("[register] expected the same settings on all ranks, got codecs: ")
    assert "'bits': 8" in codec
    assert "'bits': 4" in codec
    assert "on rank 0" in codec
    assert "on rank 1" in codec
    assert warmup.endswith("got warmup: 0 on rank 0, 1 on rank 1")
    assert "'11':" in schedule
    assert "'seed': 1" in seed
    assert version.endswith("'9.9.9' on rank 1")
    assert same is None
    for rank in range(2):  # whoever sees it first tells the other
        text = torch.load(tmp_path / f"call-{rank}.pt")
        assert "sent a header with codec 'uniform" in text
        assert "'uniform4'" in text
        assert "'uniform8'" in text
