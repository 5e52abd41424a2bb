"""What the tests of the gate and the controller share: state for a gate, its random seeds, what its
plan says, and gradients."""

import torch
from plan_fields import Plan

import slimgrad as sg
from slimgrad.compression.gate import new_group

ops = torch.ops.slimgrad

_MASK = (1 << 64) - 1


def state(*parts, **fields):
    """Plan and stats of one layer that compresses any size; ``fields`` overrides plan fields."""
    options = {"seed": 7 << 32 | 5, "min_elements": 0}
    for part in parts:
        options |= part._options()
    plan = ops.new_gate_plan(**options)
    for name, value in fields.items():
        plan[Plan[name]] = value
    return plan, ops.new_gate_stats()


def load_gate(plan, stats, saved_plan, saved_stats):
    """Which settings of a group of one gate a saved state does not have, in words."""
    group = new_group()
    group.add_gate("", plan, stats)
    found = group.load_state({"plan": saved_plan, "stats": saved_stats})
    assert found["missing"] == found["unknown"] == []
    return list(found["differences"])


def _mix(x):
    """SplitMix64's finaliser, written from the publication."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def draw_seed(plan, calls, stream=0):
    """The seed of the draws of backward pass number ``calls``, as the ops take it (int64)."""
    seed = int(plan[Plan.SEED_LOW]) | int(plan[Plan.SEED_HIGH]) << 32
    mixed = _mix(_mix(seed ^ _mix(calls)) ^ _mix(stream))
    return mixed - (1 << 64) if mixed >> 63 else mixed


def lognormal(shape, sigma=2.0, seed=0, zeros=0.0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.exp(sigma * torch.randn(shape, generator=generator))
    x *= torch.sign(torch.rand(shape, generator=generator) - 0.5)
    x[torch.rand(shape, generator=generator) < zeros] = 0
    return x * scale


SETTINGS = {
    "prune": (sg.Prune(0.8),),
    "topk": (sg.Prune(0.8, kind="topk"),),
    "topk_stochastic": (sg.Prune(0.8, kind="topk_stochastic"),),
    "fp4": (sg.Quantize(4),),
    "fp6": (sg.Quantize(6),),
    "prune and fp6": (sg.Prune(0.8), sg.Quantize(6)),
    "loss scale": (sg.Quantize(8, scale=sg.LossScale(2.0**4)),),
    "nothing": (),
}


def quantizer_of(plan, part):
    return (
        int(plan[Plan.FORMAT_EXPONENT]),
        int(plan[Plan.FORMAT_MANTISSA]),
        float(plan[Plan.SCALE]),
        part.rounding,
        part.underflow,
    )


def as_planned(x, plan, parts, calls=0, stream=0):
    """The gradient that the plan in force describes, by the elementary ops."""
    seed = draw_seed(plan, calls, stream)
    if len(parts) == 2 and plan[Plan.FORMAT_EXPONENT] > 0:  # one draw for both
        prune, quantize = parts
        assert prune.kind == "stochastic"
        alpha = float(plan[Plan.THRESHOLD])
        return ops.prune_quantize(x, alpha, *quantizer_of(plan, quantize), seed)
    for part in parts:
        if isinstance(part, sg.Prune):
            alpha = float(plan[Plan.THRESHOLD])
            if part.kind == "topk":
                x = torch.where(x.abs() < alpha, torch.zeros((), dtype=x.dtype), x)
            else:
                x = ops.prune(x, alpha, seed)
        elif plan[Plan.FORMAT_EXPONENT] > 0:  # not in a tensor of zeros only
            x = ops.quantize(x, *quantizer_of(plan, part), seed)
    return x


def backward(x, grad, plan, stats, stream=0):
    x = x.detach().requires_grad_()
    y = ops.gradient_gate(x, plan, stats, stream)
    y.backward(grad)
    return x.grad
