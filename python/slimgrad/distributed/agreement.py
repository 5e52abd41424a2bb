"""Settings that all ranks must share, compared before anything depends on them."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable

import torch
import torch.distributed as dist

# A description is a few hundred bytes; more than this is not one.
_MOST_BYTES = 1 << 20


def _device_of(group: dist.ProcessGroup) -> torch.device:
    """Where small tensors travel: on the host, unless the group is for a device alone (NCCL)."""
    types = [device.type for device in group._device_types]
    return torch.device("cpu" if "cpu" in types or not types else types[0])


def all_descriptions(description: dict, group: dist.ProcessGroup) -> list[dict]:
    """What every rank says, by rank: JSON, so that bytes of others are only data."""
    data = json.dumps(description, sort_keys=True).encode()
    world = dist.get_world_size(group)
    device = _device_of(group)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([len(data)], device=device), group=group)
    longest = max(int(size) for size in sizes)
    if longest > _MOST_BYTES:
        raise ValueError(f"[register] expected settings of at most 1 MiB, got {longest} bytes")
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    padded = padded.to(device)
    everyone = [torch.zeros_like(padded) for _ in range(world)]
    dist.all_gather(everyone, padded, group=group)
    return [
        json.loads(bytes(data.cpu().numpy())[: int(size)])
        for data, size in zip(everyone, sizes, strict=True)
    ]


def check_agreement(
    describe: Callable[[], dict], group: dist.ProcessGroup, op: str = "register"
) -> None:
    """Raises on every rank where the descriptions of two ranks differ, a ValueError that shows
    both; or where one rank cannot describe its settings: its own error there, and a ValueError with
    that error's text on the others, which would wait for it otherwise."""
    error: Exception | None = None
    try:
        description = describe()
    except Exception as raised:
        error = raised
        description = {"error": f"{type(raised).__name__}: {raised}"[: _MOST_BYTES // 8]}
    described = all_descriptions(description, group)
    if error is not None:
        raise error
    for rank, other in enumerate(described):
        if "error" in other:
            failed = dist.get_global_rank(group, rank)
            raise ValueError(f"[{op}] failed on rank {failed}: {other['error']}")
    for rank, other in enumerate(described):
        if other == described[0]:
            continue
        names = [dist.get_global_rank(group, r) for r in (0, rank)]
        differing = [
            f"{key}: {described[0].get(key)!r} on rank {names[0]}, {other.get(key)!r} on rank "
            f"{names[1]}"
            for key in sorted({*described[0], *other})
            if described[0].get(key) != other.get(key)
        ]
        got = "; ".join(differing)
        raise ValueError(f"[{op}] expected the same settings on all ranks, got {got}")


def fingerprint(lengths: list[int]) -> int:
    """A checksum of a model's sizes, which is compared instead of the sizes."""
    return zlib.crc32(struct.pack(f"<{len(lengths)}q", *lengths))
