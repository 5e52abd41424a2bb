"""A rank that dies, bytes that change on their way, settings that differ: all ranks stop, soon, and
say why. (The limits on seconds are those of a hang, not of a speed.)"""

import re

import pytest
import torch
from fault_workers import (
    caught,
    copied,
    different,
    failing_registration,
    interrupted,
    killed,
    killed_in_backward,
    stopped,
)
from ranks import run_ranks, sent_on

SOON = 60


def what_was_raised(results, ranks):
    return {rank: torch.load(results / f"{rank}.pt") for rank in ranks}


@pytest.mark.parametrize("victim, codec", [(0, "uniform8"), (2, "rate2"), (1, "topk")])
def test_a_killed_rank_is_named(tmp_path, victim, codec):
    run_ranks(killed, (str(tmp_path), victim, codec), world=3)
    for raised in what_was_raised(tmp_path, {0, 1, 2} - {victim}).values():
        assert raised["kind"] == "ExchangeError"
        assert f"rank {victim} is gone or does not answer" in raised["text"]
        assert raised["text"].startswith(("[all_reduce]", "rank "))
        assert raised["seconds"] < SOON
        assert "an exchange of this group has failed before" in raised["again"]


@pytest.mark.parametrize("codec", ["uniform8", "rate2", "topk"])
def test_a_rank_that_stands_still_is_named(tmp_path, codec):
    with sent_on(lambda: all((tmp_path / f"{rank}.pt").exists() for rank in (0, 2))):
        run_ranks(stopped, (str(tmp_path), codec), world=3)
    for raised in what_was_raised(tmp_path, (0, 2)).values():
        assert raised["kind"] == "ExchangeError"
        assert "rank 1 is gone or does not answer" in raised["text"]
        assert 10 < raised["seconds"] < 20 + SOON


def test_a_rank_killed_in_backward_is_named(tmp_path):
    run_ranks(killed_in_backward, (str(tmp_path),), world=2)
    (raised,) = what_was_raised(tmp_path, [0]).values()
    assert "rank 1 is gone or does not answer" in raised["text"]
    assert raised["seconds"] < SOON


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
        assert re.search("sent a header with bits (8, expected 4|4, expected 8)", text)


def test_a_registration_that_fails_on_one_rank_fails_on_all(tmp_path):
    run_ranks(failing_registration, (str(tmp_path),), world=3)
    own = torch.load(tmp_path / "1.pt")
    assert len(own) == 6
    for rank in (0, 2):
        heard = torch.load(tmp_path / f"{rank}.pt")
        assert len(heard) == len(own)
        for (kind, text, _), (_, cause, _) in zip(heard, own, strict=True):
            assert kind == "ValueError"
            assert text.startswith("[register] failed on rank 1: ")
            assert text.endswith(cause)
    assert all(seconds < SOON for _, _, seconds in own)
    assert "a codec of its own" in own[2][1]


def test_a_registered_model_is_copied_and_pickled(tmp_path):
    run_ranks(copied, (str(tmp_path),), world=2)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for of_rank in found:
        assert of_rank["step"] == 2
        assert of_rank["sent"]
        assert "uniform4 with error feedback" in of_rank["text"]
        assert of_rank["again"].startswith("[register] expected a DistributedDataParallel without")
    for ours, theirs in zip(*(of_rank["gradients"] for of_rank in found), strict=True):
        assert torch.equal(ours, theirs)
    _, lossless, plain = found[0]["gradients"]
    assert torch.equal(lossless, plain)  # a copy that is not registered again exchanges plainly


def test_a_rank_that_is_interrupted_is_named(tmp_path):
    run_ranks(interrupted, (str(tmp_path),), world=3)
    for raised in what_was_raised(tmp_path, (0, 2)).values():
        assert raised["kind"] == "ExchangeError"
        assert "rank 1 is gone or does not answer" in raised["text"]


def test_callers_of_ddp_catch_an_exchange_error(tmp_path):
    run_ranks(caught, (str(tmp_path),), world=2)
    assert "rank 1 is gone or does not answer" in torch.load(tmp_path / "0.pt")
