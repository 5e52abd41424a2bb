"""What the distributed tests rely on: a hang fails, once, and an error is an error."""

import threading

import pytest
import torch.distributed as dist
from ranks import join_group, run_ranks


def _wait_for_nobody(rank, world, port, results):
    join_group(rank, world, port)
    with open(f"{results}/{rank}", "a") as starts:
        starts.write("started\n")
    if rank == 0:
        dist.barrier()  # Nobody else comes.
    threading.Event().wait()


def _spin(rank, world, port):
    join_group(rank, world, port)
    while True:
        pass


def _fail(rank, world, port):
    join_group(rank, world, port)
    if rank == 1:
        raise ArithmeticError("rank 1 fails")
    dist.barrier()


def test_a_hang_fails_and_is_not_tried_again(tmp_path, capfd):
    with pytest.raises(pytest.fail.Exception, match="the ranks hang"):
        run_ranks(_wait_for_nobody, (str(tmp_path),), idle=15)
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["started\n"] * 2
    assert "in _wait_for_nobody" in capfd.readouterr().err


def test_ranks_that_spin_fail():
    with pytest.raises(pytest.fail.Exception, match="the ranks hang"):
        run_ranks(_spin, (), most=8)


def test_an_error_in_a_rank_is_an_error():
    with pytest.raises(Exception, match="rank 1 fails"):
        run_ranks(_fail, ())
