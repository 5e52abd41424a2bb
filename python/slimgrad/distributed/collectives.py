"""all_reduce, reduce_scatter, all_gather and broadcast of lists of tensors, coded. The library does
all of it (<slimgrad/exchange.h>), in threads of its own, without Python's lock."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .._library import classes
from .._support import tensor_with_values
from .calls import call, group_of
from .codec import Codec, as_codec
from .weights import broadcast_delta

SIGNALS = 0.2  # seconds between looks for Ctrl-C while waiting

# As long as their groups: they count exchanges and keep buffers.
_exchanges: weakref.WeakKeyDictionary[dist.ProcessGroup, Any] = weakref.WeakKeyDictionary()


def exchange_of(group: dist.ProcessGroup | None, op: str) -> Any:
    """The exchange of a group, made when it is first asked for."""
    group = group_of(group, op)
    exchange = _exchanges.get(group)
    if exchange is None:
        ranks = dist.get_process_group_ranks(group)
        exchange = _exchanges[group] = call(classes.Exchange, group.group_name, ranks)
    return exchange


class Handle:
    """An exchange under way. ``wait()`` returns when its tensors have their values."""

    def __init__(self, pending: Any):
        self._pending = pending

    def wait(self) -> None:
        while not call(self._pending.wait_for, SIGNALS):
            pass

    def is_completed(self) -> bool:
        return self._pending.is_complete()

    @property
    def sent_bytes(self) -> int:
        """What this rank sent, headers included. Complete when the exchange is."""
        return self._pending.sent_bytes()


def _start(async_op: bool, method: Callable, *arguments: Any) -> Handle | None:
    handle = Handle(call(method, *arguments))
    if async_op:
        return handle
    handle.wait()
    return None


def _tensors(tensors: torch.Tensor | Sequence[torch.Tensor], op: str) -> list[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        tensors = [tensors]
    return [tensor_with_values(x, op) for x in tensors]


def _settings(codec: Codec | str, op: str) -> dict:
    return as_codec(codec, op)._library_settings()


def _step(step: int | None, op: str) -> int | None:
    if step is not None and (isinstance(step, bool) or not isinstance(step, int)):
        raise ValueError(f"[{op}] expected step to be a whole number, got {step!r}")
    return step


def all_reduce(
    tensors: torch.Tensor | Sequence[torch.Tensor],
    codec: Codec | str,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    step: int | None = None,
    residuals: Sequence[torch.Tensor | None] | None = None,
    divide_by: float = 1,
    keys: Sequence[int] | None = None,
) -> Handle | None:
    """The sum over ranks, in place, in every tensor; bit-identical on all ranks.

    Every rank sums one shard of the tensors, in float32 and in the order of ranks, and sends it to
    all, so that what a rank sends does not grow with the number of ranks. Under "lossless" that is
    the float32 sum to the bit. ``step`` numbers the random draws, and ``keys`` name tensors for
    them: calls with equal steps need keys of their own. Without ``step`` calls are counted.
    ``residuals``, for a codec with error feedback: a float32 tensor for each tensor, of its shape,
    zero at first. The sum is divided by ``divide_by``.
    """
    op = "all_reduce"
    return _start(
        async_op,
        exchange_of(group, op).all_reduce,
        _tensors(tensors, op),
        _settings(codec, op),
        _step(step, op),
        float(divide_by),
        list(keys or []),
        list(residuals or []),
    )


def reduce_scatter(
    outputs: torch.Tensor | Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor | Sequence[torch.Tensor]],
    codec: Codec | str,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    step: int | None = None,
    divide_by: float = 1,
    residuals: Sequence[Sequence[torch.Tensor | None]] | None = None,
    keys: Sequence[int] | None = None,
) -> Handle | None:
    """``outputs`` become the sum over ranks of ``inputs[r]``, r the rank that asks. ``inputs`` has
    a tensor or a list for every rank; the others' may be written to if the codec prunes or feeds
    back. The own part is summed as it is."""
    op = "reduce_scatter"
    return _start(
        async_op,
        exchange_of(group, op).reduce_scatter,
        _tensors(outputs, op),
        [_tensors(part, op) for part in inputs],
        _settings(codec, op),
        _step(step, op),
        float(divide_by),
        list(keys or []),
        [list(part) for part in residuals or []],
    )


def all_gather(
    outputs: Sequence[torch.Tensor | Sequence[torch.Tensor]],
    tensors: torch.Tensor | Sequence[torch.Tensor],
    codec: Codec | str,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    step: int | None = None,
) -> Handle | None:
    """``outputs[r]`` becomes what rank r's ``tensors`` are when decoded, on every rank alike, also
    on r itself. Sizes may differ from rank to rank, as ``outputs`` says."""
    op = "all_gather"
    return _start(
        async_op,
        exchange_of(group, op).all_gather,
        [_tensors(part, op) for part in outputs],
        _tensors(tensors, op),
        _settings(codec, op),
        _step(step, op),
    )


def broadcast(
    tensors: torch.Tensor | Sequence[torch.Tensor],
    codec: Codec | str,
    src: int = 0,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    step: int | None = None,
    base: torch.Tensor | Sequence[torch.Tensor] | None = None,
) -> Handle | None:
    """Every rank's tensors become what rank ``src``'s are when decoded, also on ``src`` itself.
    ``src`` is a rank of the whole job, as torch's.

    The codec "delta" sends what changed since ``base``, the tensors that every rank has, without
    loss: weights after a step, of any type. ``base`` becomes the tensors, for the next call;
    receivers may leave it out if it is their ``tensors``. If a rank has another base, because it
    joined late, all get the tensors as they are. If a rank fails, the others raise
    ``ExchangeError`` and nothing has changed. It takes no ``async_op``."""
    op = "broadcast"
    if codec == "delta":
        values = _tensors(tensors, op)
        if async_op:
            raise ValueError("[broadcast] expected no async_op with the codec delta, got one")
        broadcast_delta(values, None if base is None else _tensors(base, op), src, group)
        return None
    if base is not None:
        raise ValueError(f"[broadcast] expected base with the codec delta only, got {codec}")
    source = dist.get_group_rank(group_of(group, op), src)
    return _start(
        async_op,
        exchange_of(group, op).broadcast,
        _tensors(tensors, op),
        _settings(codec, op),
        source,
        _step(step, op),
    )
