"""all_reduce, reduce_scatter, all_gather and broadcast of lists of tensors, coded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from .._support import tensor_with_values
from .codec import Codec, as_codec
from .engine import Engine
from .engines import engine_of
from .exchange import Exchange
from .pieces import frames_between, shard_bounds

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Handle:
    """An exchange under way. ``wait()`` returns when its tensors have their values."""

    def __init__(self, exchanges: list[Exchange]):
        self._exchanges = exchanges

    def wait(self) -> None:
        for exchange in self._exchanges:
            exchange.future.wait()

    def is_completed(self) -> bool:
        return all(exchange.future.done() for exchange in self._exchanges)

    @property
    def sent_bytes(self) -> int:
        """What this rank sent, headers included. Complete when the exchange is."""
        return sum(exchange.sent_bytes for exchange in self._exchanges)

    def _future(self, result) -> torch.futures.Future:
        """One that gets ``result`` when the exchange is complete."""
        every = torch.futures.collect_all([exchange.future for exchange in self._exchanges])

        def finish(done):
            for future in done.value():
                future.value()
            return result

        return every.then(finish)


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
    codec, engine = as_codec(codec, op), engine_of(group, op)
    flats = _flat(tensors, op)
    residuals = _flat_residuals(residuals, flats, codec, op)
    keys = list(range(len(flats)) if keys is None else keys)
    exchanges = []
    for dtype, chosen in _by_dtype(flats).items():
        exchange = _new(engine, op, codec, dtype, step)
        exchange.divide_by = divide_by
        some = [flats[i] for i in chosen]
        some_residuals = None if residuals is None else [residuals[i] for i in chosen]
        ends = shard_bounds([x.numel() for x in some], engine.world, codec.min_elements)
        begins = [(0, 0), *ends[:-1]]
        some_keys = [keys[i] for i in chosen]
        shards = [
            frames_between(some, some_keys, begin, end, codec, some_residuals)
            for begin, end in zip(begins, ends, strict=True)
        ]
        exchange.own = shards[engine.rank]
        for peer in engine.peers:
            exchange.outgoing[peer] = exchange.incoming[peer] = shards[peer]
        exchange.summed_from = exchange.readers = engine.peers
        exchanges.append(exchange)
    return _start(engine, exchanges, async_op)


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
    """``outputs`` become the sum over ranks of ``inputs[r]``, r this rank. ``inputs`` has
    a tensor or a list for every rank; the others' may be written to if the codec prunes or feeds
    back. The own part is summed as it is."""
    op = "reduce_scatter"
    codec, engine = as_codec(codec, op), engine_of(group, op)
    flats = _flat(outputs, op)
    lists = [_flat(part, op) for part in inputs]
    if len(lists) != engine.world:
        raise ValueError(
            f"[{op}] expected an input for each of {engine.world} ranks, got {len(lists)}"
        )
    own = lists[engine.rank]
    if [x.shape for x in own] != [x.shape for x in flats]:
        raise ValueError(
            f"[{op}] expected outputs of the sizes of this rank's inputs, "
            f"{[x.numel() for x in own]}, got {[x.numel() for x in flats]}"
        )
    fed_back = [None] * len(lists)
    if codec.error_feedback:
        if residuals is None or len(residuals) != len(lists):
            raise ValueError(f"[{op}] expected residuals for each rank with error feedback")
        fed_back = [
            _flat_residuals(part, xs, codec, op) for part, xs in zip(residuals, lists, strict=True)
        ]
    for to, value in zip(flats, own, strict=True):
        if to.data_ptr() != value.data_ptr():
            to.copy_(value)
    keys = list(range(len(flats)) if keys is None else keys)
    exchanges = []
    for dtype, chosen in _by_dtype(flats).items():
        exchange = _new(engine, op, codec, dtype, step)
        exchange.divide_by = divide_by

        def frames(tensors, of_rank=None, chosen=chosen):
            some_residuals = None if of_rank is None else [of_rank[i] for i in chosen]
            return _all_frames(
                [tensors[i] for i in chosen], [keys[i] for i in chosen], codec, some_residuals
            )

        exchange.own = frames(flats)
        for peer in engine.peers:
            exchange.outgoing[peer] = frames(lists[peer], fed_back[peer])
        exchange.summed_from = engine.peers
        exchanges.append(exchange)
    return _start(engine, exchanges, async_op)


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
    codec, engine = as_codec(codec, op), engine_of(group, op)
    lists = [_flat(part, op) for part in outputs]
    if len(lists) != engine.world:
        raise ValueError(
            f"[{op}] expected an output for each of {engine.world} ranks, got {len(lists)}"
        )
    own, flats = lists[engine.rank], _flat(tensors, op)
    if [x.shape for x in own] != [x.shape for x in flats]:
        raise ValueError(
            f"[{op}] expected this rank's outputs to have the sizes of its tensors, "
            f"{[x.numel() for x in flats]}, got {[x.numel() for x in own]}"
        )
    for to, value in zip(own, flats, strict=True):
        if to.data_ptr() != value.data_ptr():
            to.copy_(value)
    exchanges = []
    for dtype in sorted({x.dtype for part in lists for x in part}, key=_DTYPES.index):
        exchange = _new(engine, op, codec, dtype, step)
        frames = [
            _all_frames(
                [x for x in part if x.dtype == dtype],
                [key for key, x in enumerate(part) if x.dtype == dtype],
                codec,
            )
            for part in lists
        ]
        exchange.own = frames[engine.rank]
        exchange.incoming = {peer: frames[peer] for peer in engine.peers}
        exchange.readers = engine.peers
        exchanges.append(exchange)
    return _start(engine, exchanges, async_op)


def broadcast(
    tensors: torch.Tensor | Sequence[torch.Tensor],
    codec: Codec | str,
    src: int = 0,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    step: int | None = None,
) -> Handle | None:
    """Every rank's tensors become what rank ``src``'s are when decoded, also on ``src`` itself.
    ``src`` is a rank of the whole job, as torch's."""
    op = "broadcast"
    codec, engine = as_codec(codec, op), engine_of(group, op)
    flats = _flat(tensors, op)
    source = dist.get_group_rank(engine.group, src)
    exchanges = []
    for dtype, chosen in _by_dtype(flats).items():
        exchange = _new(engine, op, codec, dtype, step)
        frames = _all_frames([flats[i] for i in chosen], chosen, codec)
        if engine.rank == source:
            exchange.own, exchange.readers = frames, engine.peers
        else:
            exchange.incoming = {source: frames}
        exchanges.append(exchange)
    return _start(engine, exchanges, async_op)


def _new(engine: Engine, op: str, codec: Codec, dtype: torch.dtype, step: int | None) -> Exchange:
    draws = ("call", engine.num_exchanges) if step is None else ("step", step)
    return Exchange(op, codec, dtype, (engine.group.group_name, *draws))


def _start(engine: Engine, exchanges: list[Exchange], async_op: bool) -> Handle | None:
    if engine.world == 1:
        for exchange in exchanges:
            _alone(exchange)
    else:
        for exchange in exchanges:
            engine.submit(exchange)
    handle = Handle(exchanges)
    if async_op:
        return handle
    handle.wait()
    return None


def _alone(exchange: Exchange) -> None:
    """A sum over one rank: nothing is sent, so nothing is lost."""
    if exchange.divide_by != 1:
        for frame in exchange.own:
            torch._foreach_div_([piece.values for piece in frame], float(exchange.divide_by))
    exchange.future.set_result(0)


def _all_frames(tensors, keys, codec, residuals=None):
    return frames_between(tensors, keys, (0, 0), (len(tensors), 0), codec, residuals)


def _by_dtype(flats: list[torch.Tensor]) -> dict[torch.dtype, list[int]]:
    """The indices of tensors that are not empty, by their type, in an order of its own."""
    chosen = {
        dtype: [i for i, x in enumerate(flats) if x.dtype == dtype and x.numel() > 0]
        for dtype in _DTYPES
    }
    return {dtype: indices for dtype, indices in chosen.items() if indices}


def _flat(tensors, op: str) -> list[torch.Tensor]:
    """Flat views. What is exchanged is written in place, so nothing may be copied here."""
    if isinstance(tensors, torch.Tensor):
        tensors = [tensors]
    flats = []
    for x in tensors:
        x = tensor_with_values(x, op).detach()
        if x.dtype not in _DTYPES:
            raise ValueError(
                f"[{op}] expected tensors of type float32, bfloat16 or float16, got {x.dtype}"
            )
        if x.device.type != "cpu":
            raise ValueError(f"[{op}] expected tensors on the CPU, got one on {x.device}")
        if not x.is_contiguous():
            x = _in_memory_order(x, op)
        flats.append(x.view(-1))
    return flats


def _in_memory_order(x: torch.Tensor, op: str) -> torch.Tensor:
    """A dense tensor with its dimensions in the order of its strides: channels-last gradients."""
    order = sorted(range(x.dim()), key=lambda i: (x.stride(i), x.size(i)), reverse=True)
    permuted = x.permute(order)
    if not permuted.is_contiguous():
        raise ValueError(f"[{op}] expected tensors without gaps, got strides of {x.stride()}")
    return permuted


def _flat_residuals(residuals, flats, codec: Codec, op: str):
    if not codec.error_feedback:
        return None
    if residuals is None or len(residuals) != len(flats):
        raise ValueError(
            f"[{op}] expected a residual for each of {len(flats)} tensors with error feedback, got "
            f"{'none' if residuals is None else len(residuals)}"
        )
    flat = []
    for residual, x in zip(residuals, flats, strict=True):
        if residual is not None and (
            residual.dtype != torch.float32
            or residual.numel() != x.numel()
            or not residual.is_contiguous()
        ):
            raise ValueError(
                f"[{op}] expected residuals to be contiguous, float32 and of the tensors' sizes, "
                f"got {residual.dtype} of {residual.numel()} for {x.numel()} values"
            )
        flat.append(None if residual is None else residual.view(-1))
    return flat
