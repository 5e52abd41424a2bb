"""quantize, prune, pack: against a copy of the tensor, plain torch, torch.compile and QPyTorch.

The unit is `copy_` of the same tensor. Everything reads the same tensor, which is filled afresh,
outside the timing, before every run: what worked in place leaves nothing to the next. slimgrad and
torch.compile work in place where the name ends with _; plain torch and QPyTorch make their result
anew, as that is how they are used. Where nothing is drawn, the versions in torch's operators are
checked to give the same bits. QPyTorch's own loader compiles without optimisation; its sources are
measured that way, as shipped, and compiled with -O3 -march=native.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from bench.timing import Row, race

FORMAT = (3, 2)  # 1-3-2
SCALE = 2.0**-4
THRESHOLD = 0.1
NEAREST = (*FORMAT, SCALE, "nearest", "zero", 0)
UNBIASED = (*FORMAT, SCALE, "stochastic", "stochastic", 1)
PACKED = (3, 0, SCALE, "nearest", "zero", 0)  # 1-3-0

Function = Callable[[torch.Tensor], object]


# ---- the same in torch's operators ---------------------------------------------------------------


def torch_quantize(x: torch.Tensor, noise: bool) -> torch.Tensor:
    """Rounding of the mantissa as integer arithmetic."""
    quotient = x.abs() * (1 / SCALE)
    bits = quotient.view(torch.int32)
    if noise:
        draw = torch.randint_like(bits, 1 << 21)
        bits = bits + draw
        below = torch.where(quotient * (1 << 24) > draw, 0.125, 0.0)
    else:
        bits = bits + ((1 << 20) - 1) + ((bits >> 21) & 1)
        below = 0.0
    y = (bits & -(1 << 21)).view(torch.float32).clamp(max=14.0)
    y = torch.where(quotient < 0.125, below, y) * SCALE
    y = torch.where(y == 0, 0.0, torch.copysign(y, x))
    return torch.where(torch.isfinite(x), y, x)


def torch_prune(x: torch.Tensor) -> torch.Tensor:
    magnitude = x.abs()
    up = torch.rand_like(x) * THRESHOLD < magnitude
    small = torch.where(up, torch.copysign(torch.full_like(x, THRESHOLD), x), 0.0)
    return torch.where(magnitude > THRESHOLD, x, small)


def torch_pack(x: torch.Tensor) -> torch.Tensor:
    """Powers of two: the exponent is the code; pairs of codes are joined."""
    bits = (x.abs() * (1 / SCALE)).view(torch.int32)
    rounded = bits + ((1 << 22) - 1) + (~(bits >> 23) & 1)
    code = ((rounded >> 23) - 123).clamp(max=7)
    code = torch.where(bits < 124 << 23, 0, code | torch.where(x < 0, 8, 0)).to(torch.uint8)
    return code[::2] | (code[1::2] << 4)


# ---- QPyTorch ------------------------------------------------------------------------------------


def qpytorch() -> dict[str, Callable]:
    """By build, its quantizers of (x, rounding). It has no scale, which spares it two products."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from qtorch.quant import quant_function
            from torch.utils.cpp_extension import load

            folder = Path(quant_function.__file__).parent / "quant_cpu"
            optimised = load(
                name="quant_cpu_O3",
                sources=[
                    str(folder / f"{n}.cpp") for n in ("quant_cpu", "bit_helper", "sim_helper")
                ],
                extra_cflags=["-O3", "-march=native"],
            )
    except Exception as error:  # It compiles C++ at import: anything may be missing.
        print(f"QPyTorch not measured: {type(error).__name__}: {error}")
        return {}
    mantissa, exponent = FORMAT[1], FORMAT[0]
    rebuilt = {
        "nearest": lambda x: optimised.float_quantize_nearest(x, mantissa, exponent),
        "stochastic": lambda x: optimised.float_quantize_stochastic(x, mantissa, exponent),
    }
    return {
        "QPyTorch, as shipped": lambda rounding: (
            lambda x: quant_function.float_quantize(x, exponent, mantissa, rounding=rounding)
        ),
        "QPyTorch, rebuilt with -O3 -march=native": lambda rounding: rebuilt[rounding],
    }


# ---- the races -----------------------------------------------------------------------------------


def cases() -> dict[str, tuple[Function, Function, Function]]:
    """By operation: slimgrad's, in place but for pack; its result anew; the same in torch."""
    ops = torch.ops.slimgrad
    return {
        "quantize, nearest": (
            lambda x: ops.quantize_(x, *NEAREST),
            lambda x: ops.quantize(x, *NEAREST),
            lambda x: torch_quantize(x, False),
        ),
        "quantize, stochastic": (
            lambda x: ops.quantize_(x, *UNBIASED),
            lambda x: ops.quantize(x, *UNBIASED),
            lambda x: torch_quantize(x, True),
        ),
        "prune": (
            lambda x: ops.prune_(x, THRESHOLD, 1),
            lambda x: ops.prune(x, THRESHOLD, 1),
            torch_prune,
        ),
        "prune and quantize, nearest": (
            lambda x: ops.prune_quantize_(x, THRESHOLD, *NEAREST),
            lambda x: ops.prune_quantize(x, THRESHOLD, *NEAREST),
            lambda x: torch_quantize(torch_prune(x), False),
        ),
        "prune and quantize, stochastic": (
            lambda x: ops.prune_quantize_(x, THRESHOLD, *UNBIASED),
            lambda x: ops.prune_quantize(x, THRESHOLD, *UNBIASED),
            lambda x: torch_quantize(torch_prune(x), True),
        ),
    }


def alternatives(case: str, quick: bool, builds: dict) -> dict[str, Function]:
    """By name, functions of a tensor."""
    if case == "pack to 4 bits":
        ours: dict[str, Function] = {"slimgrad": lambda x: torch.ops.slimgrad.pack(x, *PACKED)}
        plain, compiled, mark = torch_pack, torch_pack, ""
    else:
        in_place, fresh, plain = cases()[case]
        ours, mark = {"slimgrad_": in_place, "slimgrad": fresh}, "_"

        def compiled(x: torch.Tensor) -> None:
            x.copy_(plain(x))

    found = ours | {"torch": plain}
    if not quick:
        found[f"torch.compile{mark}"] = torch.compile(compiled)
    if case == "quantize, nearest":
        found["torch e5m2 and back"] = lambda x: x.to(torch.float8_e5m2).to(torch.float32)
    if case.startswith("quantize"):
        rounding = case.split(", ")[1]
        found |= {name: build(rounding) for name, build in builds.items()}
    return found


def check_rivals(x: torch.Tensor) -> None:
    """A rival that does something else would prove nothing."""
    ops = torch.ops.slimgrad
    assert torch.equal(torch_quantize(x, False), ops.quantize(x, *NEAREST))
    assert torch.equal(torch_pack(x), ops.pack(x, *PACKED))


def run(quick: bool) -> list[Row]:
    num_values = 1 << 20 if quick else 1 << 24
    generator = torch.Generator().manual_seed(0)
    draw = torch.randn(2, num_values, generator=generator)
    source = torch.exp(2 * draw[0] - 4).copysign_(draw[1])
    x, target = torch.empty_like(source), torch.empty_like(source)
    check_rivals(source[: 1 << 20])
    builds = qpytorch()
    size = f"{num_values >> 20} Mi float32, {torch.get_num_threads()} threads"
    rows = []
    for case in [*cases(), "pack to 4 bits"]:
        functions = {"copy_": target.copy_} | alternatives(case, quick, builds)
        rows += race(
            "apply",
            f"{case}: {size}",
            "copy_",
            {name: lambda function=function: function(x) for name, function in functions.items()},
            seconds=0.2 if quick else 8.0,
            min_rounds=3,
            before_each=lambda _: x.copy_(source),
        )
    return rows
