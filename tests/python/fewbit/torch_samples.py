"""torch's own test samples, OpInfo's and ModuleInfo's, as our tests use them.

They live in torch.testing._internal, which promises nothing: what is missing in a release fails the
test that counts the samples, and is never skipped.
"""

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SPECIAL = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3.3e38, -3.3e38, 1e-45, -1e-45, 1.0, -1.0]
# Ops with variants appear several times; the plain one is what a function is compared with.
OPS = {
    op.name.removeprefix("nn.functional."): op
    for op in op_db
    if (op.name.startswith("nn.functional.") or op.name in ("sigmoid", "tanh"))
    and not op.variant_test_name
}
MODULES = {info.module_cls.__name__: info for info in module_db}


def op_samples(name, dtype):
    """(input, args, kwargs) of all samples; inputs without history. Those for references have
    extremal values, small and large ones, zero sizes, strides and expansions."""
    op = OPS[name]
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", dtype))
    if op.reference_inputs_func is not None:
        samples += op.reference_inputs("cpu", dtype)
    return [(_corner(sample.input.detach()), sample.args, sample.kwargs) for sample in samples]


def _corner(x):
    """The first rows of the three samples that have a million elements: with their strides, and
    enough of them for vectors and their ends."""
    return x[: 1 + (1 << 14) * len(x) // x.numel()] if x.numel() > 1 << 15 else x


def special_samples(dtype):
    """Where an element lies decides whether torch computes it in a vector."""
    special = torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
    yield special
    yield special.repeat(61)
    yield special.repeat(64).view(2, 11, 4, 8).contiguous(memory_format=torch.channels_last)
    yield special.repeat(64).view(44, 16)[:, 1::3]
    yield special[2]
    yield special.new_empty(0, 3)


def same(a, b):
    """Equal values, NaN where NaN, zeros of equal sign."""
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.equal(a.isnan(), b.isnan())
        and torch.equal(
            a.nan_to_num(0, torch.inf, -torch.inf), b.nan_to_num(0, torch.inf, -torch.inf)
        )
        and torch.equal(a.signbit() & ~a.isnan(), b.signbit() & ~b.isnan())
    )


def gradient_like(y, special=False):
    """What flows back: random, on demand with values that no closed gate may let through."""
    generator = torch.Generator().manual_seed(y.numel())
    gradient = torch.randn(y.shape, generator=generator).to(y.dtype)
    if special:
        values = torch.tensor([torch.inf, torch.nan, -torch.inf], dtype=y.dtype)
        flat = gradient.view(-1)
        flat[::5] = values.repeat(flat.numel())[: flat[::5].numel()]
    return gradient


def gradient_of(call, x, gradient):
    """The result of a call and the gradient of its input."""
    x = x.detach().requires_grad_()
    y = call(x)
    return y.detach(), torch.autograd.grad(y, x, gradient)[0]
