"""The few-bit ops below the layers: the implementation for other devices, and very long arrays."""

import os

import pytest
import torch
import torch.nn.functional as F
from apply_samples import DTYPES, aten, gradient, layouts, same

from slimgrad.nn.step_tables import table_for

ops = torch.ops.slimgrad


def samples(dtype):
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, -3e38, 0.5])
    yield torch.cat([torch.randn(5003).mul(3), special]).to(dtype)
    yield torch.randn(0).to(dtype)
    yield from layouts(dtype).values()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["gelu", "tanh"])
def test_aten_implementation_gives_the_same_codes_and_products(name, bits, dtype):
    table = table_for(name, {}, bits)
    for x in samples(dtype):
        codes = ops.stepwise_codes(x, table.borders, table.even)
        assert same(codes, aten(ops.stepwise_codes, x, table.borders, table.even))
        strides = torch.empty_like(x).stride()
        for grad in (gradient(x.shape, dtype=dtype), torch.ones((), dtype=dtype).expand(x.shape)):
            arguments = (grad, codes, table.levels, strides)
            result = ops.stepwise_backward(*arguments)
            assert same(result, aten(ops.stepwise_backward, *arguments))
        written = result.clone()
        aten(ops.stepwise_backward_, written, codes, table.levels)
        ops.stepwise_backward_(result, codes, table.levels)
        assert same(result, written)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["gelu", "silu", "mish"])
def test_aten_implementation_of_the_exact_mode_gives_the_same_products(name, dtype):
    for x in samples(dtype):
        y = getattr(F, name)(torch.empty_like(x).copy_(x))
        codes = ops.stepwise_codes(y, [-0.1], False)  # any bits: both must read them alike
        grad = torch.ones_like(y)  # NaN payloads of products are not specified
        result = ops.invertible_backward(grad, y, codes, name)
        assert torch.equal(
            result.nan_to_num(7), aten(ops.invertible_backward, grad, y, codes, name).nan_to_num(7)
        )
        written = grad.clone()
        aten(ops.invertible_backward_, written, y, codes, name)
        ops.invertible_backward_(grad, y, codes, name)
        assert torch.equal(grad.nan_to_num(7), written.nan_to_num(7))
        assert torch.equal(grad.nan_to_num(7), result.nan_to_num(7))


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_sizes_of_codes_up_to_2_to_the_33(bits):
    table = table_for("gelu", {}, bits)
    for size in (2**31, 2**32 + 1, 2**33):
        x = torch.empty(size, dtype=torch.bfloat16, device="meta")
        y, codes = ops.fewbit_forward(x, "gelu", [], table.borders, table.even)
        assert y.shape == x.shape and codes.numel() == -(-size // 512) * 16 * bits
        result = ops.stepwise_backward(x, codes, table.levels, x.stride())
        assert result.shape == x.shape


@pytest.mark.skipif(
    not os.environ.get("SLIMGRAD_LONG_TESTS"),
    reason="takes 10 GiB: set SLIMGRAD_LONG_TESTS=1",
)
def test_more_than_2_to_the_32_elements():
    """In place on bfloat16, so that what lies behind 2^32 can be compared with a short tensor."""
    size, tail = 2**32 + 1300, 5000
    x = torch.empty(size, dtype=torch.bfloat16)
    x[:tail] = 1
    end = torch.randn(tail).to(torch.bfloat16)
    x[-tail:] = end
    table = table_for("silu", {}, 1)
    codes = ops.fewbit_forward_(x, "silu", [], table.borders, table.even)
    assert codes.numel() == -(-size // 512) * 16
    assert torch.equal(x[-tail:], F.silu(end))
    x[-tail:] = 1
    ops.stepwise_backward_(x, codes, table.levels)
    level = torch.tensor(table.levels)[(end.float() > table.borders[0]).long()]
    assert torch.equal(x[-tail:], level.to(torch.bfloat16))
