"""Ranks of the tests of coded exchanges. Each saves what it got, for the tests to compare."""

import hashlib

import torch
import torch.distributed as dist
from ranks import join_group, leave_group

import slimgrad as sg
from slimgrad.distributed import Codec, all_gather, all_reduce, broadcast, reduce_scatter

SIZES = (70_000, 17, 5_000, 0, 4_095, 40_001)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def gradients(rank, dtype=torch.float32, step=0):
    generator = torch.Generator().manual_seed(100 * step + rank)
    spread = torch.exp(torch.randn(max(SIZES), generator=generator))
    return [(torch.randn(n, generator=generator) * spread[:n]).to(dtype).view(1, -1) for n in SIZES]


def sum_in_rank_order(world, dtype=torch.float32, step=0):
    total = [x.float() for x in gradients(0, dtype, step)]
    for rank in range(1, world):
        more = gradients(rank, dtype, step)
        total = [a + b.float() for a, b in zip(total, more, strict=True)]
    return total


def hash_of(tensors):
    digest = hashlib.sha256()
    for x in tensors:
        digest.update(x.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def all_sums(rank, world, codecs):
    """Every codec and type: the hashes, and how far from the sum."""
    found = {}
    for name in codecs:
        for dtype in DTYPES:
            xs = gradients(rank, dtype)
            sg.distributed.all_reduce(xs, Codec.parse(name), step=0)
            wanted = sum_in_rank_order(world, dtype)
            exact = all(torch.equal(x, w.to(dtype)) for x, w in zip(xs, wanted, strict=True))
            # Neither cut nor coded, at most rounded to the type.
            small = all(torch.equal(xs[i], wanted[i].to(dtype)) for i in (1, 3, 4))
            error = float((xs[0].float() - wanted[0]).norm() / wanted[0].norm())
            found[name, str(dtype)] = (hash_of(xs), exact, small, error)
    return found


def repeated(rank, world):
    """The same call twice with the same step, and one with another."""
    hashes = []
    for step in (3, 3, 4):
        xs = gradients(rank)
        all_reduce(xs, "uniform4", step=step)
        hashes.append(hash_of(xs))
    return hashes


def mean_of_many(rank, world):
    """The sum of the errors of many exchanges of 3 bits, and the sum of those that point away from
    zero, each in units of its standard error. Both phases round, and steps draw anew."""
    wanted = sum_in_rank_order(world)[0].double()
    total, squares = torch.zeros_like(wanted), 0.0
    for step in range(40):
        x = gradients(rank)[0]
        all_reduce(x, Codec.parse("uniform3"), step=step)
        total += x.double() - wanted
        squares += float((x.double() - wanted).square().sum())
    return float(total.sum()) / squares**0.5, float((total * wanted.sign()).sum()) / squares**0.5


def nonfinite(rank, world):
    """NaN and Inf of one rank, in a shard that it sends and one that it sums."""
    found = {}
    for name in ("lossless", "uniform8", "packed4", "fp6", "pruned"):
        xs = gradients(rank)
        if rank == world - 1:
            xs[0][0, 10] = float("nan")
            xs[0][0, -10] = float("inf")
            xs[1][0, 3] = float("-inf")
        all_reduce(xs, name)
        found[name] = (
            bool(xs[0][0, 10].isnan()),
            float(xs[0][0, -10]),
            float(xs[1][0, 3]),
            hash_of(xs),
        )
    return found


def others(rank, world):
    """reduce_scatter, all_gather and broadcast."""
    found = {}
    parts = [[x + r for x in gradients(rank)] for r in range(world)]
    outputs = [torch.empty_like(x) for x in parts[0]]
    reduce_scatter(outputs, parts, "lossless", divide_by=2)
    wanted = [x + rank for x in gradients(0)]
    for r in range(1, world):
        wanted = [a + (b + rank) for a, b in zip(wanted, gradients(r), strict=True)]
    found["reduce_scatter"] = all(
        torch.equal(a, b / 2) for a, b in zip(outputs, wanted, strict=True)
    )
    # As many values as the rank has, on every rank.
    gathered = [torch.empty(10_000 + r) for r in range(world)]
    all_gather(gathered, gradients(rank)[0][0, : 10_000 + rank], "uniform8")
    found["all_gather"] = hash_of(gathered)
    found["gathered_error"] = max(
        float((x - gradients(r)[0][0, : 10_000 + r]).norm() / x.norm())
        for r, x in enumerate(gathered)
    )
    xs = gradients(rank)
    broadcast(xs, "lossless", src=world - 1)
    found["broadcast"] = all(map(torch.equal, xs, gradients(world - 1)))
    xs = gradients(rank)
    broadcast(xs, "uniform4", src=0)
    found["coded_broadcast"] = hash_of(xs)
    return found


def at_once(rank, world):
    """Several exchanges under way, the answers asked for in another order."""
    lists = [gradients(rank, step=step) for step in range(4)]
    handles = [all_reduce(xs, "lossless", async_op=True) for xs in lists]
    for handle in reversed(handles):
        handle.wait()
    assert all(handle.is_completed() for handle in handles)
    sums = [sum_in_rank_order(world, step=step) for step in range(4)]
    sent = handles[0].sent_bytes
    return [all(map(torch.equal, a, b)) for a, b in zip(lists, sums, strict=True)], sent


def groups(rank, world):
    """Two groups beside the whole, each with sums of its own, at the same time."""
    halves = [list(range(0, world, 2)), list(range(1, world, 2))]
    made = [dist.new_group(ranks) for ranks in halves]
    mine = rank % 2
    a, b = gradients(rank), gradients(rank, step=1)
    first = all_reduce(a, "lossless", group=made[mine], async_op=True)
    second = all_reduce(b, "lossless", async_op=True)
    first.wait()
    second.wait()
    wanted = gradients(halves[mine][0])
    for r in halves[mine][1:]:
        wanted = [x + y for x, y in zip(wanted, gradients(r), strict=True)]
    every = sum_in_rank_order(world, step=1)
    return [all(map(torch.equal, a, wanted)), all(map(torch.equal, b, every))]


def nothing(rank, world):
    """No tensors, and tensors without values."""
    all_reduce([], "uniform8")
    all_reduce([torch.empty(0), torch.empty(3, 0)], "uniform8")
    return True


def fed_back(rank, world):
    """With error feedback the sum over steps of what arrives is that of the gradients, up to what
    is still owed; without it, rounding to nearest loses the small ones for good."""
    codec = Codec.parse("uniform2", error_feedback=True)
    residual, total = torch.zeros(70_000), torch.zeros(70_000, dtype=torch.float64)
    steps = 30
    for step in range(steps):
        x = gradients(rank)[0].view(-1)
        all_reduce(x, codec, step=step, residuals=[residual], divide_by=world)
        total += x.double()
    owed = residual.double()
    dist.all_reduce(owed)
    wanted = steps * sum_in_rank_order(world)[0].view(-1).double() / world
    got = total + owed / world
    return float((got - wanted).norm() / wanted.norm())


def check_all(rank, world, port, results, codecs):
    torch.set_num_threads(1)
    join_group(rank, world, port)
    found = {
        "sums": all_sums(rank, world, codecs),
        "repeated": repeated(rank, world),
        "nonfinite": nonfinite(rank, world),
        "others": others(rank, world),
        "at_once": at_once(rank, world),
        "groups": groups(rank, world) if world > 1 else [True],
        "nothing": nothing(rank, world),
        "fed_back": fed_back(rank, world),
    }
    if world == 3:
        found["mean"] = mean_of_many(rank, world)
    torch.save(found, f"{results}/{rank}.pt")
    leave_group()
