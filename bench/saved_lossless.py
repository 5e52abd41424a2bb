"""The lossless coder on a bfloat16 tensor, in copies of it: why saved="exact" does not use it.

python -m bench.saved_lossless
"""

import torch

import slimgrad as sg
from bench.timing import Row, print_table, race


def rows(seconds: float = 2.0) -> list[Row]:
    x = torch.randn(1 << 22).bfloat16()
    out, payload = torch.empty_like(x), sg.encode(x, mode="lossless")
    ways = {
        "torch: copy_": lambda: out.copy_(x),
        "encode": lambda: sg.encode(x, mode="lossless"),
        "decode": lambda: sg.decode(payload),
    }
    case = f"4096 Ki bfloat16, lossless to {payload.numel() / x.nbytes:.2f}"
    return race("saved", case, "torch: copy_", ways, seconds)


if __name__ == "__main__":
    torch.set_num_threads(2)
    print_table(rows())
