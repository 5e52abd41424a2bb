"""A communication hook for DistributedDataParallel."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .collectives import all_reduce
from .plan import Plan


def exchange_bucket(plan: Plan, bucket):
    """The mean over ranks of a bucket of gradients, as a future. (No annotations: torch compares
    them with its own.) Buckets come in the same order on every rank."""
    step, buffer = plan.step, bucket.buffer()
    codec = plan.codec(step)
    world = dist.get_world_size(plan.group)
    if bucket.is_last():
        plan.step += 1
    if codec is None:
        work = dist.all_reduce(buffer.div_(world), group=plan.group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])
    # In the model's order, so that DDP's own, which changes after the first step, does not matter.
    named = [plan.names[id(parameter)] for parameter in bucket.parameters()]
    pairs = zip(named, bucket.gradients(), strict=True)
    names, gradients = zip(*sorted(pairs, key=lambda pair: plan.order[pair[0]]), strict=True)
    residuals = None
    if codec.error_feedback:
        residuals = [
            plan._residual(name, x.numel(), codec, x.device)
            for name, x in zip(names, gradients, strict=True)
        ]
    handle = all_reduce(
        gradients,
        codec,
        plan.group,
        async_op=True,
        step=step,
        residuals=residuals,
        divide_by=world,
        keys=[plan._draws(name) for name in names],
    )
    assert handle is not None
    # Completed here and not by the exchange: its threads must not need Python's lock, which a
    # process that ends takes from them.
    devices = [] if buffer.is_cpu else [buffer.device]
    future: torch.futures.Future = torch.futures.Future(devices=devices)

    def finish() -> None:
        handle.wait()
        plan.sent_bytes += handle.sent_bytes
        future.set_result(buffer)

    if plan.is_static_graph and step == plan.resumed_at:
        finish()  # DDP waits for the first step of a static graph before callbacks are called
    else:
        # When backward has nothing else to do, and before DDP waits, which would raise a
        # RuntimeError where this raises an ExchangeError.
        torch.autograd.Variable._execution_engine.queue_callback(finish)
    return future
