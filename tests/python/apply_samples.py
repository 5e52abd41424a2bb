"""What the tests of quantize, prune and pack share: samples, and the ATen implementation."""

import torch

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FORMATS = [(e, m) for e in range(1, 8) for m in range(7) if e + m <= 7]


def gradient(shape, seed=0, dtype=torch.float32):
    """Lognormal with random signs, a third of it zeros."""
    generator = torch.Generator().manual_seed(seed)
    magnitude = torch.exp(2 * torch.randn(shape, generator=generator) - 1)
    sign = torch.randint(-1, 2, shape, generator=generator)
    return (magnitude * sign).to(dtype)


def with_specials(x):
    """x with NaN, Inf, -0 and a subnormal at fixed places of its memory."""
    flat = torch.as_strided(x, (x.numel(),), (1,))
    flat[3], flat[5], flat[7], flat[8], flat[11] = (
        float("nan"),
        float("inf"),
        float("-inf"),
        -0.0,
        1e-40,
    )
    return x


def layouts(dtype=torch.float32):
    """The same shape in every kind of layout."""
    return {
        "contiguous": gradient((4, 6, 5, 7), dtype=dtype),
        "channels_last": gradient((4, 6, 5, 7), dtype=dtype).to(memory_format=torch.channels_last),
        "transposed": gradient((7, 6, 5, 4), dtype=dtype).transpose(0, 3),
        "sliced": gradient((4, 6, 5, 14), dtype=dtype)[..., ::2],
        "expanded": gradient((4, 6, 1, 7), dtype=dtype).expand(4, 6, 5, 7),
        "empty": gradient((4, 0, 5, 7), dtype=dtype),
        "scalar": gradient((), dtype=dtype),
    }


def aten(op, *arguments):
    """An op's implementation for devices without a kernel of their own, on CPU tensors."""
    return op.default._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *arguments)


def same(a, b):
    """Bit for bit, and in the same layout."""
    assert a.dtype == b.dtype and a.shape == b.shape
    strides = [(i, j) for n, i, j in zip(a.shape, a.stride(), b.stride(), strict=True) if n > 1]
    assert a.numel() == 0 or all(i == j for i, j in strides)
    integer = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[a.element_size()]
    return torch.equal(a.contiguous().view(integer), b.contiguous().view(integer))
