"""Ranks of the tests of exchanges on the test device, whose tensors travel by collectives of fixed
size: over Gloo, in a group that takes them (tests/testdevice/group.cc)."""

import copy

import pytest
import testdevice
import torch
import torch.distributed as dist
from apply_samples import same
from ranks import join_group, leave_group
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import slimgrad as sg
from slimgrad.distributed import Codec, ExchangeError, all_gather, all_reduce, reduce_scatter
from slimgrad.doctor.device_test import recorded

# More than a frame; not coded; with tails; empty.
SIZES = (1_200_000, 17, 5_001, 0, 4_095, 40_001)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def gradients(rank, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rank)
    spread = torch.exp(torch.randn(max(SIZES), generator=generator))
    return [(torch.randn(n, generator=generator) * spread[:n]).to(dtype) for n in SIZES]


def on_device(tensors, device):
    return [x.to(device) for x in tensors]


def all_same(device_tensors, tensors):
    return all(same(a.cpu(), b) for a, b in zip(device_tensors, tensors, strict=True))


def counted(exchange):
    """What the exchange did, and that nothing of slimgrad fell back to the CPU."""
    testdevice.reset()
    exchange()
    counts = testdevice.counts()
    assert all(name.startswith("aten::") for name in testdevice.fallback_names())
    return counts


def sums(rank, world, device):
    for name in ("packed8", "packed6", "packed4"):
        for dtype in DTYPES:
            for divide_by in (1, 3):
                xs = gradients(rank, dtype)
                ys = on_device(xs, device)
                options = {"step": 5, "divide_by": divide_by}
                all_reduce(xs, name, **options)
                counts = counted(lambda ys=ys, name=name, o=options: all_reduce(ys, name, **o))
                assert counts["waits"] == 0
                assert counts["copies_to_host"] == 1  # headers, which nobody waits for
                assert all_same(ys, xs), (name, dtype, divide_by)


def many_types(rank, world, device):
    """One call with all types, whose exchanges are counted as on the CPU."""
    xs = [x for dtype in DTYPES for x in gradients(rank, dtype)]
    for step in (None, 7):
        here = copy.deepcopy(xs)
        there = on_device(xs, device)
        if step is not None:  # Without a step calls are counted, and these are two.
            all_reduce(here, "packed4", step=step)
        all_reduce(there, "packed4", step=step)
        if step is not None:
            assert all_same(there, here)


def feedback(rank, world, device):
    codec = Codec.parse("packed4", error_feedback=True)
    residuals = [torch.zeros(n) for n in SIZES]
    on = on_device(residuals, device)
    for step in range(3):
        xs = gradients(rank + 10 * step)
        ys = on_device(xs, device)
        all_reduce(xs, codec, step=step, residuals=residuals, divide_by=2)
        all_reduce(ys, codec, step=step, residuals=on, divide_by=2)
        assert all_same(ys, xs) and all_same(on, residuals)
    assert residuals[0].count_nonzero() > 0


def scattered_and_gathered(rank, world, device):
    parts = [gradients(10 * rank + peer) for peer in range(world)]
    on = [on_device(part, device) for part in parts]
    here = [torch.empty(n) for n in SIZES]
    there = on_device(here, device)
    reduce_scatter(here, parts, "packed8", step=1)
    counts = counted(lambda: reduce_scatter(there, on, "packed8", step=1))
    assert counts["waits"] == 0 and all_same(there, here)

    own = gradients(rank)[: rank + 1]  # Sizes differ from rank to rank.
    gathered = [[torch.empty(n) for n in SIZES[: peer + 1]] for peer in range(world)]
    on = [on_device(part, device) for part in gathered]
    all_gather(gathered, own, "packed6", step=2)
    mine = on_device(own, device)
    counts = counted(lambda: all_gather(on, mine, "packed6", step=2))
    assert counts["waits"] == 0
    assert all(all_same(a, b) for a, b in zip(on, gathered, strict=True))


def coded_on_the_host(rank, world, device):
    for name in ("lossless", "uniform8", "fp6", "rate2"):
        xs = gradients(rank)
        ys = on_device(xs, device)
        all_reduce(xs, name, step=5)
        counts = counted(lambda ys=ys, name=name: all_reduce(ys, name, step=5))
        assert counts["waits"] == 1 and 0 < counts["copies_to_host"] <= len(SIZES)
        assert all_same(ys, xs), name
    x = torch.arange(5000.0) + rank
    sg.distributed.broadcast(y := x.to(device), "lossless", src=1)
    assert torch.equal(y.cpu(), torch.arange(5000.0) + 1)


def nonfinite(rank, world, device):
    for value in (float("nan"), float("inf")):
        xs = gradients(rank)
        clean = copy.deepcopy(xs)
        if rank == 1:
            xs[2][7] = value
        ys = on_device(xs, device)
        all_reduce(ys, "packed8", step=1)
        all_reduce(clean, "packed8", step=1)
        assert ys[2].cpu().isnan().any()
        assert all_same(ys[:2] + ys[3:], clean[:2] + clean[3:])
        plain = torch.full((100,), value).to(device)
        all_reduce(plain, "packed8", step=1)
        assert not plain.cpu().isfinite().any()


def errors(rank, world, device, kind):
    """What this rank raised, and what the next exchange says."""
    y = gradients(rank)[0].to(device)
    codec = Codec.parse("packed8")
    if kind == "settings":
        codec = codec.replace(seed=rank)
    elif kind == "divisor":
        codec = codec.replace(seed=3)
    elif rank == 1:
        torch.ops.testdevice.fail_after(2 if kind == "first phase" else 6)
    messages = []
    for _ in range(2):
        try:
            all_reduce(y, codec, step=1, divide_by=1 + rank if kind == "divisor" else 1)
        except ExchangeError as error:
            messages.append(str(error))
    torch.ops.testdevice.fail_after(-1)
    assert len(messages) == 2, messages
    assert rank == 1 or y.cpu().isnan().any()
    return messages


def waited_for_twice(rank, world, device):
    y = gradients(rank)[0].to(device)
    handle = all_reduce(y, Codec.parse("packed8").replace(seed=rank), async_op=True, step=1)
    for _ in range(2):
        with pytest.raises(ExchangeError, match="a header with seed"):
            handle.wait()


def lost(rank, world, device, kind):
    """Rank 1 leaves while the others wait for it in a collective."""
    y = gradients(rank)[0].to(device)
    if rank == 1:
        return []
    try:
        all_reduce(y, "packed8", step=1)
    except ExchangeError as error:
        return [str(error)]
    return []


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(100, 200), torch.nn.GELU(), torch.nn.Linear(200, 90), torch.nn.GELU()
    )


def train_step(model, optimizer, where, seed):
    torch.manual_seed(seed)
    x, y = torch.randn(32, 100).to(where), torch.randn(32, 90).to(where)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def trained(rank, where, codec, options):
    model = network().to(where)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    plan = sg.distributed.register(parallel, codec, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        train_step(parallel, optimizer, where, 100 * step + rank)
    return [p.detach().cpu() for p in model.parameters()], plan


def data_parallel(rank, world, device):
    for codec, options in (
        ("packed8", {}),
        ("packed4", {"error_feedback": True}),
        ("uniform8", {}),
    ):
        there, plan = trained(rank, device, codec, options)
        assert plan.step == 3
        # The first registration of the group draws by another number than the second.
        here, _ = trained(rank, "cpu", codec, options)
        for a, b in zip(there, here, strict=True):
            assert (a - b).norm() < 0.1 * b.norm()
        for a in there:
            gathered = [torch.empty_like(a) for _ in range(world)]
            dist.all_gather(gathered, a)
            assert all(torch.equal(a, other) for other in gathered)


def fully_sharded(rank, world, device):
    """FSDP2's reduce-scatter. With error feedback nothing is drawn, so that two registrations of a
    group, whose draws differ, give the same bits."""
    for name in ("packed8", "packed4"):
        results = []
        for where in ("cpu", device):
            model, mesh = network().to(where), DeviceMesh(torch.device(where).type, range(world))
            for module in (model[0], model[2], model):
                fully_shard(module, mesh=mesh)
            plan = sg.distributed.register(model, Codec.parse(name, error_feedback=True))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with recorded() as launches:
                for step in range(3):
                    train_step(model, optimizer, where, 100 * step + rank)
            assert any("uniform_encode" in kernel for kernel, *_ in launches) == (where == device)
            assert plan.step == 3 and plan.residual_bytes() > 0
            results.append([p.to_local().detach().cpu() for p in model.parameters()])
        assert all(map(torch.equal, *results))


CHECKS = {
    "sums": sums,
    "types": many_types,
    "feedback": feedback,
    "scattered": scattered_and_gathered,
    "host": coded_on_the_host,
    "nonfinite": nonfinite,
    "parallel": data_parallel,
    "sharded": fully_sharded,
    "twice": waited_for_twice,
}


def check(rank, world, port, names):
    join_group(rank, world, port)
    device = testdevice.load()
    torch.ops.testdevice.serve_group(dist.group.WORLD.group_name)
    for name in names:
        CHECKS[name](rank, world, device)
    leave_group()


def check_faults(rank, world, port, kind, folder):
    join_group(rank, world, port)
    device = testdevice.load()
    torch.ops.testdevice.serve_group(dist.group.WORLD.group_name)
    found = (lost if kind == "lost" else errors)(rank, world, device, kind)
    torch.save(found, f"{folder}/{rank}.pt")
    if kind != "lost":
        leave_group()
