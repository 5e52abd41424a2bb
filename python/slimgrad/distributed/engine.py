"""The two-phase exchange of a group, in stages that run beside each other.

An exchange has up to three stages, each a thread that takes exchanges in the order in which they
were asked for, which is the same on every rank:

  spread   code a shard for each peer and send it
  reduce   add up what peers sent for the own shard, in the order of ranks; code the sum, send it
  gather   decode the other shards to where they belong; say that all is well, and hear it

So a frame is on the wire while the next is coded, and one exchange is reduced while the next is
spread. A receiver in front of the last two takes headers, checks them and lets Gloo receive what
they announce (its requests cannot be asked whether they are complete, only waited for).

Whoever fails tells all others why, in the place of its next header, and every exchange of the group
fails from then on with the same reason.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from .._library import ops
from ..coding import PayloadError
from .buffers import Buffers
from .codec import Codec
from .messages import DONE, FRAME, STOPPED, ExchangeError, Header, Link, Stopped
from .pieces import Frame, decode_frame, encode_frame, frame_bound

SPREAD, GATHER, FINISH = range(3)
# How many frames a receiver is ahead of who decodes them.
_AHEAD = 8
# How long a rank that stops waits for its last words to be heard.
_LAST_WORDS = timedelta(seconds=2)


@dataclass(eq=False)
class Exchange:
    """What a rank sends, receives and sums. Frames are lists of pieces."""

    op: str
    codec: Codec
    dtype: torch.dtype
    step: int
    # Coded for each peer, and sums of what peers coded of it.
    outgoing: dict[int, list[Frame]] = field(default_factory=dict)
    own: list[Frame] = field(default_factory=list)
    # Whom a sum comes from, and how it becomes a mean.
    summed_from: list[int] = field(default_factory=list)
    divide_by: float = 1
    # Coded once and sent to all of these; received from these.
    readers: list[int] = field(default_factory=list)
    incoming: dict[int, list[Frame]] = field(default_factory=dict)
    # Where a copy of the own values has to go after they were replaced, if anywhere.
    after: Callable[[], None] | None = None

    number: int = 0
    future: torch.futures.Future = field(default_factory=torch.futures.Future)
    spread_done: threading.Event = field(default_factory=threading.Event)
    reduce_done: threading.Event = field(default_factory=threading.Event)
    sends: list = field(default_factory=list)
    buffers: list = field(default_factory=list)
    sent: list[int] = field(default_factory=list)

    @property
    def sent_bytes(self) -> int:
        return sum(self.sent)

    def seed(self, rank: int, stage: int) -> int:
        seed = self.codec.seed
        for number in (self.step, rank, stage):
            seed = ops.layer_seed(seed, number)
        return seed


class Engine:
    """The stages of one group."""

    def __init__(self, group: dist.ProcessGroup):
        self.group = group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.peers = [rank for rank in range(self.world) if rank != self.rank]
        self.links = [
            {peer: Link(group, peer, stage) for peer in self.peers}
            for stage in (SPREAD, GATHER, FINISH)
        ]
        self.buffers = Buffers()
        self.num_exchanges = 0
        self.sent_bytes = 0
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._running: dict[int, Exchange] = {}
        stages = (
            self._spread,
            self._receive_sums,
            self._reduce,
            self._receive_shards,
            self._gather,
        )
        self._queues = [queue.SimpleQueue() for _ in stages]
        self._sums: queue.Queue = queue.Queue(_AHEAD * max(1, self.world - 1))
        self._shards: queue.Queue = queue.Queue(_AHEAD * max(1, self.world - 1))
        for run, exchanges in zip(stages, self._queues, strict=True):
            threading.Thread(
                target=self._work,
                args=(run, exchanges),
                name=f"slimgrad{run.__name__}",
                daemon=True,
            ).start()

    def submit(self, exchange: Exchange) -> Exchange:
        with self._lock:
            if self.error is not None:
                raise ExchangeError(f"[{exchange.op}] {self._reason()}") from self.error
            exchange.number = self.num_exchanges
            self.num_exchanges += 1
            self._running[exchange.number] = exchange
            for exchanges in self._queues:
                exchanges.put(exchange)
        return exchange

    def close(self) -> None:
        for exchanges in self._queues:
            exchanges.put(None)

    # ---- stages ------------------------------------------------------------------------------

    def _work(self, run: Callable[[Exchange], None], exchanges: queue.SimpleQueue) -> None:
        while (exchange := exchanges.get()) is not None:
            if self.error is not None:
                continue
            try:
                with torch.no_grad():
                    run(exchange)
            except BaseException as error:
                self._fail(exchange, error)
            del exchange

    def _spread(self, exchange: Exchange) -> None:
        seed = exchange.seed(self.rank, SPREAD)
        most = max((len(frames) for frames in exchange.outgoing.values()), default=0)
        for index in range(most):
            # Each rank begins with the one after it, so that not all send to the same.
            for peer in sorted(exchange.outgoing, key=lambda peer: (peer - self.rank) % self.world):
                frames = exchange.outgoing[peer]
                if index < len(frames):
                    coded = self._code(exchange, frames[index], SPREAD, seed)
                    self._send(exchange, SPREAD, peer, index, frames[index], coded)
        exchange.spread_done.set()

    def _reduce(self, exchange: Exchange) -> None:
        seed = exchange.seed(self.rank, GATHER)
        for index, frame in enumerate(exchange.own):
            if exchange.summed_from:
                self._sum(exchange, index, frame)
            if exchange.readers:
                coded = self._code(exchange, frame, GATHER, seed)
                for peer in exchange.readers:
                    self._send(exchange, GATHER, peer, index, frame, coded)
        exchange.reduce_done.set()

    def _gather(self, exchange: Exchange) -> None:
        links = self.links[FINISH]
        finished = {peer: link.receive_header() for peer, link in links.items()}
        self._wait_for(exchange.spread_done)  # before what was to be sent is written over
        for index in range(max((len(f) for f in exchange.incoming.values()), default=0)):
            for peer, frames in exchange.incoming.items():
                if index < len(frames):
                    body = self._body(self._shards, exchange, peer, index)
                    tensors = [piece.values for piece in frames[index]]
                    self._decode(exchange, peer, index, frames[index], body, tensors, add=False)
        self._wait_for(exchange.reduce_done)
        self._finish(exchange, finished)

    def _finish(self, exchange: Exchange, finished: dict) -> None:
        """All ranks have all that they need, or none believes it."""
        header = self._header(exchange, DONE)
        for link in self.links[FINISH].values():
            exchange.sends += link.send_header(header)
        for peer, (data, work) in finished.items():
            self._take_header(exchange, peer, data, work, header, 0)
        for _, work in exchange.sends:
            work.wait()
        for buffer in exchange.buffers:
            self.buffers.give_back(buffer)
        if exchange.after is not None:
            exchange.after()
        with self._lock:
            self._running.pop(exchange.number, None)
            self.sent_bytes += exchange.sent_bytes
        exchange.sends.clear()
        exchange.future.set_result(exchange.sent_bytes)

    # ---- coding ------------------------------------------------------------------------------

    def _code(self, exchange: Exchange, frame: Frame, stage: int, seed: int) -> torch.Tensor:
        """The frame as bytes. What rounding loses goes to the residuals, in units of the sum."""
        buffer = self.buffers.take(frame_bound(frame, exchange.dtype))
        exchange.buffers.append(buffer)
        fed_back = [piece for piece in frame if piece.residual is not None]
        for piece in fed_back:
            if stage == SPREAD:
                piece.values.add_(piece.residual)
            piece.residual.copy_(piece.values)
        replace = stage == GATHER or bool(fed_back)
        size = encode_frame(frame, exchange.codec, buffer, seed, replace)
        for piece in fed_back:
            residual = piece.residual.sub_(piece.values)
            if stage == GATHER:
                residual.mul_(exchange.divide_by)
            # NaN and Inf travel as they are: nothing of them is left to send.
            torch.nan_to_num(residual, nan=0.0, posinf=0.0, neginf=0.0, out=residual)
        return buffer[:size]

    def _sum(self, exchange: Exchange, index: int, frame: Frame) -> None:
        """The sum over ranks, in their order, in float32, becomes the own frame."""
        values = [piece.values for piece in frame]
        for piece in frame:
            if piece.residual is not None:
                piece.values.add_(piece.residual)
        # a + b is b + a: the first two summands may come in either order.
        in_place = exchange.dtype == torch.float32 and self.rank <= 1
        if in_place:
            sums, scratch = values, None
        else:
            scratch = self.buffers.take(sum(map(torch.numel, values)), torch.float32)
            sums, first = [], 0
            for value in values:
                sums.append(scratch[first : first + value.numel()].fill_(-0.0))  # adds nothing
                first += value.numel()
        for rank in range(self.world):
            if rank == self.rank:
                if not in_place:
                    torch._foreach_add_(sums, [value.float() for value in values])
            elif rank in exchange.summed_from:
                body = self._body(self._sums, exchange, rank, index)
                self._decode(exchange, rank, index, frame, body, sums, add=True)
        if exchange.divide_by != 1:
            torch._foreach_div_(sums, float(exchange.divide_by))
        if not in_place:
            torch._foreach_copy_(values, sums)
            self.buffers.give_back(scratch)

    def _decode(self, exchange, peer, index, frame, body, tensors, add) -> None:
        plain = [piece.plain for piece in frame]
        try:
            decode_frame(body, tensors, plain, exchange.codec, exchange.dtype, add)
        except PayloadError as error:
            raise ExchangeError(f"frame {index} from rank {self._name(peer)}: {error}") from error

    # ---- messages ----------------------------------------------------------------------------

    def _header(self, exchange, what, frame=0, num_bytes=0, num_pieces=0, text="") -> Header:
        name, number = (exchange.codec.name, exchange.number) if exchange else ("", 0)
        return Header(what, name, number & 0xFFFFFFFF, frame, num_bytes, num_pieces, text)

    def _send(self, exchange, stage, peer, index, frame, coded) -> None:
        link = self.links[stage][peer]
        header = self._header(exchange, FRAME, index, coded.numel(), len(frame))
        try:
            exchange.sends += link.send_header(header)
            exchange.sends += link.send_frame(coded)
        except RuntimeError as error:
            raise self._lost(peer, error) from error
        exchange.sent.append(coded.numel())

    def _receive_sums(self, exchange: Exchange) -> None:
        expected = [
            (peer, index, frame)
            for index, frame in enumerate(exchange.own)
            for peer in exchange.summed_from
        ]
        self._receive(exchange, SPREAD, expected, self._sums)

    def _receive_shards(self, exchange: Exchange) -> None:
        most = max((len(frames) for frames in exchange.incoming.values()), default=0)
        expected = [
            (peer, index, frames[index])
            for index in range(most)
            for peer, frames in exchange.incoming.items()
            if index < len(frames)
        ]
        self._receive(exchange, GATHER, expected, self._shards)

    def _receive(self, exchange, stage, expected, bodies: queue.Queue) -> None:
        links = self.links[stage]
        headers = [links[peer].receive_header() for peer, _, _ in expected]
        for (peer, index, frame), (data, work) in zip(expected, headers, strict=True):
            wanted = self._header(exchange, FRAME, index, 0, len(frame))
            most = frame_bound(frame, exchange.dtype)
            header = self._take_header(exchange, peer, data, work, wanted, most)
            buffer = self.buffers.take(header.num_bytes)
            body = buffer[: header.num_bytes]
            self._put(
                bodies, (exchange, peer, index, buffer, links[peer].receive_frame(body), body)
            )

    def _take_header(self, exchange, peer, data, work, expected, most_bytes) -> Header:
        try:
            work.wait()
        except RuntimeError as error:
            raise self._lost(peer, error) from error
        try:
            header = Header.from_bytes(data.numpy().tobytes())
            header.check(expected, most_bytes)
        except Stopped:
            raise
        except ExchangeError as error:
            raise ExchangeError(f"rank {self._name(peer)} sent {error}") from None
        return header

    def _put(self, bodies: queue.Queue, body: tuple) -> None:
        while True:
            try:
                return bodies.put(body, timeout=1)
            except queue.Full:
                self._check()

    def _body(self, bodies: queue.Queue, exchange, peer, index) -> torch.Tensor:
        while True:
            try:
                of, sender, frame, buffer, works, body = bodies.get(timeout=1)
                break
            except queue.Empty:
                self._check()
        assert (of, sender, frame) == (exchange, peer, index)
        try:
            for work in works:
                work.wait()
        except RuntimeError as error:
            raise self._lost(peer, error) from error
        exchange.buffers.append(buffer)
        return body

    # ---- faults ------------------------------------------------------------------------------

    def _name(self, peer: int) -> str:
        """The rank in the whole job, which is what users know."""
        return str(dist.get_global_rank(self.group, peer))

    def _lost(self, peer: int, error: BaseException) -> ExchangeError:
        return ExchangeError(f"rank {self._name(peer)} is gone or does not answer: {error}")

    def _check(self) -> None:
        if self.error is not None:
            raise ExchangeError(self._reason())

    def _wait_for(self, event: threading.Event) -> None:
        while not event.wait(timeout=1):
            self._check()

    def _reason(self) -> str:
        return f"an exchange of this group has failed before: {self.error}"

    def _fail(self, exchange: Exchange, error: BaseException) -> None:
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            running, self._running = list(self._running.values()), {}
        text = str(error) if isinstance(error, Stopped) else f"[{exchange.op}] {error}"
        self.error = failure = ExchangeError(text)
        failure.__cause__ = error
        for other in running:
            other.future.set_exception(failure)
        if not isinstance(error, Stopped):  # whoever said so has told all
            self._say_why(text)

    def _say_why(self, text: str) -> None:
        last_words = self._header(None, STOPPED, text=f"rank {dist.get_rank()} stopped: {text}")
        sent = []
        for links in self.links:
            for link in links.values():
                try:
                    sent += link.send_header(last_words)
                except RuntimeError:  # gone
                    continue
        for _, work in sent:
            try:
                work.wait(_LAST_WORDS)
            except RuntimeError:  # gone, or not listening
                continue


_engines: dict[str, Engine] = {}
_engines_lock = threading.Lock()


def engine_of(group: dist.ProcessGroup | None) -> Engine:
    """The engine of a group, made when it is first asked for."""
    group = group if group is not None else dist.group.WORLD
    if group is None:
        raise ValueError(
            "[distributed] expected a process group, got none: call init_process_group"
        )
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError("[distributed] expected a group that this rank belongs to, got another")
    with _engines_lock:
        engine = _engines.get(group.group_name)
        if engine is None or engine.group is not group:
            if engine is not None:
                engine.close()
            engine = _engines[group.group_name] = Engine(group)
        return engine
