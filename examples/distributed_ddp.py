"""Data-parallel training with coded gradients, on the CPU:

    torchrun --nproc-per-node 2 examples/distributed_ddp.py --codec uniform8

Every rank has images of its own kind of noise; they learn one network. Prints, on rank 0, the loss,
the accuracy, the bytes that gradients took, and whether all ranks have the same weights.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import slimgrad as sg


def batch(step: int, rank: int, size: int = 64):
    """Ten patterns, shifted and noisy."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    patterns = torch.randn(10, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(10, (size,), generator=generator)
    shift = int(torch.randint(-2, 3, (), generator=generator))
    images = torch.roll(patterns[labels], shift, dims=-1)
    return images + torch.randn(images.shape, generator=generator), labels


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--codec", default="uniform8", help=", ".join(sg.distributed.CODECS))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--error-feedback", action="store_true")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(network())
    plan = sg.distributed.register(
        model, arguments.codec, error_feedback=arguments.error_feedback or None
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(arguments.steps):
        images, labels = batch(step, rank)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    with torch.no_grad():
        images, labels = batch(10**6, rank, 512)
        accuracy = (model.module(images).argmax(1) == labels).float().mean()
    dist.all_reduce(accuracy)
    weights = torch.cat([p.detach().view(-1) for p in model.parameters()])
    first = weights.clone()
    dist.broadcast(first, 0)
    same = torch.tensor(float(torch.equal(first, weights)))
    dist.all_reduce(same)
    if rank == 0:
        world, values = dist.get_world_size(), weights.numel() * arguments.steps
        print(f"loss {loss.item():.4f}, accuracy {accuracy.item() / world:.3f}")
        print(f"{plan.sent_bytes} bytes sent, {8 * plan.sent_bytes / values:.2f} bits a gradient")
        print(f"residuals: {plan.residual_bytes()} bytes")
        print(f"ranks with the same weights: {int(same)} of {world}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
