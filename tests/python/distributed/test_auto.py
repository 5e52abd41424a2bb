"""codec="auto": all ranks measure, rank 0 decides, all take the same."""

import pytest
import torch
import torch.distributed as dist
from ranks import join_group, leave_group, run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import slimgrad as sg
from slimgrad.distributed import auto
from slimgrad.distributed.auto import CANDIDATES, choose
from slimgrad.distributed.cost import Link
from slimgrad.distributed.link import measure_link


def gathered(value) -> list:
    everywhere = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, value)
    return everywhere


def all_measure_one_link() -> None:
    link = measure_link()
    assert len(set(gathered((link.bandwidth, link.latency)))) == 1
    assert link.bandwidth > 1e6
    assert 0 < link.latency < 10


def all_choose_the_same(rank: int) -> None:
    torch.manual_seed(rank)  # what a rank draws does not matter
    choice = choose(nn.Linear(300, 300))
    assert choice.codec in ("float32", *CANDIDATES)
    assert len(set(gathered(choice.codec))) == 1
    assert len(set(gathered(str(choice.estimate)))) == 1  # the slowest rank's numbers, everywhere
    assert f"took {choice.codec!r}" in str(choice)


def registration_keeps_the_choice() -> None:
    model = DistributedDataParallel(nn.Linear(300, 300))
    plan = sg.distributed.register(model, codec="auto")
    assert len(set(gathered(plan.choice.codec))) == 1
    model(torch.ones(2, 300)).sum().backward()
    assert len({tuple(g) for g in gathered(model.module.weight.grad.flatten()[:8].tolist())}) == 1
    given = DistributedDataParallel(nn.Linear(300, 300))
    assert sg.distributed.register(given, codec=plan.choice.codec).choice is None


def a_fast_link_needs_no_codec() -> None:
    measured = auto.measure_link
    for bandwidth, answer in [(1e13, "No: "), (1e5, "Yes: ")]:
        auto.measure_link = lambda group, device, bits=bandwidth: Link(bits, 1e-4)
        choice = choose(nn.Linear(600, 600))
        assert (choice.codec == "float32") == (answer == "No: ")
        assert answer in str(choice)
    auto.measure_link = measured


def one_rank_has_nothing_to_choose(rank: int) -> None:
    groups = [dist.new_group([0]), dist.new_group([1])]
    assert measure_link(groups[rank]) == Link(float("inf"), 0.0)
    choice = choose(nn.Linear(300, 300), groups[rank])
    assert choice.codec == "float32"
    assert "one rank exchanges nothing" in str(choice)


def ranks_that_ask_and_ranks_that_do_not_are_told(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(300, 300))
    with pytest.raises(ValueError, match="'auto' on rank 0, 'not auto' on rank 1"):
        sg.distributed.register(model, codec="uniform8" if rank else "auto")


def _rank(rank, world, port):
    join_group(rank, world, port)
    torch.set_num_threads(1)
    all_measure_one_link()
    all_choose_the_same(rank)
    registration_keeps_the_choice()
    a_fast_link_needs_no_codec()
    one_rank_has_nothing_to_choose(rank)
    ranks_that_ask_and_ranks_that_do_not_are_told(rank)
    leave_group()


def test_every_rank_takes_the_same():
    run_ranks(_rank, ())
