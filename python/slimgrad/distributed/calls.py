"""Calls of the library's classes: their groups and their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ..tensors.coding import checked


class ExchangeError(RuntimeError):
    """An exchange that did not come to its end, on any rank: a rank is gone, failed, or sent
    something else than was agreed."""


class BoundaryError(RuntimeError):
    """The process on the other side is gone, silent, or refused what it was sent."""


def call(method: Callable, *arguments: Any) -> Any:
    """With the errors of this package, which the library marks by their names."""
    try:
        return checked(method, *arguments)
    except ValueError:
        raise
    except RuntimeError as error:
        text = str(error).partition("\nException raised from ")[0]
        for kind in (ExchangeError, BoundaryError):
            if text.startswith(f"{kind.__name__}: "):
                raise kind(text.partition(": ")[2]) from None
        raise


def group_of(group: dist.ProcessGroup | None, op: str) -> dist.ProcessGroup:
    group = group if group is not None else dist.group.WORLD
    if group is None:
        raise ValueError(f"[{op}] expected init_process_group to have been called")
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError(f"[{op}] expected a group that this rank belongs to, got another")
    return group
