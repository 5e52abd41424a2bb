"""An 8-bit all-reduce without entropy coding, as torchft does it, for DDP: the rival of ours.

Every bucket is cut into a shard a rank; blocks of 512 values share a float32 scale. Each rank sends
every peer its shard in int8, sums what arrives in float32, and sends the sum in int8 to all. Tuned
as we would tune our own: messages of at most 1 MiB by isend, which fills a shaped link where Gloo's
all_to_all does not; values that are coded while others travel; buffers that are used again; passes
over pieces that stay in the cache; a second thread for what waits, so that DDP's backward goes on.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

BLOCK = 512  # values a scale
PIECE = 2048  # blocks a message: 1 MiB of codes and 8 KiB of scales
CHUNK = 128  # blocks a pass: 256 KiB of float32


class _Shard:
    """Codes and scales of a shard, in pieces that travel as one message each."""

    def __init__(self, blocks: int):
        row = BLOCK + 4
        self.bytes = torch.empty(blocks * row, dtype=torch.uint8)
        self.pieces = []  # of bytes, codes, scales, first block
        for first in range(0, blocks, PIECE):
            count = min(PIECE, blocks - first)
            message = self.bytes[first * row : (first + count) * row]
            scales = message[: 4 * count].view(torch.float32)
            codes = message[4 * count :].view(torch.int8).view(count, BLOCK)
            self.pieces.append((message, codes, scales[:, None], first))


class _Bucket:
    """What the exchange of one bucket keeps from step to step."""

    def __init__(self, length: int, world: int):
        self.blocks = -(-length // (BLOCK * world))  # a shard
        whole = self.blocks * world * BLOCK
        self.padded = torch.zeros(whole) if whole != length else None
        self.sent = [_Shard(self.blocks) for _ in range(world)]
        self.received = [_Shard(self.blocks) for _ in range(world)]
        self.sums = [_Shard(self.blocks) for _ in range(world)]


class Int8Exchange:
    """state and hook for DDP: model.register_comm_hook(None, Int8Exchange().hook)."""

    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.peers = [(self.rank + i) % self.world for i in range(1, self.world)]
        self.buckets: dict[tuple[int, int], _Bucket] = {}
        self.later = ThreadPoolExecutor(1)
        self.scratch = [torch.empty(CHUNK, BLOCK) for _ in range(2)]  # one a thread

    def hook(self, _, bucket):  # DDP checks annotations, but cannot read those that are text
        flat, index = bucket.buffer(), bucket.index()
        key = (index, flat.numel())
        if key not in self.buckets:
            self.buckets[key] = _Bucket(flat.numel(), self.world)
        kept = self.buckets[key]
        values = flat
        if kept.padded is not None:
            kept.padded[: flat.numel()].copy_(flat)
            values = kept.padded
        shards = values.view(self.world, kept.blocks, BLOCK)
        tag = 4096 * index
        arriving = {p: self._receive(kept.received[p], p, tag) for p in self.peers}
        sums = {p: self._receive(kept.sums[p], p, tag + 2048) for p in self.peers}
        leaving = []
        for peer in self.peers:
            leaving += self._code_and_send(shards[peer], kept.sent[peer], [peer], tag, 0)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def finish() -> None:
            try:
                self._sum(shards[self.rank], kept, arriving)
                mine = kept.sums[self.rank]
                more = self._code_and_send(shards[self.rank], mine, self.peers, tag + 2048, 1)
                self._decode(mine, shards[self.rank])
                for peer in self.peers:
                    self._decode(kept.sums[peer], shards[peer], sums[peer])
                for work in leaving + more:
                    work.wait()
                if kept.padded is not None:
                    flat.copy_(values[: flat.numel()])
                done.set_result(flat)
            except Exception as error:
                done.set_exception(error)

        self.later.submit(finish)
        return done

    def _receive(self, shard: _Shard, peer: int, tag: int) -> list:
        return [dist.irecv(piece[0], peer, tag=tag + i) for i, piece in enumerate(shard.pieces)]

    def _code_and_send(
        self, values: torch.Tensor, shard: _Shard, to: list[int], tag: int, thread: int
    ) -> list:
        leaving = []
        for i, (message, codes, scales, first) in enumerate(shard.pieces):
            for start in range(0, len(codes), CHUNK):
                x = values[first + start : first + start + CHUNK][: len(codes) - start]
                scale = scales[start : start + len(x)]
                low, high = torch.aminmax(x, dim=1, keepdim=True)
                torch.maximum(high, low.neg_(), out=scale)
                scale.mul_(1 / 127).clamp_(min=1e-38)
                scaled = torch.div(x, scale, out=self.scratch[thread][: len(x)])
                codes[start : start + len(x)].copy_(scaled.round_())
            leaving += [dist.isend(message, peer, tag=tag + i) for peer in to]
        return leaving

    def _sum(self, total: torch.Tensor, kept: _Bucket, arriving: dict[int, list]) -> None:
        """The mean, as DDP wants it; a rank's own values are not rounded on the way."""
        total.div_(self.world)
        for peer, works in arriving.items():
            for work, (_, codes, scales, first) in zip(
                works, kept.received[peer].pieces, strict=True
            ):
                work.wait()
                scales.div_(self.world)
                for start in range(0, len(codes), CHUNK):
                    code = codes[start : start + CHUNK]
                    rows = total[first + start : first + start + len(code)]
                    scaled = self.scratch[1][: len(code)].copy_(code)
                    rows.addcmul_(scaled, scales[start : start + len(code)])

    def _decode(self, shard: _Shard, out: torch.Tensor, works: list | None = None) -> None:
        for i, (_, codes, scales, first) in enumerate(shard.pieces):
            if works:
                works[i].wait()
            for start in range(0, len(codes), CHUNK):
                code = codes[start : start + CHUNK]
                rows = out[first + start : first + start + len(code)]
                rows.copy_(code).mul_(scales[start : start + len(code)])
