"""Few exchanges: ranks stay together to the bit, learn, and send little; a rank that dies, stands
still or has other settings ends a round on all of them, and nothing of it is applied. (The limits
on seconds are those of a hang.) The rule itself and damaged bytes: tests/runtime/outer."""

import re
import subprocess
import sys
import time
from pathlib import Path

import diloco_workers as workers
import pytest
import torch
from ranks import run_ranks, sent_on

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "diloco.py"
SOON = 90


def results_of(folder, ranks):
    return [torch.load(folder / f"{rank}.pt") for rank in ranks]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_ranks_have_the_same_bits_after_each_round(tmp_path, world):
    run_ranks(workers.rounds, (str(tmp_path),), world=world)
    by_rank = results_of(tmp_path, range(world))
    for name in (name for name in by_rank[0] if name != "text"):
        hashes, losses, sent = by_rank[0][name]
        assert len(set(hashes)) == len(hashes)  # every round changes something
        for other in by_rank:
            assert other[name][0] == hashes, name
        assert losses[-1] < losses[0], name
        assert (sent > 0) == (world > 1)
    assert by_rank[0]["text"].startswith("DiLoCo(14 steps, ")
    if world > 1:
        sent = {codec: by_rank[0][codec, "torch.float32"][2] for codec in workers.CODECS}
        assert sent["rate1"] < sent["rate2"] < sent["fp4"] < sent["lossless"]


def test_the_outer_step_is_that_of_torch(tmp_path):
    """Both in float32; what differs is the order in which sums are rounded."""
    run_ranks(workers.like_torch, (str(tmp_path),), world=2)
    for differences in results_of(tmp_path, range(2)):
        assert all(difference < 2e-5 for difference in differences), differences


def test_the_own_state_goes_on_to_the_bit(tmp_path):
    for name, resume, until in (("whole", None, 19), ("half", None, 11), ("rest", "half", 19)):
        run_ranks(workers.resumed, (str(tmp_path), name, resume, until, True), world=3)
    for rank in range(3):
        whole, rest = (torch.load(tmp_path / f"{name}-{rank}.pt") for name in ("whole", "rest"))
        assert rest["begin"] == 11
        assert all(map(torch.equal, rest["tensors"], whole["tensors"]))
        assert rest["losses"] == whole["losses"][11:]
        assert all(torch.equal(x, rest["own"][name]) for name, x in whole["own"].items())


def test_other_numbers_of_ranks_go_on_from_the_last_round(tmp_path):
    run_ranks(workers.resumed, (str(tmp_path), "three", None, 10, False), world=3)
    saved = torch.load(tmp_path / "three-0.pt")["state"]
    for world in (1, 2, 4):
        name = f"then {world}"
        run_ranks(workers.resumed, (str(tmp_path), name, "three", 40, False), world=world)
        by_rank = [torch.load(tmp_path / f"{name}-{rank}.pt") for rank in range(world)]
        for one in by_rank:
            assert one["begin"] == int(saved["step"])
            assert all(map(torch.equal, one["after_load"], by_rank[0]["after_load"]))
            assert sum(one["losses"][-5:]) < sum(one["losses"][:5])
        weight = dict(zip(by_rank[0]["model"], by_rank[0]["after_load"], strict=True))[
            "first.weight"
        ]
        assert torch.equal(weight, saved["shared/first.weight"])


def test_functions_closures_and_groups(tmp_path):
    run_ranks(workers.other_inner, (str(tmp_path),), world=3)
    first, second, third = results_of(tmp_path, range(3))
    for found in (first, second, third):
        assert found["taken"] == 4
        assert found["rounds"] == 2
        assert found["all"] == first["all"]
        assert "expected no closure where inner is a function" in found["raised"][0]
        assert "expected inner to be an optimizer or a function, got list" in found["raised"][1]
    assert second["some"] == third["some"] != first["some"]


# ---- faults


def check_round_ended(raised, rank):
    assert raised["kind"] == "ExchangeError"
    assert "[DiLoCo] an exchange did not come to its end" in raised["text"]
    assert f"rank {rank} is gone or does not answer" in raised["text"]
    assert "has failed before" in raised["again"]
    assert raised["whole"]


@pytest.mark.parametrize("codec, overlap", [("fp4", 0), ("rate2", 1), ("topk", 0)])
def test_a_killed_rank_is_named_and_the_last_round_is_whole(tmp_path, codec, overlap):
    run_ranks(workers.killed, (str(tmp_path), codec, overlap), world=3)
    survivors = results_of(tmp_path, (0, 2))
    for raised in survivors:
        check_round_ended(raised, 1)
        assert raised["rounds"] == 3
        assert raised["seconds"] < SOON
    ours, theirs = (raised["state"] for raised in survivors)
    for name in ours:
        assert torch.equal(ours[name], theirs[name]) or name.startswith(("residual/", "rank"))


@pytest.mark.parametrize("codec", ["fp4", "rate2"])
def test_a_rank_that_stands_still_is_named(tmp_path, codec):
    """It is sent on when the others have ended, and ends as well."""
    with sent_on(lambda: all((tmp_path / f"{rank}.pt").exists() for rank in (0, 2))):
        run_ranks(workers.stopped, (str(tmp_path), codec), world=3)
    for raised in results_of(tmp_path, (0, 2)):
        check_round_ended(raised, 1)
        assert raised["rounds"] == 4
        assert 10 < raised["seconds"] < 30 + SOON


def test_late_ranks_change_nothing(tmp_path):
    begin = time.monotonic()
    run_ranks(workers.late, (str(tmp_path),), world=4)
    assert time.monotonic() - begin > 8
    by_rank = results_of(tmp_path, range(4))
    assert all(found == by_rank[0] for found in by_rank)
    on_time, late = by_rank[0]
    assert len(set(on_time)) == len(set(late)) == 4


def test_different_settings_are_refused_on_all_ranks(tmp_path):
    run_ranks(workers.different, (str(tmp_path),), world=3)
    first, second, third = results_of(tmp_path, range(3))
    assert first == third
    assert len(first) == len(second) == 12
    assert first[-1] == second[-1] == 3
    same = "[DiLoCo] expected the same settings on all ranks, got "
    for text in first[:6] + second[:6] + first[10:11]:
        assert text.startswith(same)
    assert first[0] == same + "every: 4 on rank 0, 5 on rank 1"
    assert "codec rate: 0 on rank 0, 2 on rank 1" in first[1]
    assert "outer lr: 0.6" in first[5]
    assert "0.5 on rank 1" in first[5]
    for ours, theirs in zip(second[6:10], first[6:10], strict=True):
        assert theirs == f"[DiLoCo] failed on rank 1: {ours}"
    assert "parameters: 2 of 105 values" in first[10]


def test_calls_that_differ_are_refused(tmp_path):
    run_ranks(workers.unequal_steps, (str(tmp_path),), world=2)
    for text, rounds in results_of(tmp_path, range(2)):
        assert re.search("sent a header with (call|step|divide_by|num_pieces)", text), text
        assert rounds == 1


# ---- the example


def run(*options):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    done = subprocess.run(
        [*command, str(EXAMPLE), "--rounds", "4", "--width", "96", *options],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr  # the ranks compare their weights
    accuracies = [float(x) for x in re.findall(r"accuracy ([\d.]+)", done.stdout)]
    times = float(re.search(r"(\d+) times as many", done.stdout)[1])
    return accuracies, re.findall(r"weights (\w+)", done.stdout), times


@pytest.mark.parametrize(
    ("options", "least"),
    [(["--codec", "lossless"], 15), (["--codec", "uniform4", "--error-feedback"], 40)],
    ids=["lossless", "uniform4"],
)
def test_the_example(options, least):
    """20 steps between exchanges send a twentieth, and a codec its part of that: of 4 bits an
    eighth and less, but three of the arrays are small and go as they are."""
    accuracies, digests, times = run(*options)
    assert len(accuracies) == len(set(digests)) == 4
    assert accuracies[-1] > max(accuracies[0], 0.5)
    assert times > least
