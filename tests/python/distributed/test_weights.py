"""broadcast with the codec "delta": the same bits on every rank, late joiners, misuse."""

import pytest
import torch
import torch.distributed as dist
from ranks import join_group, leave_group, run_ranks

import slimgrad as sg


def steps(rank, world, port, dtype, late):
    join_group(rank, world, port)
    generator = torch.Generator().manual_seed(0)
    master = [0.05 * torch.randn(n, generator=generator) for n in (5000, 300, 1)]
    tensors = [x.to(dtype) for x in master]
    base = [x.clone() for x in tensors]
    if late and rank == 1:
        base[1].zero_()
    for step in range(3):
        master = [x + 1e-4 * torch.randn(x.shape, generator=generator) for x in master]
        new = [x.to(dtype) for x in master]
        if rank == 0:
            tensors = new
            sg.distributed.broadcast(tensors, "delta", base=base)
        elif step % 2 == 0:
            sg.distributed.broadcast(tensors, "delta", base=base)
        else:  # Receivers have what they got the last time.
            sg.distributed.broadcast(tensors, "delta")
            base = [x.clone() for x in tensors]
        for got, old, expected in zip(tensors, base, new, strict=True):
            assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))
            assert torch.equal(old.view(torch.uint8), expected.view(torch.uint8))
    leave_group()


@pytest.mark.parametrize("late", [False, True])
def test_every_rank_gets_the_bits(late):
    run_ranks(steps, (torch.bfloat16, late), world=3)


def misused(rank, world, port):
    join_group(rank, world, port)
    tensors = [torch.ones(4)]
    if rank == 0:
        with pytest.raises(ValueError, match=r"\[broadcast\] expected base to have the 1 tensors"):
            sg.distributed.broadcast(tensors, "delta")
    else:
        with pytest.raises(RuntimeError, match="which could not make it"):
            sg.distributed.broadcast(tensors, "delta")
    with pytest.raises(ValueError, match="with the codec delta only"):
        sg.distributed.broadcast(tensors, "lossless", base=tensors)
    with pytest.raises(ValueError, match="no async_op"):
        sg.distributed.broadcast(tensors, "delta", base=tensors, async_op=True)
    dist.barrier()
    leave_group()


def test_a_source_without_a_base_tells_the_others():
    run_ranks(misused, ())
