"""broadcast of weights as a delta to what every rank has."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ..tensors.coding import PayloadError
from ..tensors.deltas import apply_delta, delta
from .calls import group_of


def _agreed(flag: bool, device: torch.device, group: dist.ProcessGroup) -> bool:
    """Whether the flag is set on any rank."""
    word = torch.tensor([int(flag)], device=device)
    dist.all_reduce(word, dist.ReduceOp.MAX, group=group)
    return bool(word.item())


def broadcast_delta(
    tensors: list[torch.Tensor],
    base: Sequence[torch.Tensor] | None,
    src: int,
    group: dist.ProcessGroup | None,
) -> None:
    """``tensors`` of all ranks become ``src``'s, and so does ``base``. Two rounds: the payload, and
    whether some rank had another base, in which case the values follow as they are."""
    group = group_of(group, "broadcast")
    has_base = base is not None
    base = tensors if base is None else list(base)
    device = tensors[0].device if tensors else torch.device("cpu")
    payload, error = torch.empty(0, dtype=torch.uint8), None
    if dist.get_rank() == src:
        try:
            if not has_base or len(base) != len(tensors):
                raise ValueError(
                    f"[broadcast] expected base to have the {len(tensors)} tensors that the other "
                    f"ranks have, got {len(base) if has_base else 'none'}"
                )
            payload = delta(_named(base), _named(tensors))
        except (TypeError, ValueError) as problem:  # The others wait for a size.
            error = problem
    size = torch.tensor([-1 if error else payload.numel()], device=device)
    dist.broadcast(size, src, group=group)
    if error:
        raise error
    if size.item() < 0:
        raise RuntimeError(f"[broadcast] expected a delta from rank {src}, which could not make it")
    if dist.get_rank() != src:
        payload = torch.empty(int(size.item()), dtype=torch.uint8)
    payload = payload.to(device)
    dist.broadcast(payload, src, group=group)
    missed = False
    if dist.get_rank() != src:
        try:
            results = apply_delta(_named(base), payload)
            missed = len(results) != len(tensors)
        except PayloadError:
            missed = True
    if _agreed(missed, device, group):
        for tensor in tensors:
            dist.broadcast(tensor, src, group=group)
    elif dist.get_rank() != src:
        with torch.no_grad():
            for tensor, new in zip(tensors, results.values(), strict=True):
                tensor.copy_(new)
    with torch.no_grad():
        for old, tensor in zip(base, tensors, strict=True):
            if old is not tensor:
                old.copy_(tensor)


def _named(tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {str(i): x.detach() for i, x in enumerate(tensors)}
