"""How the noise of a coded all-reduce falls with the number of ranks, phase by phase.

    python -m bench.exchange_noise

The first phase rounds every rank's gradient with draws of its own, so that its noise in the mean
falls as 1/N. The second rounds the mean, once: its noise does not fall. All ranks are simulated in
one process with the seeds that they would have; gradients are Laplace's, the same on all ranks.
"""

from __future__ import annotations

import torch

from slimgrad import derive_seed
from slimgrad._library import classes
from slimgrad.distributed.codec import Codec

SPREAD, GATHER = 0, 1  # the phases of an exchange
VALUES = 1 << 18
CODECS = ("uniform8", "uniform4", "fp8", "fp4")
RANKS = (2, 4, 8, 16, 64)


def rounded(x: torch.Tensor, codec: Codec, rank: int, phase: int) -> torch.Tensor:
    piece, held = x.clone(), codec._held()
    out = torch.empty(held.frame_bound([piece]), dtype=torch.uint8)
    seed = classes.Exchange.seed(codec.seed, "all_reduce", "0", "step", 0, rank, phase, -1)
    held.encode_frame([piece], [derive_seed(0, "weight")], seed, True, out)
    return piece


def errors(name: str) -> dict[int, tuple[float, float]]:
    """By the number of ranks: the error of the mean after the first phase, and after both, relative
    to the gradient (root mean square)."""
    codec = Codec.parse(name)
    uniform = torch.rand(2, VALUES, generator=torch.Generator().manual_seed(1))
    x = torch.log(uniform[0] / uniform[1])
    total, found = torch.zeros_like(x), {}
    for rank in range(max(RANKS)):
        total += rounded(x, codec, rank, SPREAD)
        if rank + 1 in RANKS:
            mean = total / (rank + 1)
            both = rounded(mean, codec, rank, GATHER)
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
