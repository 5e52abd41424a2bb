"""measure: all statistics in one pass, against a copy of the tensor and torch's own operators.

The unit is `copy_` of the same tensor: what it costs to touch the memory once.
"""

import torch

from bench.timing import Row, race


def torch_log_moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two of the eight statistics, in the obvious way."""
    log = x.abs().log_()
    return log.mean(), log.std()


def run(quick: bool) -> list[Row]:
    measure = torch.ops.slimgrad.measure
    rows = []
    num_values = 1 << 20 if quick else 1 << 24
    for dtype in [torch.float32, torch.bfloat16, torch.float16]:
        x = torch.exp(2 * torch.randn(num_values) - 4)
        x = (x * torch.sign(torch.randn(num_values))).to(dtype)
        target = torch.empty_like(x)
        alternatives = {
            "copy_": lambda x=x, target=target: target.copy_(x),
            "slimgrad.measure": lambda x=x: measure(x),
            "torch: mean and std of log|x|": lambda x=x: torch_log_moments(x),
        }
        case = f"{num_values >> 20} Mi {str(dtype).removeprefix('torch.')}"
        rows += race("measure", case, "copy_", alternatives, seconds=0.5 if quick else 4.0)
    return rows
