"""A communication hook for DistributedDataParallel."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .collectives import Handle, all_reduce
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
            plan._residual(name, x.numel(), codec) for name, x in zip(names, gradients, strict=True)
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
    _wait_at_the_end(plan, handle)
    # DDP takes values of Python's only, such as those that then() makes.
    return handle._future(buffer).then(lambda done: done.value())


def _wait_at_the_end(plan: Plan, handle: Handle) -> None:
    """Waits for the exchange when backward has nothing else to do, before DDP does, which would
    raise a RuntimeError where this raises an ExchangeError."""

    def wait() -> None:
        handle.wait()
        plan.sent_bytes += handle.sent_bytes

    torch.autograd.Variable._execution_engine.queue_callback(wait)
