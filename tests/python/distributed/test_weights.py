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
    master[0] = master[0].view(50, 100)
    tensors = [x.to(dtype) for x in master]
    if rank == 1:  # in another order in memory
        tensors[0] = tensors[0].t().contiguous().t()
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
            assert torch.equal(got.float(), expected.float())
            assert torch.equal(old.float(), expected.float())
    leave_group()


@pytest.mark.parametrize(
    ("dtype", "late"),
    [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float8_e4m3fn, True)],
)
def test_every_rank_gets_the_bits(dtype, late):
    run_ranks(steps, (dtype, late), world=3)


def misused(rank, world, port):
    join_group(rank, world, port)
    tensors = [torch.ones(4)]
    if rank == 0:
        with pytest.raises(ValueError, match=r"\[broadcast\] expected base to have the 1 tensors"):
            sg.distributed.broadcast(tensors, "delta")
    else:
        with pytest.raises(sg.distributed.ExchangeError, match="a rank could not make"):
            sg.distributed.broadcast(tensors, "delta")
    # Rank 1 is not like the others: they learn of it, and nothing changes on any rank.
    base = [torch.zeros(4), torch.ones(3)]
    for mine in (
        base[:1],
        [torch.zeros(4), torch.ones(2)],
        [torch.zeros(4), torch.ones(3, dtype=torch.half)],
        [torch.zeros(4, dtype=torch.complex128), torch.ones(3)],
    ):
        tensors = mine if rank == 1 else [x + (rank == 0) for x in base]
        before = [x.clone() for x in tensors]
        error = ValueError if rank == 1 else sg.distributed.ExchangeError
        with pytest.raises(error, match=r"^\[(broadcast|apply_delta)\] "):
            sg.distributed.broadcast(tensors, "delta", base=mine if rank == 1 else base)
        assert all(torch.equal(x, y) for x, y in zip(tensors, before, strict=True))
    with pytest.raises(ValueError, match="with the codec delta only"):
        sg.distributed.broadcast(tensors, "lossless", base=tensors)
    with pytest.raises(ValueError, match="no async_op"):
        sg.distributed.broadcast(tensors, "delta", base=tensors, async_op=True)
    dist.barrier()
    leave_group()


def test_a_rank_that_fails_tells_the_others():
    run_ranks(misused, (), world=3)
