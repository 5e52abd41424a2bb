"""Ranks of which one dies, or sends something else than it should. Whoever is left saves what it
was told and how long that took, and ends without another word."""

import os
import time

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


def killed(rank, world, port, results, victim):
    """The victim is gone, without a farewell, while exchanges are under way."""
    torch.set_num_threads(1)
    join_group(rank, world, port)

    def run():
        for step in range(100):
            handle = all_reduce(torch.randn(300_000), "uniform8", async_op=True)
            if rank == victim and step == 3:
                os._exit(0)
            handle.wait()

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
