"""Seldom instead of small, and small as well: ranks train alone for some steps, then exchange coded
differences of weights (DiLoCo; local SGD with an outer optimizer).

    torchrun --nproc-per-node 2 examples/diloco.py --inner-steps 20 --codec uniform4

Every rank starts a round from the same weights, takes --inner-steps steps with an optimizer of its
own, and hands in how far it went. The mean of that, coded, is the gradient of an outer optimizer:
SGD with Nesterov's momentum. The exchange ends with the same bits on every rank, so the outer step
needs no further word between them.
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


class Outer:
    """The weights that all ranks share, and the optimizer that moves them."""

    def __init__(self, model: nn.Module, codec: sg.distributed.Codec, rate: float, momentum: float):
        self.model, self.codec = model, codec
        self.shared = [p.detach().clone() for p in model.parameters()]
        self.optimizer = torch.optim.SGD(self.shared, lr=rate, momentum=momentum, nesterov=True)
        # What rounding lost, for the next round, if the codec feeds it back.
        feeds_back = codec.error_feedback
        self.residuals = [torch.zeros_like(p) for p in self.shared] if feeds_back else None
        self.round = self.sent_bytes = 0

    def step(self) -> None:
        """REQUIRES: every rank calls it. Afterwards the model has the shared weights again."""
        with torch.no_grad():
            moved = [
                old - new for old, new in zip(self.shared, self.model.parameters(), strict=True)
            ]
        handle = sg.distributed.all_reduce(
            moved,
            self.codec,
            async_op=True,
            step=self.round,
            residuals=self.residuals,
            divide_by=dist.get_world_size(),
        )
        handle.wait()
        for parameter, gradient in zip(self.shared, moved, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        with torch.no_grad():
            for parameter, shared in zip(self.model.parameters(), self.shared, strict=True):
                parameter.copy_(shared)
        self.round += 1
        self.sent_bytes += handle.sent_bytes


def digest(model: nn.Module) -> str:
    values = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return hashlib.sha256(values.numpy().tobytes()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--inner-steps", type=int, default=20)
    parser.add_argument("--codec", default="uniform4", help="any of slimgrad.distributed.CODECS")
    parser.add_argument("--error-feedback", action="store_true")
    parser.add_argument("--outer-rate", type=float, default=0.7)
    parser.add_argument("--outer-momentum", type=float, default=0.6)
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    model = network(options.width)
    codec = sg.distributed.Codec.parse(options.codec, error_feedback=options.error_feedback)
    outer = Outer(model, codec, options.outer_rate, options.outer_momentum)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(100 + rank)  # data of its own
    test = batch(2000, torch.Generator().manual_seed(1))

    for number in range(options.rounds):
        for _ in range(options.inner_steps):
            images, labels = batch(64, generator)
            inner.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            inner.step()
        outer.step()
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
        plain = 8 * values * (world - 1) // world * options.rounds * options.inner_steps
        print(
            f"sent by rank 0: {outer.sent_bytes} bytes; float32 every step: {plain}, "
            f"{plain / outer.sent_bytes:.0f} times as many"
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
