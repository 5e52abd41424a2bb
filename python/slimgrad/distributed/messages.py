"""The bytes between two ranks: a header of fixed size in front of every frame, and the frame in
messages of at most 1 MiB.

A header names the codec and the version of this format, says which frame of which exchange follows
and how long it is, and has a checksum of its own; it is believed only where it says what the
receiver expects. Instead of a frame it may say that the sender has stopped, and why.
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
_HEADER = struct.Struct("<4sBB2x16sIIQI424sI")
HEADER_BYTES = _HEADER.size
_TEXT_BYTES = 424
# Larger messages do not make Gloo faster; smaller ones cost a wakeup each.
MESSAGE_BYTES = 1 << 20
# Tags of messages, which no one else should use in a group: a stream of headers and one of frames
# for each stage of an exchange.
_FIRST_TAG = 0x5347


class ExchangeError(RuntimeError):
    """An exchange that did not come to its end, on any rank: a rank is gone, or sent something
    else than was agreed."""


class Stopped(ExchangeError):
    """Another rank says that it stopped, and why."""


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
                f"a frame of {self.num_bytes} bytes announced, expected at most {most_bytes}"
            )


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


class Link:
    """Messages of one stage to and from one rank of a group, each stream in its order."""

    def __init__(self, group: dist.ProcessGroup, peer: int, stage: int):
        self.group, self.peer = group, peer
        self.header_tag = _FIRST_TAG + 2 * stage
        self.frame_tag = self.header_tag + 1

    def send_header(self, header: Header) -> list:
        data = torch.frombuffer(bytearray(header.to_bytes()), dtype=torch.uint8)
        return [self._send(data, self.header_tag)]

    def send_frame(self, frame: torch.Tensor) -> list:
        return [self._send(part, self.frame_tag) for part in frame.split(MESSAGE_BYTES)]

    def receive_header(self) -> tuple:
        data = torch.empty(HEADER_BYTES, dtype=torch.uint8)
        return data, self._receive(data, self.header_tag)

    def receive_frame(self, frame: torch.Tensor) -> list:
        return [self._receive(part, self.frame_tag) for part in frame.split(MESSAGE_BYTES)]

    def _send(self, data: torch.Tensor, tag: int):
        return data, dist.isend(data, group=self.group, group_dst=self.peer, tag=tag)

    def _receive(self, data: torch.Tensor, tag: int):
        return dist.irecv(data, group=self.group, group_src=self.peer, tag=tag)
