"""One exchange of a group, on one rank."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import torch

from .._support import derive_seed
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
    draws: tuple[str | int, ...]  # identify its draws among those of exchanges with the same codec
    # Coded for each peer, and sums of what peers coded of it.
    outgoing: dict[int, list[Frame]] = field(default_factory=dict)
    own: list[Frame] = field(default_factory=list)
    # The ranks that are summed, and the divisor of the sum.
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

    def seed(self, rank: int, stage: int, reader: int) -> int:
        """The seed for what a rank codes in one stage for one reader, or for all (-1). Ranks are
        global: replicas of a group have equal ranks within their groups."""
        return derive_seed(self.codec.seed, self.op, *self.draws, rank, stage, reader)
