"""Counting what was saved: bytes as they were and as they are."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import torch

from .handles import Copied, Handle, Kind, Packed
from .rules import LIVES_ANYWAY


@dataclass
class Tally:
    """What one pass saved, each piece of memory once. Leaves of the graph are not in it.

    packed: tensors that were packed; plain_bytes, bytes: what they were and what they are.
    left: by reason, how many tensors stayed as they are, and their bytes.
    packing_seconds, unpacking_seconds: as the clock had it, with what Python needs.
    work: by kind of packing, how many values were packed, and how many backward has to unpack.
    """

    packed: int = 0
    plain_bytes: int = 0
    bytes: int = 0
    left: dict[str, tuple[int, int]] = field(default_factory=dict)
    packing_seconds: float = 0.0
    unpacking_seconds: float = 0.0
    work: dict[Kind, tuple[int, int]] = field(default_factory=dict)
    _seen: weakref.WeakSet = field(default_factory=weakref.WeakSet, repr=False)
    _pieces: set[tuple[int, int, int]] = field(default_factory=set, repr=False)

    def saved(self, tensor: torch.Tensor, handle: Handle, why: str | None, seconds: float) -> None:
        self.packing_seconds += seconds
        if isinstance(handle, Packed):
            words, size = handle.words, tensor.numel()
            kind = (words.bits, words.group, handle.dtype)
            packed, unpacked = self.work.get(kind, (0, 0))
            self.work[kind] = (packed + (words not in self._seen) * size, unpacked + size)
            if words not in self._seen:
                self._seen.add(words)
                self.packed += 1
                self.plain_bytes += tensor.nbytes
                self.bytes += words.tensor.nbytes
        elif why is not None and why not in LIVES_ANYWAY and tensor.layout is torch.strided:
            self._add_left(tensor, handle, why)

    def _add_left(self, tensor: torch.Tensor, handle: Handle, why: str) -> None:
        if type(tensor) is torch.Tensor and not isinstance(handle, Copied):
            piece = (tensor.data_ptr(), tensor.numel(), tensor.element_size())
            if piece in self._pieces:
                return
            self._pieces.add(piece)
        count, num_bytes = self.left.get(why, (0, 0))
        self.left[why] = (count + 1, num_bytes + tensor.nbytes)

    @property
    def left_bytes(self) -> int:
        return sum(num_bytes for _, num_bytes in self.left.values())
