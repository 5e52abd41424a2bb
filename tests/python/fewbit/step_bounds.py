"""How far the tables of few-bit activations are from the true slopes: in the tails, and at most.

Run as a program it prints the two tables of docs/activations.md; a test compares them.
"""

import torch
import torch.nn.functional as F

from slimgrad.nn.step_tables import table_for

BITS = (1, 2, 3, 4)
# The activations whose table approximates, with torch's function.
TORCHS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "logsigmoid": F.logsigmoid,
    "softplus": F.softplus,
    "elu": F.elu,
    "celu": F.celu,
    "selu": F.selu,
}
_FAR = 1e6  # where a slope is its limit to twelve digits


def slopes(function, x):
    """The true derivative, in float64."""
    x = x.double().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


def levels_at(table, x):
    """What backward multiplies with instead. NaN is above all borders, as in bucketize."""
    x = x.abs() if table.even else x
    borders = torch.tensor(table.borders, dtype=torch.float32)
    levels = torch.tensor(table.levels, dtype=torch.float32)
    return levels[torch.bucketize(x.float().contiguous(), borders)]


def largest_difference(function, table, jumps=()):
    """max |f'(x) - q(x)| over all finite x: on a fine grid, in the tails, and on both sides of the
    borders and of the places where f' jumps."""
    edges = torch.tensor([*table.borders, *jumps, 0.0, 3.0], dtype=torch.float32)
    edges = torch.cat([edges, -edges])
    far = torch.tensor([50.0, 100.0, 1e3, _FAR])
    x = torch.cat(
        [
            torch.linspace(-30, 30, 20_001),
            far,
            -far,
            edges,
            torch.nextafter(edges, torch.tensor(torch.inf)),
            torch.nextafter(edges, torch.tensor(-torch.inf)),
        ]
    )
    return (slopes(function, x) - levels_at(table, x).double()).abs().max().item()


def _number(value):
    return f"{value:.4f}".replace("-0.0000", "0.0000")


def tails(name):
    """A row: the true slopes far to the left and to the right, and the levels there."""
    ends = torch.tensor([-_FAR, _FAR])
    limits = " / ".join(f"{v + 0.0:.5g}" for v in slopes(TORCHS[name], ends).round(decimals=4))
    cells = []
    for bits in BITS:
        table = table_for(name, {}, bits)
        cells.append(" / ".join(_number(v) for v in levels_at(table, ends).tolist()))
    return f"| {name} | {limits} | " + " | ".join(cells) + " |"


def differences(name):
    """A row: the largest difference for each number of bits."""
    cells = [_number(largest_difference(TORCHS[name], table_for(name, {}, b))) for b in BITS]
    return f"| {name} | " + " | ".join(cells) + " |"


def tail_table():
    head = (
        "| activation | true slope | 1 bit | 2 bits | 3 bits | 4 bits |\n|---|---|---|---|---|---|"
    )
    return "\n".join([head, *map(tails, TORCHS)])


def difference_table():
    head = "| activation | 1 bit | 2 bits | 3 bits | 4 bits |\n|---|---|---|---|---|"
    return "\n".join([head, *map(differences, TORCHS)])


if __name__ == "__main__":
    print(tail_table(), difference_table(), sep="\n\n")
