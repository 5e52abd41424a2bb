"""Two choices of docs/kept.md, as times side by side.

    python -m bench.kept_products

The weight gradient of a linear layer from its packed input, by tiles, as ratios to unpacking all of
the input and one product. And our lossless coder on a bfloat16 tensor, as ratios to its copy.
"""

import torch

import slimgrad as sg
from bench.timing import Row, print_table, race

SHAPES = [(8192, 1024, 256), (8192, 256, 1024), (4096, 512, 512), (2048, 1536, 384)]
BITS = 4


def product_rows(seconds: float = 2.0) -> list[Row]:
    ops = torch.ops.slimgrad
    found: list[Row] = []
    for dtype in (torch.float32, torch.bfloat16):
        for count, inputs, outputs in SHAPES:
            x, gradient = (
                torch.randn(count, inputs).to(dtype),
                torch.randn(count, outputs).to(dtype),
            )
            words = ops.keep_values(x, BITS, 0, "stochastic", 1, 0)

            def unpacked(x=x, words=words) -> torch.Tensor:
                return ops.restore_values(words, x.shape, x.stride(), x.dtype, BITS, 0)

            ways = {
                "unpacked": lambda gradient=gradient, unpacked=unpacked: gradient.t() @ unpacked(),
                "never packed": lambda gradient=gradient, x=x: gradient.t() @ x,
                "by tiles": lambda gradient=gradient, words=words, inputs=inputs: (
                    ops.kept_weight_gradient(gradient, words, inputs, BITS, 0)
                ),
            }
            case = f"{str(dtype).removeprefix('torch.')}, {count} x {inputs} to {outputs}"
            found += race("kept", case, "unpacked", ways, seconds)
    return found


def coding_rows(seconds: float = 2.0) -> list[Row]:
    x = torch.randn(1 << 22).bfloat16()
    out, payload = torch.empty_like(x), sg.encode(x, mode="lossless")
    ways = {
        "torch: copy_": lambda: out.copy_(x),
        "encode": lambda: sg.encode(x, mode="lossless"),
        "decode": lambda: sg.decode(payload),
    }
    case = f"4096 Ki bfloat16, lossless to {payload.numel() / x.nbytes:.2f}"
    return race("kept", case, "torch: copy_", ways, seconds)


if __name__ == "__main__":
    torch.set_num_threads(2)
    print_table(product_rows() + coding_rows())
