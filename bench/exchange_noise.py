"""How the noise of a coded all-reduce falls with the number of ranks, phase by phase.

    python -m bench.exchange_noise

The first phase rounds every rank's gradient with draws of its own, so that its noise in the mean
falls as 1/N. The second rounds the mean, once: its noise does not fall. All ranks are simulated in
one process with the seeds that they would have; gradients are Laplace's, the same on all ranks.
"""

from __future__ import annotations

import torch

from slimgrad import derive_seed
from slimgrad.distributed.codec import Codec
from slimgrad.distributed.exchange import GATHER, SPREAD, Exchange
from slimgrad.distributed.pieces import Piece, encode_frame, frame_bound

VALUES = 1 << 18
CODECS = ("uniform8", "uniform4", "fp8", "fp4")
RANKS = (2, 4, 8, 16, 64)


def rounded(x: torch.Tensor, codec: Codec, seed: int) -> torch.Tensor:
    frame = [Piece(x.clone(), False, derive_seed(0, "weight"))]
    out = torch.empty(frame_bound(frame, x.dtype), dtype=torch.uint8)
    encode_frame(frame, codec, out, seed, replace=True)
    return frame[0].values


def errors(name: str) -> dict[int, tuple[float, float]]:
    """By the number of ranks: the error of the mean after the first phase, and after both, relative
    to the gradient (root mean square)."""
    codec = Codec.parse(name)
    uniform = torch.rand(2, VALUES, generator=torch.Generator().manual_seed(1))
    x = torch.log(uniform[0] / uniform[1])
    exchange = Exchange("all_reduce", codec, x.dtype, ("0", "step", 0))
    total, found = torch.zeros_like(x), {}
    for rank in range(max(RANKS)):
        total += rounded(x, codec, exchange.seed(rank, SPREAD, -1))
        if rank + 1 in RANKS:
            mean = total / (rank + 1)
            both = rounded(mean, codec, exchange.seed(rank, GATHER, -1))
            found[rank + 1] = tuple(float((y - x).norm() / x.norm()) for y in (mean, both))
    return found


def main() -> None:
    print("| ranks | " + " | ".join(f"{name}: phase 1, both" for name in CODECS) + " |")
    print("|---" * (len(CODECS) + 1) + "|")
    by_codec = [errors(name) for name in CODECS]
    for ranks in RANKS:
        cells = ["{:.4f}, {:.4f}".format(*found[ranks]) for found in by_codec]
        print(f"| {ranks} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
