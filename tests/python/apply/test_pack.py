"""pack and unpack: every code, sizes, the layout of bits, registration, errors."""

import math

import numpy as np
import pytest
import torch
from apply_samples import DTYPES, FORMATS, aten, gradient, layouts, same, with_specials

import slimgrad as sg

ops = torch.ops.slimgrad


def name_of(format):
    return f"1-{format[0]}-{format[1]}"


def bits_of(data, bits, count):
    """The codes, from the definition: one little-endian string of bits."""
    string = np.unpackbits(data.numpy(), bitorder="little")[: bits * count]
    return string.reshape(count, bits) @ (1 << np.arange(bits))


@pytest.mark.parametrize("format", FORMATS, ids=name_of)
def test_every_code(format):
    """Each value of the format, in both signs, has the code of its fields and comes back."""
    e, m = format
    bits = 1 + e + m
    values = torch.tensor(sg.FloatFormat(name_of(format)).values())
    packed = sg.pack(torch.cat([values, -values]), name_of(format), 1.0)
    positive = np.concatenate([[0], np.arange(2**m, 2 ** (e + m))])
    negative = np.where(positive == 0, 0, positive + 2 ** (e + m))
    codes = bits_of(packed.data, bits, 2 * values.numel())
    np.testing.assert_array_equal(codes, np.concatenate([positive, negative]))
    back = packed.unpack()
    assert torch.equal(back, torch.cat([values, -values]))
    assert not torch.signbit(back[back == 0]).any()


@pytest.mark.parametrize("format", FORMATS, ids=name_of)
@pytest.mark.parametrize("dtype", DTYPES)
def test_unpacked_is_quantized(format, dtype):
    for shape in [(3, 5, 7), (1,), (0, 4), (), (10007,)]:
        x = gradient(shape, dtype=dtype)
        arguments = (name_of(format), 0.3, "stochastic", "stochastic", 6)
        packed = sg.pack(x, *arguments)
        bits = 1 + sum(format)
        assert packed.nbytes == -(-x.numel() * bits // 8)
        assert packed.shape == x.shape and packed.dtype == dtype
        assert same(packed.unpack(), sg.quantize(x, *arguments))


def test_four_bits_are_two_a_byte_and_six_bits_four_in_three():
    x = torch.randn(1000)
    assert sg.pack(x, "1-2-1", 1.0).nbytes == 500
    assert sg.pack(x, "1-3-2", 1.0).nbytes == 750


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", range(2, 9))
def test_aten_implementation_gives_the_same_bytes(dtype, bits):
    format = (bits - 1, 0) if bits < 5 else (3, bits - 4)
    for x in [gradient((7003,), dtype=dtype), *layouts(dtype).values()]:
        arguments = (*format, 0.3, "stochastic", "stochastic", 12)
        packed = ops.pack(x, *arguments)
        assert torch.equal(packed, aten(ops.pack, x, *arguments))
        back = (packed, x.shape, *format, 0.3, dtype)
        assert same(ops.unpack(*back), aten(ops.unpack, *back))


def test_other_types_on_the_way_back():
    packed = sg.pack(gradient((100,)), "1-3-2", 0.5)
    for dtype in DTYPES:
        assert torch.equal(packed.unpack(dtype).float(), packed.unpack())


def test_order_is_that_of_the_dimensions():
    x = layouts()["channels_last"]
    assert torch.equal(sg.pack(x, "1-3-2", 0.5).unpack(), sg.quantize(x, "1-3-2", 0.5))


def test_any_bytes_decode_to_finite_values():
    data = torch.randint(0, 256, (7 * 64,), dtype=torch.uint8)
    for e, m in FORMATS:
        count = data.numel() * 8 // (1 + e + m)
        used = data[: -(-count * (1 + e + m) // 8)]
        for dtype in DTYPES:
            y = ops.unpack(used, [count], e, m, 1e4, dtype)
            assert torch.isfinite(y).all()


def test_opcheck_and_compile():
    x = gradient((30, 7))
    arguments = (3, 2, 0.5, "nearest", "zero", 0)
    torch.library.opcheck(ops.pack.default, (x, *arguments))
    packed = ops.pack(x, *arguments)
    torch.library.opcheck(ops.unpack.default, (packed, [30, 7], 3, 2, 0.5, torch.float32))

    def round_trip(x):
        return sg.pack(x * 2, "1-3-2", 0.5).unpack() + 1

    assert torch.equal(torch.compile(round_trip, fullgraph=True)(x), round_trip(x))


def test_errors():
    x = with_specials(gradient((100,)))
    for call in (
        lambda: sg.pack(x, "1-3-2", 0.5),
        lambda: aten(ops.pack, x, 3, 2, 0.5, "nearest", "zero", 0),
    ):
        with pytest.raises(
            ValueError, match=r"\[pack\] expected finite values.* got 3 that are not"
        ):
            call()
    with pytest.raises(ValueError, match=r"\[pack\] expected x of type float32"):
        sg.pack(torch.arange(3), "1-3-2", 0.5)
    for scale in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=r"\[pack\] expected a positive scale"):
            sg.pack(torch.ones(3), "1-3-2", scale)
    data = torch.zeros(3, dtype=torch.uint8)
    good = (data, [4], 3, 2, 1.0, torch.float32)
    assert ops.unpack(*good).shape == (4,)
    for unpack in (ops.unpack, lambda *arguments: aten(ops.unpack, *arguments)):
        with pytest.raises(ValueError, match=r"\[unpack\] expected ceil\(values \* bits / 8\)"):
            unpack(data, [5], *good[2:])
        with pytest.raises(ValueError, match=r"\[unpack\] expected packed bytes as a uint8"):
            unpack(data.int(), *good[1:])
        with pytest.raises(ValueError, match=r"\[unpack\] expected dtype to be float32"):
            unpack(*good[:5], torch.float64)
        with pytest.raises(ValueError, match=r"\[FloatFormat\] expected"):
            unpack(data, [4], 0, 2, 1.0, torch.float32)
