"""codec="auto": all ranks measure, rank 0 decides, all take the same."""

import pytest
import torch
import torch.distributed as dist
from ranks import join_group, leave_group, run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import slimgrad as sg
from slimgrad.distributed.auto import CANDIDATES, choose
from slimgrad.distributed.cost import Link
from slimgrad.distributed.link import measure_link


def gathered(value) -> list:
    everywhere = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, value)
    return everywhere


def _all_agree(rank, world, port):
    join_group(rank, world, port)
    torch.set_num_threads(1)
    link = measure_link()
    assert len(set(gathered((link.bandwidth, link.latency)))) == 1
    assert link.bandwidth > 1e6
    assert 0 < link.latency < 10

    torch.manual_seed(rank)  # what a rank draws does not matter
    choice = choose(nn.Linear(300, 300))
    assert choice.codec in ("float32", *CANDIDATES)
    assert len(set(gathered(choice.codec))) == 1
    assert len(set(gathered(str(choice.estimate)))) == 1  # the slowest rank's numbers, everywhere
    assert f"took {choice.codec!r}" in str(choice)

    model = DistributedDataParallel(nn.Linear(300, 300))
    plan = sg.distributed.register(model, codec="auto")
    assert len(set(gathered(plan.choice.codec))) == 1
    model(torch.ones(2, 300)).sum().backward()
    assert len({tuple(g) for g in gathered(model.module.weight.grad.flatten()[:8].tolist())}) == 1
    leave_group()


def test_every_rank_takes_the_same():
    run_ranks(_all_agree, ())


def _alone(rank, world, port):
    join_group(rank, world, port)
    assert measure_link() == Link(float("inf"), 0.0)
    assert choose(nn.Linear(300, 300)).codec == "float32"
    leave_group()


def test_one_rank_has_nothing_to_choose():
    run_ranks(_alone, (), world=1)


def _fast_and_slow(rank, world, port, bandwidth, expected):
    join_group(rank, world, port)
    import slimgrad.distributed.auto as auto

    auto.measure_link = lambda group, device: Link(bandwidth, 1e-4)
    choice = choose(nn.Linear(600, 600))
    assert (choice.codec == "float32") == expected
    assert str(choice).count("No: " if expected else "Yes: ") == 1
    leave_group()


@pytest.mark.parametrize(("bandwidth", "plain"), [(1e13, True), (1e5, False)])
def test_a_link_that_is_fast_enough_needs_no_codec(bandwidth, plain):
    run_ranks(_fast_and_slow, (bandwidth, plain))


def _not_all_ask(rank, world, port):
    join_group(rank, world, port)
    model = DistributedDataParallel(nn.Linear(300, 300))
    with pytest.raises(ValueError, match="'auto' on rank 0, 'not auto' on rank 1"):
        sg.distributed.register(model, codec="uniform8" if rank else "auto")
    leave_group()


def test_ranks_that_ask_and_ranks_that_do_not_are_told():
    run_ranks(_not_all_ask, ())
