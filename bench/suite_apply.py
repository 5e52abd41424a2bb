"""quantize, prune, pack: against a copy of the tensor, plain torch, torch.compile and QPyTorch.

The unit is `copy_` of the same tensor. slimgrad runs in place where the name ends with _; all else
makes its result anew, as that is how it is used. In-place runs have a tensor of their own, and
quantizing what is quantized costs what quantizing costs. QPyTorch's kernels are compiled by its own
loader with its default flags, when it is installed.
"""

import warnings

import torch

from bench.timing import Row, race

FORMAT = (3, 2)  # 1-3-2
SCALE = 2.0**-4
THRESHOLD = 0.1


def torch_quantize(x: torch.Tensor, noise: bool) -> torch.Tensor:
    """The same grid in torch's operators: rounding of the mantissa as integer arithmetic."""
    bits = (x.abs() * (1 / SCALE)).view(torch.int32)
    if noise:
        bits = bits + torch.randint_like(bits, 1 << 21)
    else:
        bits = bits + ((1 << 20) - 1) + ((bits >> 21) & 1)
    y = (bits & -(1 << 21)).view(torch.float32).clamp(max=14.0)
    y = torch.where(y < 0.125, 0.0, y) * SCALE
    return torch.where(torch.isfinite(x), torch.copysign(y, x), x)


def torch_prune(x: torch.Tensor) -> torch.Tensor:
    magnitude = x.abs()
    up = torch.rand_like(x) * THRESHOLD < magnitude
    small = torch.where(up, torch.copysign(torch.full_like(x, THRESHOLD), x), 0.0)
    return torch.where(magnitude > THRESHOLD, x, small)


def qpytorch() -> dict:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from qtorch.quant import float_quantize
    except Exception as error:  # It compiles C++ at import: anything may be missing.
        print(f"QPyTorch not measured: {type(error).__name__}: {error}")
        return {}
    return {
        "QPyTorch nearest (default flags)": lambda x: float_quantize(x, 3, 2, rounding="nearest"),
        "QPyTorch stochastic (default flags)": lambda x: float_quantize(
            x, 3, 2, rounding="stochastic"
        ),
    }


def rivals(quick: bool) -> dict:
    """By name, functions of a tensor."""
    found = {
        "torch quantize nearest": lambda x: torch_quantize(x, False),
        "torch quantize stochastic": lambda x: torch_quantize(x, True),
        "torch prune": torch_prune,
        "torch prune + quantize nearest": lambda x: torch_quantize(torch_prune(x), False),
        "torch e5m2 round trip": lambda x: x.to(torch.float8_e5m2).to(torch.float32),
    }
    if not quick:
        for name in list(found)[:4]:
            found[name + ", compiled"] = torch.compile(found[name])
    return found | qpytorch()


def run(quick: bool) -> list[Row]:
    ops = torch.ops.slimgrad
    num_values = 1 << 20 if quick else 1 << 24
    x = torch.exp(2 * torch.randn(num_values) - 4) * torch.sign(torch.randn(num_values))
    target = torch.empty_like(x)
    nearest = (*FORMAT, SCALE, "nearest", "zero", 0)
    unbiased = (*FORMAT, SCALE, "stochastic", "stochastic", 1)
    ours = {
        "slimgrad quantize_ nearest": lambda y: ops.quantize_(y, *nearest),
        "slimgrad quantize_ stochastic": lambda y: ops.quantize_(y, *unbiased),
        "slimgrad prune_": lambda y: ops.prune_(y, THRESHOLD, 1),
        "slimgrad prune_quantize_ nearest": lambda y: ops.prune_quantize_(y, THRESHOLD, *nearest),
        "slimgrad prune_quantize_ stochastic": lambda y: ops.prune_quantize_(
            y, THRESHOLD, *unbiased
        ),
        "slimgrad quantize nearest": lambda y: ops.quantize(y, *nearest),
        "slimgrad pack to 4 bits": lambda y: ops.pack(y, 3, 0, SCALE, "nearest", "zero", 0),
    }
    alternatives = {"copy_": lambda: target.copy_(x)}
    for name, function in (ours | rivals(quick)).items():
        own = x.clone() if "_ " in name or name.endswith("_") else x
        alternatives[name] = lambda function=function, own=own: function(own)
    case = f"{num_values >> 20} Mi float32, {torch.get_num_threads()} threads"
    return race("apply", case, "copy_", alternatives, seconds=0.5 if quick else 8.0)
