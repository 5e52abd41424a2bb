"""Few exchanges, of few bits: ranks train alone for some steps, then exchange how far their weights
moved (DiLoCo).

    torchrun --nproc-per-node 2 examples/diloco.py --every 20 --codec fp4
"""

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import slimgrad as sg

CLASSES, FEATURES = 8, 32


def batch(size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around two centres for each class, between which no plane tells them apart."""
    labels = torch.randint(CLASSES, (size,), generator=generator)
    centres = torch.randn(2 * CLASSES, FEATURES, generator=torch.Generator().manual_seed(5))
    which = labels + CLASSES * torch.randint(2, (size,), generator=generator)
    return centres[which] + 1.3 * torch.randn(size, FEATURES, generator=generator), labels


def network(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, width),
        nn.GELU(),
        nn.Linear(width, width),
        nn.GELU(),
        nn.Linear(width, CLASSES),
    )


def digest(model: nn.Module) -> str:
    values = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return hashlib.sha256(values.numpy().tobytes()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--codec", default="fp4", help="any of slimgrad.distributed.CODECS")
    parser.add_argument("--error-feedback", action="store_true")
    parser.add_argument("--outer-rate", type=float, default=0.7)
    parser.add_argument("--outer-momentum", type=float, default=0.9)
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    model = network(options.width)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    diloco = sg.distributed.DiLoCo(
        model,
        inner,
        sg.distributed.Outer(options.outer_rate, options.outer_momentum),
        every=options.every,
        codec=options.codec,
        error_feedback=options.error_feedback or None,
    )
    generator = torch.Generator().manual_seed(100 + rank)  # data of its own
    test = batch(2000, torch.Generator().manual_seed(1))

    for number in range(options.rounds):
        for _ in range(options.every):
            images, labels = batch(64, generator)
            inner.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            diloco.step()  # the last of a round exchanges
        digests = [None] * world
        dist.all_gather_object(digests, digest(model))
        assert len(set(digests)) == 1, digests
        if rank == 0:
            with torch.no_grad():
                right = (model(test[0]).argmax(1) == test[1]).float().mean().item()
            print(f"round {number + 1}: accuracy {right:.3f}, weights {digests[0]}", flush=True)

    if rank == 0 and world > 1:
        values = sum(p.numel() for p in model.parameters())
        # Float32 all-reduced every step: a ring sends 2 (n - 1) / n of the gradient each step.
        plain = 8 * values * (world - 1) // world * options.rounds * options.every
        print(
            f"sent by rank 0: {diloco.sent_bytes} bytes; float32 every step: {plain}, "
            f"{plain / diloco.sent_bytes:.0f} times as many"
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
