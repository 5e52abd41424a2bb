"""Ranks that train small models whose gradients travel coded."""

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from exchange_workers import hash_of
from ranks import join_group, leave_group
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from slimgrad.distributed import Codec, register


class Net(nn.Module):
    """With a layer that some steps do not use, and parameters that are too small to code."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(20, 100), nn.Linear(100, 100)
        self.norm = nn.LayerNorm(100)
        self.extra, self.last = nn.Linear(100, 100), nn.Linear(100, 5)

    def forward(self, x, use_extra=True):
        x = self.norm(F.relu(self.second(F.relu(self.first(x)))))
        if use_extra:
            x = x + self.extra(x)
        return self.last(x)


def model():
    torch.manual_seed(0)
    return Net()


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    teacher = torch.randn(20, 5, generator=torch.Generator().manual_seed(7))
    x = torch.randn(32, 20, generator=generator)
    return x, (x @ teacher).argmax(1)


def train(
    wrapped, rank, steps, first=0, accumulate=1, use_extra=lambda step: True, lr=0.05, momentum=0.9
):
    """Losses of all steps, and hashes of the gradients of each."""
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=lr, momentum=momentum)
    losses, hashes = [], []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        for part in range(accumulate):
            last = part == accumulate - 1
            apart = wrapped.no_sync() if not last else contextlib.nullcontext()
            with apart:
                x, y = batch(rank, accumulate * step + part)
                loss = F.cross_entropy(wrapped(x, use_extra(step)), y)
                loss.backward()
        used = [p.grad for p in wrapped.parameters() if p.grad is not None]
        hashes.append(hash_of([getattr(g, "_local_tensor", g) for g in used]))
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, hashes, [p.detach().clone() for p in wrapped.parameters()]


CODECS = {
    "float32": "float32",
    "lossless": "lossless",
    "uniform8": "uniform8",
    "packed8": "packed8",
    "fp8": "fp8",
    "rate4": "rate4",
    "uniform4 fed back": Codec.parse("uniform4", error_feedback=True),
}


def refusals(wrapped):
    """What is said of names that there are not."""
    for options in ({"codec": "uniform9"}, {"codec": "fp8", "schedule": {5: "auto"}}):
        try:
            register(wrapped, **options)
        except ValueError as error:
            yield str(error)


def ddp(rank, world, port, results):
    torch.set_num_threads(1)
    join_group(rank, world, port)
    found = {}
    for name, codec in CODECS.items():
        wrapped = DistributedDataParallel(model(), bucket_cap_mb=0.05)
        plan = register(wrapped, codec)
        found[name] = train(wrapped, rank, 12)
        found[name + " plan"] = (plan.step, plan.sent_bytes, plan.residual_bytes())
    wrapped = DistributedDataParallel(
        model(), bucket_cap_mb=0.05, find_unused_parameters=True, gradient_as_bucket_view=True
    )
    register(wrapped, "lossless")
    found["unused"] = train(wrapped, rank, 6, use_extra=lambda step: step % 2 == 0)
    wrapped = DistributedDataParallel(model(), bucket_cap_mb=0.05, find_unused_parameters=True)
    found["unused plain"] = train(wrapped, rank, 6, use_extra=lambda step: step % 2 == 0)
    for name in ("float32", "lossless"):
        wrapped = DistributedDataParallel(model(), bucket_cap_mb=0.05)
        register(wrapped, name)
        found["accumulated " + name] = train(wrapped, rank, 5, accumulate=3)
    # Three steps as torch sends them, then 8 bits, then 4.
    wrapped = DistributedDataParallel(model(), bucket_cap_mb=0.05)
    plan = register(wrapped, "uniform8", warmup=3, schedule={6: "uniform4"})
    found["in words"] = [str(plan)]
    sizes = []
    for step in range(9):
        before = plan.sent_bytes
        train(wrapped, rank, 1, first=step)
        sizes.append(plan.sent_bytes - before)
    found["schedule"] = sizes
    found["in words"] += [str(plan), plan.sent_bytes, *refusals(wrapped)]
    found["scaler"] = scaler(rank)
    for dtype in (torch.bfloat16, torch.float16):
        wrapped = DistributedDataParallel(model().to(dtype), bucket_cap_mb=0.05)
        register(wrapped, Codec.parse("uniform8", min_elements=0))
        x, y = batch(rank, 0)
        F.cross_entropy(wrapped(x.to(dtype)).float(), y).backward()
        found[str(dtype)] = [p.grad for p in wrapped.parameters()]
        plain = DistributedDataParallel(model().to(dtype))
        F.cross_entropy(plain(x.to(dtype)).float(), y).backward()
        found[f"{dtype} plain"] = [p.grad for p in plain.parameters()]
    torch.save(found, f"{results}/{rank}.pt")
    leave_group()


def scaler(rank):
    """A loss that overflows on one rank only: every rank's GradScaler skips the step."""
    wrapped = DistributedDataParallel(model(), bucket_cap_mb=0.05)
    register(wrapped, "uniform4")
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    scale = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = hash_of([p.detach() for p in wrapped.parameters()])
    x, y = batch(rank, 0)
    loss = F.cross_entropy(wrapped(x), y) * (float("inf") if rank == 1 else 1.0)
    scale.scale(loss).backward()
    scale.step(optimizer)
    scale.update()
    return before == hash_of([p.detach() for p in wrapped.parameters()]), scale.get_scale()


def fsdp(rank, world, port, results):
    torch.set_num_threads(1)
    join_group(rank, world, port)
    found = {}

    def sharded(**how):
        whole = model()
        for layer in (whole.first, whole.second, whole.extra, whole.last):
            fully_shard(layer, **how)
        return fully_shard(whole, **how)

    for name, codec in CODECS.items():
        wrapped = sharded()
        plan = register(wrapped, codec)
        losses, _, parameters = train(wrapped, rank, 12)
        found[name] = losses, [p.full_tensor() for p in parameters]
        found[name + " plan"] = (plan.step, plan.sent_bytes, plan.residual_bytes())
    plain = sharded()
    losses, _, parameters = train(plain, rank, 12)
    found["untouched"] = losses, [p.full_tensor() for p in parameters]
    # Gradients that are reduced in another type than the parameters'.
    wrapped = sharded(mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float16))
    register(wrapped, "lossless")
    losses, _, parameters = train(wrapped, rank, 4)
    found["float16"] = losses, [p.full_tensor() for p in parameters]
    plain = sharded(mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float16))
    losses, _, parameters = train(plain, rank, 4)
    found["float16 plain"] = losses, [p.full_tensor() for p in parameters]
    torch.save(found, f"{results}/{rank}.pt")
    leave_group()


def feedback(rank, world, port, results, name, resume, first, steps, own):
    """Some steps with error feedback, from a checkpoint if there is one, and a checkpoint."""
    torch.set_num_threads(1)
    join_group(rank, world, port)
    wrapped = DistributedDataParallel(model())
    plan = register(wrapped, Codec.parse("uniform2", error_feedback=True))
    if resume:
        saved = torch.load(f"{results}/{resume}-{rank if own else 0}.pt")
        wrapped.module.load_state_dict(saved["model"])
        plan.load_state_dict(saved["plan"])
    losses, _, parameters = train(wrapped, rank, steps, first, lr=0.05, momentum=0.0)
    state = plan.state_dict(own=own)
    torch.save(
        {
            "model": wrapped.module.state_dict(),
            "plan": state,
            "losses": losses,
            "parameters": parameters,
            "residual": {key: value.clone() for key, value in plan.residuals.items()},
        },
        f"{results}/{name}-{rank}.pt",
    )
    if resume and own:
        try:
            plan.load_state_dict({**state, "ranks": world + 1})
            refused = None
        except ValueError as error:
            refused = str(error)
        torch.save(refused, f"{results}/{name}-refused-{rank}.pt")
    dist.barrier()
    leave_group()
