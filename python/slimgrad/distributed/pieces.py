"""The byte work on several pieces of tensors at once, and how tensors are cut into pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from .._library import ops
from .._support import derive_seed
from ..tensors.coding import checked
from .codec import Codec, encoded_bound

# Values in a frame, what is coded and sent in one go: 2 MiB of float32, a quarter of a MiB and more
# when coded. So the first bytes leave after a millisecond, and what a rank works on stays in cache.
FRAME_VALUES = 1 << 19
# Where a shard may cut a tensor.
_CUT = 1024


class Piece(NamedTuple):
    """A slice of a tensor, flat. ``key`` names it for random draws; ``plain``: it travels as it
    is; ``residual``: the same slice of what rounding lost before."""

    values: torch.Tensor
    plain: bool
    key: int
    residual: torch.Tensor | None = None


Frame = list[Piece]


@torch.library.register_fake("slimgrad::encode_pieces")
def _(pieces, plain, keys, *arguments):
    return arguments[-1].new_empty((), dtype=torch.int64)


@torch.library.register_fake("slimgrad::decode_pieces")
def _(*arguments):
    pass


def encode_frame(
    frame: Frame, codec: Codec, out: torch.Tensor, seed: int = 0, replace: bool = False
) -> int:
    """Codes the pieces into ``out``, a uint8 tensor of ``frame_bound`` bytes, and returns how many
    bytes that took. ``replace`` gives the pieces the values that a reader gets. (Pruning does its
    part of that always.)"""
    if codec.kind == "pruned":
        _prune(frame, codec, seed)
    return int(
        ops.encode_pieces(
            [piece.values for piece in frame],
            [piece.plain for piece in frame],
            [piece.key for piece in frame],
            codec.kind,
            codec.bits,
            *codec._format_bits(),
            codec.survivors,
            codec.coder,
            codec.model,
            codec.rounding,
            codec.block_log2,
            seed,
            replace,
            out,
        )
    )


def decode_frame(
    payload: torch.Tensor,
    tensors: list[torch.Tensor],
    plain: list[bool],
    codec: Codec,
    dtype: torch.dtype,
    add: bool = False,
) -> None:
    """Decodes into ``tensors``, or adds to them, which are float32 then. ``PayloadError`` for
    anything but an undamaged frame of pieces of these sizes under this codec."""
    checked(
        ops.decode_pieces,
        payload,
        tensors,
        plain,
        dtype,
        codec.kind,
        codec.bits,
        *codec._format_bits(),
        add,
    )


def frame_bound(frame: Iterable[Piece], dtype: torch.dtype) -> int:
    return encoded_bound([piece.values.numel() for piece in frame], dtype)


def _prune(frame: Frame, codec: Codec, seed: int) -> None:
    for piece in frame:
        if piece.plain:
            continue
        stats = ops.measure(piece.values)
        threshold = float(ops.threshold(stats, codec.sparsity, "empirical")[0])
        if threshold > 0:
            ops.prune_(piece.values, threshold, derive_seed(seed, piece.key))


def shard_bounds(lengths: list[int], shards: int, smallest: int) -> list[tuple[int, int]]:
    """Where each shard ends, as (tensor, offset): shards of about as many values each. Tensors of
    fewer than ``smallest`` values are not cut, others at multiples of 1024."""
    total = sum(lengths)
    ends, index, before = [], 0, 0
    for shard in range(1, shards):
        target = total * shard // shards
        while index < len(lengths) and before + lengths[index] <= target:
            before += lengths[index]
            index += 1
        offset = target - before
        if index < len(lengths):
            whole = lengths[index] < max(smallest, 2 * _CUT)
            offset = 0 if whole else offset // _CUT * _CUT
        ends.append((index, offset))
    return [*ends, (len(lengths), 0)]


def frames_between(
    tensors: list[torch.Tensor],
    keys: list[int],
    begin: tuple[int, int],
    end: tuple[int, int],
    codec: Codec,
    residuals: list[torch.Tensor | None] | None = None,
) -> list[Frame]:
    """The pieces from ``begin`` to ``end``, in frames of at most FRAME_VALUES."""
    frames: list[Frame] = []
    room = 0
    for index in range(begin[0], min(end[0] + 1, len(tensors))):
        flat = tensors[index]
        first = begin[1] if index == begin[0] else 0
        last = end[1] if index == end[0] else flat.numel()
        plain = flat.numel() < codec.min_elements
        while first < last:
            if room == 0 or (last - first > room and room < FRAME_VALUES // 2):
                frames.append([])
                room = FRAME_VALUES
            count = min(last - first, room)
            residual = residuals[index] if residuals is not None and not plain else None
            frames[-1].append(
                Piece(
                    flat.narrow(0, first, count),
                    plain,
                    derive_seed(keys[index], first),
                    None if residual is None else residual.narrow(0, first, count),
                )
            )
            first += count
            room -= count
    return frames
