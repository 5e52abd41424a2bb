"""Ranks that train with DiLoCo. Each saves what it got, for the tests to compare."""

import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from exchange_workers import hash_of
from fault_workers import what_is_raised
from ranks import join_group, leave_group
from torch import nn

from slimgrad.distributed import Codec, DiLoCo, ExchangeError, Outer, all_reduce

CODECS = ("lossless", "fp4", "rate2", "rate1", "uniform4")


class Network(nn.Module):
    """With BatchNorm, a frozen bias and a layer that has two names."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.norm = nn.Linear(20, 100), nn.BatchNorm1d(100)
        self.second, self.last = nn.Linear(100, 100), nn.Linear(100, 5)
        self.again = self.second
        self.first.bias.requires_grad_(False)
        nn.init.zeros_(self.first.bias)

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        return self.last(self.again(self.second(x).relu()))


def train(model, step_of, rank, first, count, dtype=torch.float32):
    """step_of(closure): takes a step. Losses."""
    losses = []
    for step in range(first, first + count):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(32, 20, generator=generator)
        y = (x @ torch.randn(20, 5, generator=torch.Generator().manual_seed(7))).argmax(1)
        model.zero_grad()
        loss = F.cross_entropy(model(x.to(dtype)).float(), y)
        loss.backward()
        step_of()
        losses.append(loss.item())
    return losses


def adam(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)


def sgd(model):
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05, momentum=0.9)


def tensors_of(model):
    return [x.detach().clone() for x in model.state_dict().values()]


def hash_of_model(model):
    return hash_of([x.reshape(-1) for x in tensors_of(model)])


def rounds(rank, world, port, results):
    """Every codec and type, after each of three rounds."""
    torch.set_num_threads(1 + rank % 2)  # bits do not depend on it
    join_group(rank, world, port)
    found = {}
    for codec in CODECS:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            model = Network(rank).to(dtype)
            diloco = DiLoCo(model, sgd(model), every=4, codec=codec)  # Adam makes NaN of float16
            hashes = [hash_of_model(model)]
            losses = []
            for number in range(3):
                losses += train(model, diloco.step, rank, 4 * number, 4, dtype)
                hashes.append(hash_of_model(model))
            assert (diloco.steps, diloco.rounds) == (12, 3)
            found[codec, str(dtype)] = (hashes, losses, diloco.sent_bytes)
    model = Network(rank)
    diloco = DiLoCo(model, adam(model), every=4, fragments=2, overlap=True, codec="rate2")
    losses = train(model, diloco.step, rank, 0, 14)
    diloco.synchronize()
    found["fragments"] = ([hash_of_model(model)], losses, diloco.sent_bytes)
    found["text"] = repr(diloco)
    torch.save(found, f"{results}/{rank}.pt")
    leave_group()


def like_torch(rank, world, port, results):
    """The outer step beside torch's own optimizer, on means that torch took."""
    torch.set_num_threads(1)
    join_group(rank, world, port)
    found = []
    for outer in (Outer(), Outer(lr=1.0, momentum=0.0), Outer(0.5, 0.8, nesterov=False)):
        model, plain = Network(0), Network(0)
        trained = [p for p in model.parameters() if p.requires_grad]
        diloco = DiLoCo(model, sgd(model), outer, every=3, codec="lossless")
        train(model, diloco.step, rank, 0, 12)
        parameters = [p for p in plain.parameters() if p.requires_grad]
        shared = [p.detach().clone() for p in parameters]
        optimizer = torch.optim.SGD(
            shared, outer.lr, outer.momentum, nesterov=outer.nesterov and outer.momentum > 0
        )
        inner = sgd(plain)
        running = [plain.norm.running_mean, plain.norm.running_var]
        for number in range(4):
            train(plain, inner.step, rank, 3 * number, 3)
            for ours, p in zip(shared, parameters, strict=True):
                ours.grad = ours - p.detach()
                dist.all_reduce(ours.grad)
                ours.grad /= world
            optimizer.step()
            for x in running:
                dist.all_reduce(x)
                x /= world
            with torch.no_grad():
                for ours, p in zip(shared, parameters, strict=True):
                    p.copy_(ours)
        differences = [float((a - b).abs().max()) for a, b in zip(trained, shared, strict=True)]
        differences += [float((model.norm.running_mean - running[0]).abs().max())]
        found.append(max(differences))
    torch.save(found, f"{results}/{rank}.pt")
    leave_group()


def resumed(rank, world, port, results, name, resume, until, own):
    """Trains until a step, from a state if there is one, and saves both kinds."""
    torch.set_num_threads(1)
    join_group(rank, world, port)
    model = Network(rank)
    inner = adam(model)
    diloco = DiLoCo(
        model, inner, every=4, fragments=2, overlap=1, codec="rate2", error_feedback=0.9
    )
    begin = 0
    if resume:
        saved = torch.load(f"{results}/{resume}-{rank if own else 0}.pt")
        if own:
            model.load_state_dict(saved["model"])
            inner.load_state_dict(saved["inner"])
        diloco.load_state_dict(saved["own" if own else "state"])
        begin = diloco.steps
    after_load = tensors_of(model)
    losses = train(model, diloco.step, rank, begin, until - begin)
    torch.save(
        {
            "model": model.state_dict(),
            "inner": inner.state_dict(),
            "own": diloco.state_dict(own=True),
            "state": diloco.state_dict(),
            "begin": begin,
            "after_load": after_load,
            "tensors": tensors_of(model),
            "losses": losses,
        },
        f"{results}/{name}-{rank}.pt",
    )
    leave_group()


def other_inner(rank, world, port, results):
    """A function as the inner step, a closure, and a group of some ranks."""
    torch.set_num_threads(1)
    join_group(rank, world, port)
    model = Network(0)
    optimizer, scaler = adam(model), torch.amp.GradScaler("cpu", init_scale=4.0)
    taken = []

    def inner():
        scaler.step(optimizer)
        scaler.update()
        taken.append(1)

    diloco = DiLoCo(model, inner, every=2)
    for _ in range(4):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(8, 20)).square().mean()).backward()
        diloco.step()
    halves = [dist.new_group([0]), dist.new_group([1, 2])]
    other = Network(rank)
    with_closure = DiLoCo(other, adam(other), every=1, codec="fp4", group=halves[rank > 0])
    with_closure.step(lambda: other(torch.randn(8, 20)).square().mean().backward())
    raised = []
    for run in (lambda: diloco.step(lambda: None), lambda: DiLoCo(model, [])):
        try:
            run()
        except (ValueError, TypeError) as error:
            raised.append(str(error))
    found = {"taken": len(taken), "rounds": diloco.rounds, "raised": raised}
    found |= {"all": hash_of_model(model), "some": hash_of_model(other)}
    torch.save(found, f"{results}/{rank}.pt")
    leave_group()


# ---- faults


def _until_it_breaks(rank, results, codec, break_it, overlap=0, **settings):
    """break_it(step) is called before each step. What was raised, and the state then."""
    model = Network(rank)
    diloco = DiLoCo(model, adam(model), every=2, codec=codec, overlap=overlap, **settings)
    whole = []

    def step():
        break_it(diloco.steps)
        if diloco.step():
            whole.append(diloco.state_dict())

    raised = what_is_raised(lambda: train(model, step, rank, 0, 200))
    after = diloco.state_dict()
    raised["whole"] = all(map(torch.equal, after.values(), whole[-1].values()))
    raised["rounds"], raised["state"] = diloco.rounds, after
    torch.save(raised, f"{results}/{rank}.pt")
    os._exit(0)


def killed(rank, world, port, results, codec, overlap):
    torch.set_num_threads(1)
    join_group(rank, world, port)

    def break_it(step):
        if rank == 1 and step == 7:
            os._exit(0)  # as if by a signal, of which nobody hears

    _until_it_breaks(rank, results, codec, break_it, overlap, error_feedback=True)


def stopped(rank, world, port, results, codec):
    """Rank 1 stands still in its fifth round, for longer than the group waits."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=30)
    )

    def break_it(step):
        if rank == 1 and step == 9:
            os.kill(os.getpid(), signal.SIGSTOP)

    _until_it_breaks(rank, results, codec, break_it)


def late(rank, world, port, results):
    """A rank that is seconds late, and one that stands still for a while, change nothing."""
    torch.set_num_threads(1)
    join_group(rank, world, port)
    hashes = []
    for is_late in (False, True):
        model = Network(rank)
        diloco = DiLoCo(model, adam(model), every=2, codec=Codec.parse("rate2", seed=3))
        hashes.append([])
        for number in range(4):
            if is_late and rank == number % world:
                time.sleep(2)
            train(model, diloco.step, rank, 2 * number, 2)
            hashes[-1].append(hash_of_model(model))
    torch.save(hashes, f"{results}/{rank}.pt")
    leave_group()


def different(rank, world, port, results):
    """Settings of rank 1 that differ from the others', or are wrong."""
    torch.set_num_threads(1)
    join_group(rank, world, port)
    cases = [
        {"every": 5},
        {"codec": "rate2"},
        {"fragments": 2},
        {"overlap": 1},
        {"error_feedback": True},
        {"outer": Outer(lr=0.5)},
        {"codec": "fp44"},
        {"every": 0},
        {"every": "4"},
        {"outer": 0.7},
    ]
    raised = []
    for case in cases:
        model = Network(0)
        try:
            DiLoCo(model, adam(model), **({"every": 4} | (case if rank == 1 else {})))
            raised.append(None)
        except (ValueError, TypeError) as error:
            raised.append(str(error))
    model = nn.Linear(20, 6 if rank == 1 else 5)
    try:
        DiLoCo(model, adam(model))
    except ValueError as error:
        raised.append(str(error))
    x = torch.ones(10)
    all_reduce(x, "lossless")  # the group is still good
    raised.append(float(x[0]))
    torch.save(raised, f"{results}/{rank}.pt")
    leave_group()


def unequal_steps(rank, world, port, results):
    """Rank 1 calls what the others do not."""
    torch.set_num_threads(1)
    join_group(rank, world, port)
    model = Network(0)
    diloco = DiLoCo(model, adam(model), every=2, codec="rate2")
    train(model, diloco.step, rank, 0, 2)
    text = None
    try:
        if rank == 1:
            all_reduce(torch.ones(5000), "rate2")
        train(model, diloco.step, rank, 2, 2)
    except ExchangeError as error:
        text = str(error)
    torch.save((text, diloco.rounds), f"{results}/{rank}.pt")
    os._exit(0)
