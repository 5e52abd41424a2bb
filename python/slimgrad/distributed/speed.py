"""The cost of coding gradients on this machine: seconds and bytes per value, from a sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from .codec import Codec
from .cost import Speed

SAMPLE = 1 << 23  # values in all, that a measurement codes: more than caches hold
_LEAST = 1 << 16  # of a tensor, so that what every tensor costs does not weigh too much
_SECONDS = 0.15  # of repetitions, of which the quickest counts
SHAPE = 0.7  # of generated gradients: between a Laplace law and the heaviest tails of real ones


def sample_sizes(sizes: Sequence[int]) -> list[int]:
    """How many values of every tensor to look at: its share of the sample, but not too few; of very
    many tensors only some are looked at."""
    part = min(1.0, SAMPLE / max(1, sum(sizes)))
    wanted = [min(size, max(_LEAST, round(part * size))) for size in sizes]
    every = max(1, sum(wanted) // (2 * SAMPLE))
    return [size if i % every == 0 else 0 for i, size in enumerate(wanted)]


def generated_gradients(sizes: Sequence[int]) -> list[torch.Tensor]:
    """Values of a generalized normal law, always the same."""
    generator = torch.Generator().manual_seed(0)

    def one(size: int) -> torch.Tensor:
        gamma = torch._standard_gamma(torch.full((size,), 1 / SHAPE), generator=generator)
        sign = torch.randint(2, (size,), generator=generator).mul_(2).sub_(1)
        return gamma.pow_(1 / SHAPE).mul_(1e-4).mul_(sign)

    return [one(size) for size in sizes]


def quickest(run: Callable[[], object], before_each: Callable[[], object] = lambda: None) -> float:
    """Seconds of the quickest of several runs, after one that warms up."""
    before_each()
    run()
    best, end = float("inf"), time.perf_counter() + _SECONDS
    while True:
        before_each()
        start = time.perf_counter()
        run()
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return best


def cast_seconds(tensors: Sequence[torch.Tensor]) -> float:
    """A value to float16 and back, into memory that is there."""
    values = torch.cat([tensor.flatten() for tensor in tensors]).float()
    half = torch.empty_like(values, dtype=torch.float16)
    return quickest(lambda: values.copy_(half.copy_(values))) / values.numel()


def coded_speed(codec: Codec, tensors: Sequence[torch.Tensor]) -> Speed:
    """By the frames in which an exchange codes: bytes, encoding, decoding, decoding to a sum."""
    work = [tensor.clone() for tensor in tensors]
    held = codec._held()
    frames = held.frames(work)
    rooms = [torch.empty(held.frame_bound(frame), dtype=torch.uint8) for frame in frames]
    values = sum(tensor.numel() for tensor in work)
    payloads: list[torch.Tensor] = []

    def restore() -> None:  # coding may write to what it codes: pruning does
        for here, there in zip(work, tensors, strict=True):
            here.copy_(there)

    def encode() -> None:
        payloads[:] = [
            held.encode_frame(frame, list(range(len(frame))), 0, False, room)
            for frame, room in zip(frames, rooms, strict=True)
        ]

    def decode(add: bool) -> None:
        for frame, payload in zip(frames, payloads, strict=True):
            held.decode_frame(payload, frame, frame, add)

    encoding = quickest(encode, restore)
    num_bytes = sum(payload.numel() for payload in payloads)
    decoding = quickest(lambda: decode(False))
    adding = quickest(lambda: decode(True))
    seconds = (encoding / values, adding / values, decoding / values)
    return Speed(num_bytes / values, *seconds, to_all=held.sends_to_all())
