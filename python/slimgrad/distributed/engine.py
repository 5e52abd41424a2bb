"""The two-phase exchange of a group, in stages that run beside each other.

An exchange has up to three stages, each a thread that takes exchanges in the order in which they
were asked for, which is the same on every rank:

  spread   code a shard for each peer and send it
  reduce   add up what peers sent for the own shard, in the order of ranks; code the sum, send it
  gather   decode the other shards into the tensors; confirm to all ranks, wait for their messages

So a frame is on the wire while the next is coded, and one exchange is reduced while the next is
spread. For each stage that receives, a thread posts receives ahead of time, for this exchange
and the next (messages.py has the reason).

A rank that fails sends the reason to all others in place of its next header, and every exchange of
the group fails from then on with the same reason.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from ..tensors.coding import PayloadError
from .buffers import Buffers
from .exchange import FINISH, GATHER, SPREAD, Exchange
from .last_words import say_to_all
from .messages import (
    DONE,
    FRAME,
    HEADER_BYTES,
    STOPPED,
    ExchangeError,
    Header,
    Link,
    Lost,
    Stopped,
    header_alone,
    read_header,
    write_header,
)
from .pieces import Frame, decode_frame, encode_frame, frame_bound

# Number of frames for which receives are posted ahead, for each peer.
_AHEAD = 16
# Seconds that a failed rank waits until its reason is received; that a rank whose peer is gone
# waits for a reason from the others; and that a rank waits when it forwards a reason.
_LAST_WORDS, _FIRST_WORDS, _RELAY_WORDS = 5.0, 1.5, 1.0


class Engine:
    """The stages of one group."""

    def __init__(self, group: dist.ProcessGroup):
        _check_backend(group)
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
        self._errors: list[BaseException] = []
        self._news = threading.Condition(self._lock)
        receivers = (self._ask_for_sums, self._ask_for_shards)
        stages = (self._spread, self._reduce, self._gather, *receivers)
        self._queues: list[queue.SimpleQueue] = [queue.SimpleQueue() for _ in stages]
        self._sums: queue.Queue = queue.Queue(_AHEAD * max(1, self.world - 1))
        self._shards: queue.Queue = queue.Queue(_AHEAD * max(1, self.world - 1))
        self._threads = []
        for run, exchanges in zip(stages, self._queues, strict=True):
            name = f"slimgrad{run.__name__}"
            thread = threading.Thread(
                target=self._work, args=(run, exchanges), name=name, daemon=True
            )
            self._threads.append(thread)
            thread.start()

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

    def close(self, seconds: float = 0.0) -> None:
        """Ends the threads after the exchanges that were started. Waits for them at most
        ``seconds``: an exchange may wait for a rank that is gone."""
        for exchanges in self._queues:
            exchanges.put(None)
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

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
        # Each rank begins with the one after it, so that not all send to the same.
        peers = sorted(exchange.outgoing, key=lambda peer: (peer - self.rank) % self.world)
        for index in range(_most_frames(exchange.outgoing)):
            for peer in peers:
                frames = exchange.outgoing[peer]
                if index < len(frames):
                    seed = exchange.seed(dist.get_rank(), SPREAD, peer)
                    message = self._code(exchange, index, frames[index], SPREAD, seed)
                    self._send(exchange, peer, self.links[SPREAD][peer], message)
        exchange.spread_done.set()

    def _reduce(self, exchange: Exchange) -> None:
        seed = exchange.seed(dist.get_rank(), GATHER, -1)
        for index, frame in enumerate(exchange.own):
            if exchange.summed_from:
                self._sum(exchange, index, frame)
            if exchange.readers:
                message = self._code(exchange, index, frame, GATHER, seed)
                for peer in exchange.readers:
                    self._send(exchange, peer, self.links[GATHER][peer], message)
        exchange.reduce_done.set()

    def _gather(self, exchange: Exchange) -> None:
        links = self.links[FINISH]
        finished = {peer: self._ask(link, 0) for peer, link in links.items()}
        self._wait_for(exchange.spread_done)  # before what was to be sent is written over
        for index in range(_most_frames(exchange.incoming)):
            for peer, frames in exchange.incoming.items():
                if index < len(frames):
                    tensors = [piece.values for piece in frames[index]]
                    self._decode(exchange, peer, index, frames[index], tensors, add=False)
        self._wait_for(exchange.reduce_done)
        self._finish(exchange, finished)

    def _finish(self, exchange: Exchange, finished: dict) -> None:
        """Completes the exchange only when every rank has confirmed that it has all frames."""
        header = self._header(exchange, DONE)
        for peer, link in self.links[FINISH].items():
            self._send(exchange, peer, link, header_alone(header))
        for peer, (message, work) in finished.items():
            self._take(peer, message, work, header, 0)
            self.buffers.give_back(message._base)
        for _, work in exchange.sends:
            with contextlib.suppress(RuntimeError):  # to one that is gone, with all it needed
                work.wait()
        for buffer in exchange.buffers:
            self.buffers.give_back(buffer)
        with self._lock:
            self._running.pop(exchange.number, None)
            self.sent_bytes += exchange.sent_bytes
        exchange.sends.clear()
        exchange.future.set_result(exchange.sent_bytes)

    # ---- coding ------------------------------------------------------------------------------

    def _code(self, exchange, index: int, frame: Frame, stage: int, seed: int) -> torch.Tensor:
        """The frame as a message. What rounding loses goes to residuals, in units of the sum."""
        buffer = self.buffers.take(HEADER_BYTES + frame_bound(frame, exchange.dtype))
        exchange.buffers.append(buffer)
        fed_back = [(p.values, p.residual) for p in frame if p.residual is not None]
        for values, residual in fed_back:
            if stage == SPREAD:
                values.add_(residual)
            residual.copy_(values)
        replace = stage == GATHER or bool(fed_back)
        size = encode_frame(frame, exchange.codec, buffer[HEADER_BYTES:], seed, replace)
        for values, residual in fed_back:
            residual.sub_(values)
            if stage == GATHER:
                residual.mul_(exchange.divide_by)
            # NaN and Inf travel as they are: nothing of them is left to send.
            torch.nan_to_num(residual, nan=0.0, posinf=0.0, neginf=0.0, out=residual)
        header = self._header(exchange, FRAME, index, size, len(frame))
        return write_header(header, buffer[: HEADER_BYTES + size])

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
                self._decode(exchange, rank, index, frame, sums, add=True)
        if exchange.divide_by != 1:
            torch._foreach_div_(sums, float(exchange.divide_by))
        if scratch is not None:
            torch._foreach_copy_(values, sums)
            self.buffers.give_back(scratch)

    def _decode(
        self, exchange: Exchange, peer: int, index: int, frame: Frame, tensors, add
    ) -> None:
        """The next message of a peer, into tensors or added to them."""
        message, work = self._asked_for(self._sums if add else self._shards, exchange, peer, index)
        expected = self._header(exchange, FRAME, index, 0, len(frame))
        header = self._take(peer, message, work, expected, message.numel() - HEADER_BYTES)
        plain = [piece.plain for piece in frame]
        body = message[HEADER_BYTES : HEADER_BYTES + header.num_bytes]
        try:
            decode_frame(body, tensors, plain, exchange.codec, exchange.dtype, add)
        except PayloadError as error:
            raise ExchangeError(f"frame {index} from rank {self._name(peer)}: {error}") from error
        self.buffers.give_back(message._base)

    # ---- messages ----------------------------------------------------------------------------

    def _header(self, exchange, what, frame=0, num_bytes=0, num_pieces=0, text="") -> Header:
        name, number = (exchange.codec.name, exchange.number) if exchange else ("", 0)
        return Header(what, name, number & 0xFFFFFFFF, frame, num_bytes, num_pieces, text)

    def _send(self, exchange: Exchange, peer: int, link: Link, message: torch.Tensor) -> None:
        try:
            exchange.sends.append((message, link.send(message)))
        except RuntimeError as error:
            raise self._lost(peer, error) from error
        exchange.sent.append(message.numel())

    def _ask_for_sums(self, exchange: Exchange) -> None:
        for index, frame in enumerate(exchange.own):
            for peer in exchange.summed_from:
                self._ask_for(exchange, SPREAD, peer, index, frame, self._sums)

    def _ask_for_shards(self, exchange: Exchange) -> None:
        for index in range(_most_frames(exchange.incoming)):
            for peer, frames in exchange.incoming.items():
                if index < len(frames):
                    self._ask_for(exchange, GATHER, peer, index, frames[index], self._shards)

    def _ask_for(self, exchange, stage, peer, index, frame, asked: queue.Queue) -> None:
        message, work = self._ask(self.links[stage][peer], frame_bound(frame, exchange.dtype))
        while True:
            try:
                return asked.put((exchange, peer, index, message, work), timeout=1)
            except queue.Full:
                self._check()

    def _ask(self, link: Link, most_bytes: int) -> tuple:
        """Posts a receive for a message whose frame has at most ``most_bytes`` bytes."""
        message = self.buffers.take(HEADER_BYTES + most_bytes)[: HEADER_BYTES + most_bytes]
        message[:HEADER_BYTES] = 0  # so that an old one is not taken for the new
        try:
            return message, link.receive(message)
        except RuntimeError as error:
            raise self._lost(link.peer, error) from error

    def _asked_for(self, asked: queue.Queue, exchange, peer, index) -> tuple:
        while True:
            try:
                of, sender, frame, message, work = asked.get(timeout=1)
                break
            except queue.Empty:
                self._check()
        assert (of, sender, frame) == (exchange, peer, index)
        return message, work

    def _take(self, peer: int, message, work, expected: Header, most_bytes: int) -> Header:
        """The header of a message that was asked for, once it is there and as expected."""
        try:
            work.wait()
        except RuntimeError as error:
            raise self._lost(peer, error) from error
        try:
            header = read_header(message)
            header.check(expected, most_bytes)
        except Stopped:
            raise
        except ExchangeError as error:
            raise ExchangeError(f"rank {self._name(peer)} sent {error}") from None
        return header

    # ---- faults ------------------------------------------------------------------------------

    def _name(self, peer: int) -> str:
        """The global rank, for messages."""
        return str(dist.get_global_rank(self.group, peer))

    def _lost(self, peer: int, error: BaseException) -> Lost:
        return Lost(f"rank {self._name(peer)} is gone or does not answer: {error}")

    def _check(self) -> None:
        if self.error is not None:
            raise ExchangeError(self._reason())

    def _wait_for(self, event: threading.Event) -> None:
        while not event.wait(timeout=1):
            self._check()

    def _reason(self) -> str:
        return f"an exchange of this group has failed before: {self.error}"

    def _fail(self, exchange: Exchange, error: BaseException) -> None:
        """Sends the reason to the other ranks, then fails the exchanges that are under way."""
        with self._news:
            self._errors.append(error)
            self._news.notify_all()
            if len(self._errors) > 1:
                return  # the first failure reports
            if isinstance(error, Lost):
                # The rank that is gone may have sent its reason to another.
                self._news.wait_for(lambda: self._known_cause() is not None, _FIRST_WORDS)
                error = self._known_cause() or error
            text = str(error) if isinstance(error, Stopped) else f"[{exchange.op}] {error}"
            self.error = failure = ExchangeError(text)
            failure.__cause__ = error
            running, self._running = list(self._running.values()), {}
        if isinstance(error, Stopped):  # ranks that wait for this one have not received it
            say_to_all(self.links, self._header(None, STOPPED, text=text), _RELAY_WORDS)
        else:
            last_words = f"rank {dist.get_rank()} stopped: {text}"
            say_to_all(self.links, self._header(None, STOPPED, text=last_words), _LAST_WORDS)
        for other in running:
            other.future.set_exception(failure)

    def _known_cause(self) -> BaseException | None:
        return next((error for error in self._errors if not isinstance(error, Lost)), None)


def _most_frames(shards: dict[int, list[Frame]]) -> int:
    return max(map(len, shards.values()), default=0)


def _check_backend(group: dist.ProcessGroup) -> None:
    """Gloo receives messages that are shorter than the buffer; other backends may not."""
    try:
        name = group._get_backend(torch.device("cpu")).name()
    except RuntimeError:
        name = "none"
    if name != "gloo":
        raise ValueError(
            f"[distributed] expected a group with Gloo for tensors on the CPU, got {name}: "
            "init_process_group('cpu:gloo,cuda:nccl'), or new_group(backend='gloo') beside it"
        )
