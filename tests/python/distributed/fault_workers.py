"""Ranks of which one dies, or sends something else than it should. Whoever is left saves what it
was told and how long that took, and ends without another word."""

import copy
import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from ranks import join_group
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import slimgrad as sg
from slimgrad.distributed import Codec, ExchangeError, all_reduce, register


def what_is_raised(run, group=None):
    begin, error, again = time.monotonic(), None, None
    try:
        run()
    except Exception as raised:
        error = raised
    try:
        all_reduce(torch.ones(10), "lossless", group=group)
    except ExchangeError as raised:
        again = str(raised)
    return {
        "kind": type(error).__name__,
        "text": str(error),
        "seconds": time.monotonic() - begin,
        "again": again,
    }


def save_what_is_raised(run, rank, results):
    torch.save(what_is_raised(run), f"{results}/{rank}.pt")
    os._exit(0)


def killed(rank, world, port, results, victim, codec):
    """The victim is gone, without a farewell, while exchanges are under way."""
    torch.set_num_threads(1)
    join_group(rank, world, port)

    def run():
        for step in range(100):
            once = Codec.parse(codec, error_feedback=False)
            handle = all_reduce(torch.randn(300_000), once, async_op=True)
            if rank == victim and step == 3:
                os._exit(0)
            handle.wait()

    save_what_is_raised(run, rank, results)


def stopped(rank, world, port, results, codec):
    """Rank 1 stands still, for longer than the group waits, while exchanges are under way."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=20)
    )

    def run():
        for step in range(100):
            if rank == 1 and step == 3:
                os.kill(os.getpid(), signal.SIGSTOP)
            all_reduce(torch.randn(300_000), Codec.parse(codec, error_feedback=False))

    save_what_is_raised(run, rank, results)


def killed_in_backward(rank, world, port, results):
    torch.set_num_threads(1)
    join_group(rank, world, port)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100)))
    register(model, Codec.parse("uniform8", min_elements=0))

    def run():
        for step in range(100):
            if rank == 1 and step == 3:
                model.module[0].weight.register_hook(lambda gradient: os._exit(0))
            model(torch.ones(2, 100)).square().sum().backward()

    save_what_is_raised(run, rank, results)


def different(rank, world, port, results):
    """Settings that differ, in several ways, and calls that do."""
    torch.set_num_threads(1)
    join_group(rank, world, port)
    raised = []

    def expect(run):
        try:
            run()
            raised.append(None)
        except ValueError as error:
            raised.append(str(error))

    def model():
        return DistributedDataParallel(nn.Linear(10, 10))

    expect(lambda: register(model(), "uniform8" if rank == 0 else "uniform4"))
    expect(lambda: register(model(), "uniform8", warmup=rank))
    expect(lambda: register(model(), "uniform8", schedule={10 * rank + 1: "uniform4"}))
    expect(lambda: register(model(), Codec.parse("fp8", seed=rank)))
    version, sg.__version__ = sg.__version__, "9.9.9" if rank == 1 else sg.__version__
    expect(lambda: register(model(), "uniform8"))
    sg.__version__ = version
    expect(lambda: register(model(), "uniform8"))
    torch.save(raised, f"{results}/{rank}.pt")
    dist.barrier()
    try:  # without registration the headers tell
        all_reduce(torch.randn(5000), "uniform8" if rank == 0 else "uniform4")
    except ExchangeError as error:
        torch.save(str(error), f"{results}/call-{rank}.pt")
    os._exit(0)


def failing_registration(rank, world, port, results):
    """register() that fails on rank 1 alone, in several ways."""
    torch.set_num_threads(1)
    join_group(rank, world, port)

    def raises(model, group):
        raise KeyError("a codec of its own")

    wrong = [
        {"codec": "unifrom8"},
        {"codec": "uniform8", "warmup": -1},
        {"codec": raises},
        {"codec": "pruned", "error_feedback": True},
        {"codec": 3},
        {"codec": "uniform8", "schedule": {-1: "uniform4"}},
    ]
    raised = []
    for arguments in wrong:
        begin = time.monotonic()
        try:
            register(
                DistributedDataParallel(nn.Linear(10, 10)),
                **(arguments if rank == 1 else {"codec": "uniform8"}),
            )
        except Exception as error:
            raised.append((type(error).__name__, str(error), time.monotonic() - begin))
    register(DistributedDataParallel(nn.Linear(10, 10)), "uniform8")  # the group is still good
    torch.save(raised, f"{results}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def copied(rank, world, port, results):
    """A registered model is copied and pickled."""
    torch.set_num_threads(1)
    join_group(rank, world, port)
    model = DistributedDataParallel(nn.Linear(100, 100))
    plan = register(model, Codec.parse("uniform4", error_feedback=True))
    again = ""
    try:
        register(model, "uniform8")
    except RuntimeError as error:
        again = str(error)

    def step(of):
        of(torch.full((2, 100), 1.0 + rank)).square().sum().backward()

    step(model)
    other = copy.deepcopy(model)
    torch.save(model, f"{results}/model-{rank}.pt")
    third = torch.load(f"{results}/model-{rank}.pt", weights_only=False)
    register(other, "lossless")
    for one in (model, other, third):
        one.zero_grad()
        step(one)
    found = {"step": plan.step, "sent": plan.sent_bytes > 0, "text": str(plan), "again": again}
    found["gradients"] = [one.module.weight.grad for one in (model, other, third)]
    torch.save(found, f"{results}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def interrupted(rank, world, port, results):
    """Ctrl-C in rank 1, while the others exchange."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    torch.set_num_threads(1)
    join_group(rank, world, port)

    def run():
        for step in range(200):
            if rank == 1 and step == 5:
                signal.raise_signal(signal.SIGINT)
            all_reduce(torch.randn(300_000), "uniform8")

    if rank == 1:
        try:
            run()
        except KeyboardInterrupt:
            os._exit(0)
    save_what_is_raised(run, rank, results)


def caught(rank, world, port, results):
    """DDP's callers catch what single calls raise."""
    torch.set_num_threads(1)
    join_group(rank, world, port)
    model = DistributedDataParallel(nn.Linear(100, 100))
    register(model, Codec.parse("uniform8", min_elements=0))
    kind = None
    try:
        for step in range(100):
            if rank == 1 and step == 3:
                os._exit(0)
            model(torch.ones(2, 100)).square().sum().backward()
    except ExchangeError as error:
        kind = str(error)
    torch.save(kind, f"{results}/{rank}.pt")
    os._exit(0)
