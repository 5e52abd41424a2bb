"""One rank of the distributed tests of compressed models."""

import copy

import torch
import torch.nn.functional as F
from ranks import join_group, leave_group
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import slimgrad as sg


def steps(model, x, y, lr):
    """The losses of 30 steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train(rank, world, port, results, gradients):
    torch.set_num_threads(1)
    join_group(rank, world, port)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    controller = sg.compress(model, gradients, min_elements=1, seed=5)
    wrapped = DistributedDataParallel(model, broadcast_buffers=True)
    # Every rank has the same data, so that only the draws can differ.
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(64, 32, generator=generator), torch.arange(64) % 10
    losses = steps(wrapped, x, y, lr=0.1)
    # What one gate makes of one gradient, on each rank.
    end = torch.zeros(64, 64, requires_grad=True)
    model[0].slimgrad_gate(end).backward(torch.randn(64, 64, generator=generator))
    torch.save(
        {
            "losses": losses,
            "parameters": [p.detach() for p in model.parameters()],
            "draw": end.grad,
            "report": controller.report(),
        },
        f"{results}/{rank}.pt",
    )
    leave_group()


def draw_late(rank, world, port, results):
    """What gates make of one gradient that were made before there were ranks: one that takes the
    rank, one whose stream is set, and a sparse layer; each twice from the same state."""
    torch.set_num_threads(1)
    by_rank, set_alike, sparse = (nn.Linear(64, 64) for _ in range(3))
    sg.compress(by_rank, sg.Prune(0.8), min_elements=1, seed=5)
    sg.compress(set_alike, sg.Prune(0.8), min_elements=1, seed=5, stream=7)
    prune = sg.Prune(weight=0.8, input=0.8, sparse_backward="always")
    sg.compress(sparse, prune, min_elements=1, seed=5)
    join_group(rank, world, port)
    generator = torch.Generator().manual_seed(1)
    weight, x, g = (torch.randn(64, 64, generator=generator) for _ in range(3))
    draws = {}
    for name, layer in {"by rank": by_rank, "set": set_alike, "sparse": sparse}.items():
        with torch.no_grad():
            layer.weight.copy_(weight)
        for again in ("", " again"):
            twin = copy.deepcopy(layer)
            twin(x).backward(g)
            draws[name + again] = twin.weight.grad
    torch.save(draws, f"{results}/{rank}.pt")
    leave_group()


def tensor_parallel(rank, world, port, results):
    """A column-wise and a row-wise layer; gradients of the first weight with gates that do nothing
    and without, and of a bias that every rank has whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.set_num_threads(1)
    join_group(rank, world, port)
    mesh = init_device_mesh("cpu", (world,))

    def gradients(**how):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        controller = sg.compress(model, seed=1, min_elements=1, stream=0, **how) if how else None
        x = torch.randn(64, 32, generator=torch.Generator().manual_seed(2))
        model(x).square().sum().backward()
        return model, controller

    plain, _ = gradients()
    idle, _ = gradients(gradients=sg.Prune(0.0))
    pruned, controller = gradients(gradients=sg.Prune(0.5))
    torch.save(
        {
            "plain": plain[0].weight.grad.to_local(),
            "idle": idle[0].weight.grad.to_local(),
            "bias": pruned[2].bias.grad.full_tensor(),
            "calls": [row["calls"] for row in controller.report().values()],
        },
        f"{results}/{rank}.pt",
    )
    leave_group()


def train_sparse(rank, world, port, results):
    """Layers with a sparse backward pass; the same data on every rank."""
    torch.set_num_threads(1)
    join_group(rank, world, port)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.Flatten(), nn.Linear(128, 10)
    )
    prune = sg.Prune(weight=0.8, input=0.5, sparse_backward="always")
    sg.compress(model, prune, min_elements=1, seed=5)
    wrapped = DistributedDataParallel(model)
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(32) % 10
    x = torch.randn(10, 3, 8, 8, generator=generator)[y]
    losses = steps(wrapped, x, y, lr=0.05)
    # Without the wrapper nothing is averaged: the gradients of this rank's own draws.
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    torch.save(
        {
            "losses": losses,
            "parameters": [p.detach() for p in model.parameters()],
            "own_gradient": model[2].weight.grad,
            "choices": model[2].slimgrad_sparse.choices(),
        },
        f"{results}/{rank}.pt",
    )
    leave_group()
