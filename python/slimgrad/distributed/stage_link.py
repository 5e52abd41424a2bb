"""Frames between this process and one other: who waits, how long, and what it counts.

Point-to-point operations of torch.distributed, a header and then a body of the size that it says.
What is sent goes out from a thread of its own, so that two stages that send to each other at the
same time do not wait for each other, and the next microbatch is computed meanwhile.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..tensors.coding import PayloadError
from .frames import (
    HEADER_BYTES,
    REFUSAL,
    Frame,
    Header,
    header_bytes,
    parse_header,
    reason_of,
    refusal,
)

# Seconds to wait until a peer receives a refusal; it may be waiting for another message.
_REFUSAL_SECONDS = 5.0


class BoundaryError(RuntimeError):
    """The process on the other side is gone, silent, or refused what it was sent."""


@dataclass
class Traffic:
    """What went one way. ``bytes`` are those on the wire, headers too; ``plain_bytes`` those of the
    same tensors as they are."""

    messages: int = 0
    bytes: int = 0
    plain_bytes: int = 0

    def count(self, header: Header) -> None:
        self.messages += 1
        self.bytes += HEADER_BYTES + header.nbytes
        self.plain_bytes += header.plain_bytes

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class Link:
    """Both ways between this process and ``peer``, its rank in ``group``.

    Several between the same two processes need different tags. ``timeout``: seconds that a wait for
    the peer may take; None leaves it to the process group.
    """

    def __init__(
        self,
        peer: int,
        group: dist.ProcessGroup | None,
        tag: int,
        timeout: float | None,
        owner: str,
    ):
        self.peer, self.group, self.tag, self.timeout, self.owner = peer, group, tag, timeout, owner
        self.sent, self.received = Traffic(), Traffic()
        self._sender: ThreadPoolExecutor | None = None
        self._sending: list[Future] = []

    def __getstate__(self):  # copies and pickles have no threads and no pending sends
        return self.__dict__ | {"_sender": None, "_sending": [], "group": None}

    def name_of_peer(self) -> str:
        return f"rank {self.peer}"

    # ---- sending --------------------------------------------------------------------------------

    def send(self, frame: Frame) -> None:
        """Returns at once; what went wrong is raised by the next call."""
        self._raise_failures(wait=False)
        self._submit(frame, self.timeout)
        self.sent.count(frame[0])

    def flush(self) -> None:
        """Returns when the peer has taken all that was sent."""
        self._raise_failures(wait=True)

    def refuse(self, reason: str, serial: int) -> None:
        """Sends the reason to the peer, if it receives."""
        self._submit(refusal(reason, serial), _REFUSAL_SECONDS)

    def _submit(self, frame: Frame, seconds: float | None) -> None:
        if self._sender is None:
            self._sender = ThreadPoolExecutor(1, thread_name_prefix="slimgrad-boundary")
        self._sending.append(self._sender.submit(self._transmit, frame, seconds))

    def _transmit(self, frame: Frame, seconds: float | None) -> None:
        header, body = frame
        for part in (header_bytes(header), body):
            if part.numel():
                to = {"group": self.group, "group_dst": self.peer, "tag": self.tag}
                self._wait(lambda part=part, to=to: dist.isend(part, **to), seconds, "take")

    def _raise_failures(self, wait: bool) -> None:
        while self._sending and (wait or self._sending[0].done()):
            self._sending.pop(0).result()

    # ---- receiving ------------------------------------------------------------------------------

    def receive(self) -> Header:
        """The header of the next frame; its body must be received before the next one."""
        self._raise_failures(wait=False)
        header = parse_header(self._receive_bytes(HEADER_BYTES))
        if header.kind == REFUSAL:
            reason = reason_of(header, self._receive_bytes(header.nbytes))
            raise BoundaryError(f"[{self.owner}] {self.name_of_peer()} stopped: {reason}")
        return header

    def receive_body(self, header: Header) -> torch.Tensor:
        """REQUIRES: what the header announces was found acceptable."""
        body = self._receive_bytes(header.nbytes)
        self.received.count(header)
        return body

    def _receive_bytes(self, count: int) -> torch.Tensor:
        data = torch.empty(count, dtype=torch.uint8)
        if count:
            source: dict[str, Any] = {"group": self.group, "group_src": self.peer, "tag": self.tag}
            self._wait(lambda: dist.irecv(data, **source), self.timeout, "send")
        return data

    def _wait(self, start, seconds: float | None, verb: str) -> None:
        try:
            work = start()
            work.wait() if seconds is None else work.wait(timedelta(seconds=seconds))
        except RuntimeError as error:
            within = "" if seconds is None else f" within {seconds:g} s"
            raise BoundaryError(
                f"[{self.owner}] expected {self.name_of_peer()} to {verb} a tensor{within}, got: "
                f"{str(error).splitlines()[0]}"
            ) from None

    def refusing(self, what: str, serial: int) -> _Refusing:
        """A context in which a frame that cannot be taken is named, here and to the peer."""
        return _Refusing(self, what, serial)


class _Refusing:
    def __init__(self, link: Link, what: str, serial: int):
        self.link, self.what, self.serial = link, what, serial

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind, error, _traceback) -> None:
        if isinstance(error, PayloadError):
            link = self.link
            said = f"{self.what} {self.serial} from {link.name_of_peer()}: {error}"
            link.refuse(f"it refused {said}", self.serial)
            raise PayloadError(f"[{link.owner}] {said}") from None
