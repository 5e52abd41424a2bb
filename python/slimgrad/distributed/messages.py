"""The bytes between two ranks: messages, each a header of fixed size and a frame.

A header contains the codec, the version of this format, the exchange and the frame that follow, the
length of the frame and a checksum of its own; a header that is not the expected one is an error.
Instead of a frame it may announce that the sender has stopped, and why.

Gloo sends nothing before the receiver has posted its receive, and the request for it queues behind
all other messages to the sender. So receives are posted long before, for the largest possible
frame; Gloo delivers shorter ones, and the header has the length.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import torch
import torch.distributed as dist

MAGIC = b"\x8dSGX"
VERSION = 1
# What follows a header: a frame; nothing, as the sender has all it needs; nothing, as it stopped.
FRAME, DONE, STOPPED = range(3)
_HEADER = struct.Struct("<4sBB2x16sIIQI464sI")
HEADER_BYTES = _HEADER.size
_TEXT_BYTES = 464
# Tags of messages, which no one else should use in a group: one for each stage of an exchange.
_FIRST_TAG = 0x5347


class ExchangeError(RuntimeError):
    """An exchange that did not come to its end, on any rank: a rank is gone, or sent something
    else than was agreed."""


class Lost(ExchangeError):
    """A rank that can no longer be reached."""


class Stopped(ExchangeError):
    """Another rank has sent that it stopped, and why."""


@dataclass(frozen=True)
class Header:
    what: int
    codec: str
    exchange: int  # counted by both sides
    frame: int
    num_bytes: int
    num_pieces: int = 0
    text: str = ""

    def to_bytes(self) -> bytes:
        text = self.text.encode()[:_TEXT_BYTES]
        start = _HEADER.pack(
            MAGIC,
            VERSION,
            self.what,
            self.codec.encode()[:16],
            self.exchange & 0xFFFFFFFF,
            self.frame,
            self.num_bytes,
            self.num_pieces,
            text,
            0,
        )[:-4]
        return start + struct.pack("<I", zlib.crc32(start))

    @staticmethod
    def from_bytes(data: bytes) -> Header:
        """ExchangeError unless it is a header of this version."""
        if data[:4] != MAGIC or zlib.crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
            raise ExchangeError("a header that is damaged, or none")
        _, version, what, codec, exchange, frame, num_bytes, pieces, text, _ = _HEADER.unpack(data)
        if version != VERSION:
            raise ExchangeError(f"a header of version {version}, expected version {VERSION}")
        return Header(what, _text(codec), exchange, frame, num_bytes, pieces, _text(text))

    def check(self, expected: Header, most_bytes: int) -> None:
        """ExchangeError unless this is what was expected, and of a size that it may have."""
        if self.what == STOPPED:
            raise Stopped(self.text)
        for field in ("what", "codec", "exchange", "frame", "num_pieces"):
            got, wanted = getattr(self, field), getattr(expected, field)
            if got != wanted:
                raise ExchangeError(f"a header with {field} {got!r}, expected {wanted!r}")
        if self.num_bytes > most_bytes:
            raise ExchangeError(
                f"a header with {self.num_bytes} bytes announced, expected at most {most_bytes}"
            )


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


class Link:
    """Messages of one stage to and from one rank of a group, in their order."""

    def __init__(self, group: dist.ProcessGroup, peer: int, stage: int):
        self.group, self.peer, self.tag = group, peer, _FIRST_TAG + stage

    def send(self, message: torch.Tensor):
        return dist.isend(message, group=self.group, group_dst=self.peer, tag=self.tag)

    def receive(self, message: torch.Tensor):
        return dist.irecv(message, group=self.group, group_src=self.peer, tag=self.tag)


def write_header(header: Header, message: torch.Tensor) -> torch.Tensor:
    """Writes the header before the frame in ``message``."""
    data = torch.frombuffer(bytearray(header.to_bytes()), dtype=torch.uint8)
    message[:HEADER_BYTES] = data
    return message


def header_alone(header: Header) -> torch.Tensor:
    return torch.frombuffer(bytearray(header.to_bytes()), dtype=torch.uint8)


def read_header(message: torch.Tensor) -> Header:
    return Header.from_bytes(message[:HEADER_BYTES].numpy().tobytes())
