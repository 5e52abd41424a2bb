"""Frames: every tensor comes back as it was sent; what no writer writes is refused by name."""

import dataclasses
import struct
import zlib

import pytest
import torch

import slimgrad as sg
from slimgrad.distributed import frames
from slimgrad.distributed.frames import (
    ACTIVATION,
    GRADIENT,
    HEADER_BYTES,
    PACKED,
    PAYLOAD,
    SCALED,
    frame_of,
    grid_frame,
    header_bytes,
    parse_header,
    payload_frame,
    reason_of,
    refusal,
    tensor_of,
)


def sent(x, make=frame_of, **options):
    header, body = make(x, ACTIVATION, 3, **options)
    return parse_header(header_bytes(header)), body


def tensors():
    torch.manual_seed(0)
    x = torch.randn(4, 3, 5, 6)
    yield "contiguous", x
    yield "channels_last", x.to(memory_format=torch.channels_last)
    yield "transposed", torch.randn(7, 9).t()
    yield "permuted", x.permute(3, 0, 2, 1)
    yield "with gaps", torch.randn(8, 8)[::2, 1:5]
    yield "expanded", torch.randn(1, 4).expand(5, 4)
    yield "one", torch.tensor(2.5)
    yield "empty", torch.empty(3, 0, 2)
    yield "bfloat16", x.bfloat16()
    yield "float16", x.half()
    yield "float64", x.double()
    yield "tokens", torch.arange(12).reshape(3, 4)
    yield "mask", torch.rand(3, 4) > 0.5


@pytest.mark.parametrize(
    ("name", "x"), list(tensors()), ids=lambda value: value if isinstance(value, str) else ""
)
@pytest.mark.parametrize("coding", ["plain", "lossless"])
def test_values_types_and_memory_order_come_back(name, x, coding):
    if coding == "lossless" and x.dtype not in (*frames._TYPES[:4], torch.int8):
        pytest.skip("payloads have no such type")
    how = {"make": payload_frame, "mode": "lossless"} if coding == "lossless" else {}
    header, body = sent(x, **how)
    back = tensor_of(header, body)
    assert back.dtype == x.dtype and torch.equal(back, x)
    assert (header.shape, header.serial) == (tuple(x.shape), 3)
    if name not in ("with gaps", "expanded", "empty"):
        assert back.stride() == x.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("format", ["1-4-3", "1-2-3", "1-1-1", "1-4-1", "1-3-0", "1-1-6"])
def test_values_of_a_grid_come_back_exactly_and_short(format, dtype):
    """Also where the smallest of them was rounded down by its type."""
    torch.manual_seed(1)
    x = (torch.randn(100, 60) * 2).to(dtype)
    limit = x.numel() * sg.FloatFormat(format).bits / 8
    for scale in (0.25, 0.1, 1 / 3, 0.7, 0.0123, 1.1):
        values = sg.quantize(x, format, scale, "stochastic", "stochastic", seed=4)
        for packed in (False, True):
            header, body = sent(values, grid_frame, format=format, scale=scale, packed=packed)
            assert torch.equal(tensor_of(header, body), values), (scale, packed)
            if format != "1-1-6" or dtype != torch.bfloat16:  # whose values bfloat16 runs together
                assert header.coding != PAYLOAD or dtype == torch.float32, scale
                assert len(body) <= (limit if packed else 1.05 * limit + 64), scale


def test_every_flipped_bit_of_a_header_is_noticed():
    header, _ = frame_of(torch.randn(3, 4), GRADIENT, 5)
    data = header_bytes(header)
    for position in range(8 * HEADER_BYTES):
        damaged = data.clone()
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(sg.PayloadError):
            parse_header(damaged)


@pytest.mark.parametrize("options", [{}, {"make": payload_frame}], ids=["plain", "lossless"])
def test_every_flipped_byte_of_a_body_is_noticed(options):
    header, body = sent(torch.randn(5, 4), **options)
    for position in range(len(body)):
        damaged = body.clone()
        damaged[position] ^= 0x10
        with pytest.raises(sg.PayloadError):
            tensor_of(header, damaged)


def forged(**changes):
    """A header that says something else, with a checksum that fits."""
    header, _ = frame_of(torch.randn(3, 4), GRADIENT, 5)
    return header_bytes(dataclasses.replace(header, **changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"nbytes": 1 << 50},
            r"announces 1125899906842624 bytes, plain, for float32 of shape \[3, 4",
        ),
        ({"shape": (1 << 40, 4)}, "announces 48 bytes, plain"),
        ({"coding": PAYLOAD, "nbytes": 4000}, "announces 4000 bytes, payload"),
        ({"coding": "text"}, "do not go together"),
        ({"kind": "refusal"}, "do not go together"),
        ({"coding": PACKED, "scale": 0.0, "format": sg.FloatFormat("1-4-3")}, "scale 0.0"),
        ({"order": (1, 1)}, "dimensions that no writer writes"),
        ({"shape": (0, (1 << 64) - 1), "nbytes": 0}, "dimensions that no writer writes"),
        ({"shape": (1 << 62, 0), "nbytes": 0}, "dimensions that no writer writes"),
        ({"coding": PACKED, "scale": 1.0}, "a format that there is not"),
        ({"coding": SCALED, "scale": float("nan"), "format": sg.FloatFormat("1-4-3")}, "scale nan"),
    ],
    ids=str,
)
def test_a_forged_header_is_refused_by_name(changes, says):
    with pytest.raises(sg.PayloadError, match=says):
        parse_header(forged(**changes))


def test_codes_that_no_writer_writes_are_refused():
    data = bytearray(forged().numpy().tobytes())
    for offset, says in ((5, "a code that"), (6, "a code that"), (7, "a code that"), (8, "dimens")):
        changed = bytearray(data)
        changed[offset] = 77
        changed[-4:] = struct.pack("<I", zlib.crc32(changed[:-4]))
        with pytest.raises(sg.PayloadError, match=says):
            parse_header(torch.frombuffer(changed, dtype=torch.uint8))


def test_another_version_is_refused_with_both():
    data = forged()
    data[4] = 9
    with pytest.raises(sg.PayloadError, match="has version 9, this side reads version 1"):
        parse_header(data)


def test_a_payload_of_something_else_is_refused():
    header, _ = sent(torch.randn(3, 4), payload_frame)
    other = sg.encode(torch.randn(4, 3))
    with pytest.raises(sg.PayloadError, match=r"is torch.float32 of shape \[4, 3\], the header"):
        tensor_of(header, other)


def test_infinities_are_no_values_of_a_grid():
    x = sg.quantize(torch.randn(30), "1-4-3", 1 / 3)
    header, _ = sent(x, grid_frame, format="1-4-3", scale=1 / 3, packed=False)
    with pytest.raises(sg.PayloadError, match="NaN"):
        tensor_of(header, sg.encode(torch.full((30,), float("nan"))))


def test_a_refusal_has_its_reason():
    header, body = refusal("because", 4)
    assert reason_of(parse_header(header_bytes(header)), body) == "because"


def test_what_has_no_frame_is_refused():
    with pytest.raises(ValueError, match="expected a tensor of at most 8 dimensions"):
        frame_of(torch.zeros(2, dtype=torch.complex64), ACTIVATION, 0)
    with pytest.raises(ValueError, match="expected a tensor of at most 8 dimensions"):
        frame_of(torch.zeros([1] * 9), ACTIVATION, 0)
