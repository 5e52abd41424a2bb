"""What the tests of attention share: torch's own with all its options, called in all its ways."""

import copy
import itertools
import math

import torch
from torch import nn

EMBED, HEADS, BATCH, LENGTH, KEYS = 16, 4, 3, 5, 7

MODULES = {
    "plain": {},
    "no bias": {"bias": False},
    "keys added": {"add_bias_kv": True, "add_zero_attn": True},
    "zero key": {"add_zero_attn": True, "bias": False},
    "own sizes": {"kdim": 10, "vdim": 12, "add_bias_kv": True},
    "dropout": {"dropout": 0.3},
}
LAYOUTS = ("length first", "batch first", "unbatched")
INPUTS = ("one", "two", "three")  # query, key and value are one tensor, or key and value are
MASKS = (None, "2d bool", "2d float", "3d bool", "3d float", "causal")


def attention(options, layout="length first"):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(EMBED, HEADS, batch_first=layout == "batch first", **options)
    with torch.no_grad():  # torch starts them at zero
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return module


def _sequence(layout, length, width):
    shapes = {
        "length first": (length, BATCH, width),
        "batch first": (BATCH, length, width),
        "unbatched": (length, width),
    }
    return torch.randn(shapes[layout])


def inputs_of(module, layout, kind):
    query = _sequence(layout, LENGTH, EMBED)
    if kind == "one":
        return query, query, query
    key = _sequence(layout, KEYS, module.kdim)
    return query, key, key if kind == "two" else _sequence(layout, KEYS, module.vdim)


def _mask(shape, kind):
    if kind == "float":
        return torch.randn(shape)
    mask = torch.rand(shape) > 0.6
    mask[..., 0] = False  # somebody to attend to
    return mask


def masks_of(layout, keys, which, padding):
    heads = HEADS if layout == "unbatched" else BATCH * HEADS
    arguments = {}
    if which == "causal":
        mask = torch.ones(LENGTH, keys, dtype=torch.bool).triu(1)
        arguments = {"attn_mask": mask, "is_causal": True}
    elif which is not None:
        dims, kind = which.split()
        shape = (LENGTH, keys) if dims == "2d" else (heads, LENGTH, keys)
        arguments = {"attn_mask": _mask(shape, kind)}
    if padding:
        shape = (keys,) if layout == "unbatched" else (BATCH, keys)
        kind = "float" if which is not None and "float" in which else "bool"
        arguments["key_padding_mask"] = _mask(shape, kind)
    return arguments


def ways_to_call(module, layout):
    """All of them: inputs and further arguments."""
    own_sizes = module.kdim != EMBED
    kinds = ("three",) if own_sizes else INPUTS
    for kind, which, padding, weights in itertools.product(
        kinds, MASKS, (False, True), (None, "mean", "each")
    ):
        inputs = inputs_of(module, layout, kind)
        keys = LENGTH if kind == "one" else KEYS
        arguments = masks_of(layout, keys, which, padding)
        arguments["need_weights"] = weights is not None
        arguments["average_attn_weights"] = weights == "mean"
        yield inputs, arguments


def run(module, inputs, arguments):
    """Results, and gradients of inputs and parameters."""
    module.zero_grad()
    copies = {id(x): x.clone().requires_grad_() for x in inputs}
    torch.manual_seed(1)  # of dropout
    y, weights = module(*(copies[id(x)] for x in inputs), **arguments)
    loss = (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum()
    if weights is not None:
        loss = loss + weights.square().sum()
    loss.backward()
    gradients = [x.grad for x in copies.values()]
    return [y, weights, *gradients, *(p.grad for p in module.parameters())]


def in_a_model(module):
    """A copy in a model of its own, which has a name for it."""
    return nn.ModuleDict({"attn": copy.deepcopy(module)})


def assert_unbiased(module, plain, inputs, passes=500):
    """The mean of its backward passes on 24 random contrasts of all gradients against the exact
    ones, within 4.5 standard errors each."""

    def gradients(attention):
        return torch.cat([g.flatten() for g in run(attention, inputs, {})[2:]]).double()

    exact = gradients(plain)
    contrasts = torch.randn(exact.numel(), 24, dtype=torch.float64)
    errors = (torch.stack([gradients(module) for _ in range(passes)]) - exact) @ contrasts
    z = errors.mean(0) / (errors.std(0) / math.sqrt(passes))
    assert z.abs().max() < 4.5, z
    assert errors.std(0).min() > 0
