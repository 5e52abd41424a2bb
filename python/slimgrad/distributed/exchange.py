"""One exchange of a group, as a rank sees it."""

from __future__ import annotations

import hashlib
import struct
import threading
from dataclasses import dataclass, field

import torch

from .._seeds import fresh_seed
from .codec import Codec
from .pieces import Frame

# The streams of messages between two ranks, one for each time that an exchange passes something on.
SPREAD, GATHER, FINISH = range(3)


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
        """Of the draws of one rank in one stage. Sums of the numbers would not do: a rank's second
        rounding must not draw what another's first drew, or what was rounded up is again."""
        numbers = struct.pack("<qqqq", fresh_seed(self.codec.seed), self.step, rank, stage)
        digest = hashlib.blake2b(numbers, digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)
