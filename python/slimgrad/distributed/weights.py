"""broadcast of weights as a delta to what every rank has."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ..tensors.coding import PayloadError
from ..tensors.deltas import apply_delta, delta
from .calls import ExchangeError, group_of

# What became of a payload on a rank; the worst one counts.
_TAKEN, _OTHER_BASE, _FAILED = range(3)


def _worst(state: int, device: torch.device, group: dist.ProcessGroup) -> int:
    word = torch.tensor([state], device=device)
    dist.all_reduce(word, dist.ReduceOp.MAX, group=group)
    return int(word.item())


def _sent(
    payload: torch.Tensor, src: int, device: torch.device, group: dist.ProcessGroup
) -> torch.Tensor:
    """That of ``src``, on every rank."""
    size = torch.tensor([payload.numel()], device=device)
    dist.broadcast(size, src, group=group)
    if dist.get_rank() != src:
        payload = torch.empty(int(size.item()), dtype=torch.uint8)
    payload = payload.to(device)
    dist.broadcast(payload, src, group=group)
    return payload


def _check_alike(what: str, found: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
    if len(found) != len(tensors):
        raise ValueError(
            f"[broadcast] expected {what} to have the {len(tensors)} tensors that this rank has, "
            f"got {len(found)}"
        )
    for i, (x, y) in enumerate(zip(found, tensors, strict=True)):
        if (x.dtype, x.shape) != (y.dtype, y.shape):
            raise ValueError(
                f"[broadcast] expected tensor {i} of {what} to be {y.dtype} {tuple(y.shape)}, got "
                f"{x.dtype} {tuple(x.shape)}"
            )


def broadcast_delta(
    tensors: list[torch.Tensor],
    base: Sequence[torch.Tensor] | None,
    src: int,
    group: dist.ProcessGroup | None,
) -> None:
    """``tensors`` of all ranks become ``src``'s, and so does ``base``. Two rounds: the payload, and
    what became of it; if some rank had another base, again with the values as they are. Nothing
    has changed on any rank if one fails."""
    group = group_of(group, "broadcast")
    is_source = dist.get_rank() == src
    device = tensors[0].device if tensors else torch.device("cpu")
    base = tensors if base is None and not is_source else list(base or [])
    error = None
    for known in (base, []):
        payload, results, state = torch.empty(0, dtype=torch.uint8), tensors, _TAKEN
        try:
            _check_alike("base", base, tensors)
            if is_source:
                payload = delta(_named(known), _named(tensors))
        except Exception as problem:  # The others wait for a payload.
            error = problem
        payload = _sent(payload, src, device, group)
        try:
            if not is_source and error is None:
                results = list(apply_delta(_named(known), payload).values())
                _check_alike(f"rank {src}", results, tensors)
        except PayloadError:
            state = _OTHER_BASE
        except Exception as problem:  # The others wait for this rank's word.
            error = problem
        state = _worst(state if error is None else _FAILED, device, group)
        if state != _OTHER_BASE:
            break
    if error is not None:
        raise error
    if state != _TAKEN:
        raise ExchangeError("[broadcast] a rank could not make or apply the delta; it says why")
    with torch.no_grad():
        for old, tensor, new in zip(base, tensors, results, strict=True):
            if tensor is not new:
                tensor.copy_(new)
            if old is not tensor:
                old.copy_(tensor)


def _named(tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {str(i): x.detach() for i, x in enumerate(tensors)}
