"""A tensor between two stages as a frame: a header of fixed size and a body.

The receiver reads the header first, and from it the size of the body. All integers are
little-endian.

    4  magic, 0x8d "SGB"          1  version
    1  kind: activation, gradient, refusal
    1  coding: the values as they are, a payload (docs/format.md), packed codes, a payload of
       float32 that has the values divided by the scale, text
    1  type                       1  number of dimensions, at most 8
    1  whether a gradient is expected back
    2  exponent and mantissa bits of codes
    8  the dimensions from the slowest in memory to the fastest
    8  scale of codes, float64
    8  serial number              8  bytes of the body
   64  the shape
    4  CRC-32 of the body (a payload has a checksum of its own, and 0 here)
    4  CRC-32 of the header so far

A checksum detects damage; it is not a signature. The header is compared with what is expected
before anything is allocated.
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..tensors.coding import PayloadError, checked, decode, encode, inspect
from ..tensors.formats import FloatFormat, as_format
from ..tensors.quantization import PackedTensor, pack

VERSION = 1
_MAGIC = b"\x8dSGB"
_FIELDS = struct.Struct("<4s8B8sdQQ8QI")
_CHECK = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CHECK.size
_MOST_DIMENSIONS = 8
_MOST_TEXT = 2000

ACTIVATION, GRADIENT, REFUSAL = KINDS = ("activation", "gradient", "refusal")
PLAIN, PAYLOAD, PACKED, SCALED, TEXT = _CODINGS = ("plain", "payload", "packed", "scaled", "text")
_TYPES = (
    *(torch.float32, torch.bfloat16, torch.float16, torch.float64),
    *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool),
)
_TYPES_OF_CODES = _TYPES[:3]
PAYLOAD_SLACK = 64  # A payload is never longer than its tensor by more.


@dataclass(frozen=True)
class Header:
    kind: str
    coding: str = PLAIN
    dtype: torch.dtype = torch.uint8
    shape: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    wants_gradient: bool = False
    format: FloatFormat | None = None
    scale: float = 0.0
    serial: int = 0
    nbytes: int = 0
    body_check: int = 0

    @property
    def plain_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def grid(self) -> FloatFormat:
        """REQUIRES: codes of one, PACKED or SCALED."""
        assert self.format is not None
        return self.format

    def describe(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} of shape {list(self.shape)}"


Frame = tuple[Header, torch.Tensor]  # the body: uint8, one dimension, on the CPU


# ---- tensors ------------------------------------------------------------------------------------


def memory_order(x: torch.Tensor) -> tuple[int, ...]:
    """The dimensions from the slowest to the fastest, if the values fill their memory without gaps
    (channels_last, a transpose); else as they are."""
    order = sorted(range(x.dim()), key=lambda i: (-x.stride()[i], i))
    return tuple(order) if x.permute(order).is_contiguous() else tuple(range(x.dim()))


def _in_order(x: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    return x.detach().permute(order).contiguous().cpu()


def _out_of_order(x: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    return x.permute([order.index(i) for i in range(len(order))])


def _bytes_of(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1).view(torch.uint8) if x.numel() else torch.empty(0, dtype=torch.uint8)


def _crc(data: torch.Tensor) -> int:
    return zlib.crc32(data.numpy().data) if data.numel() else 0


def frame_of(x: torch.Tensor, kind: str, serial: int, *, wants_gradient: bool = False) -> Frame:
    """``x`` as it is."""
    header, values = _start(x, kind, serial, wants_gradient)
    body = _bytes_of(values)
    return replace(header, nbytes=body.numel(), body_check=_crc(body)), body


def payload_frame(
    x: torch.Tensor, kind: str, serial: int, *, wants_gradient: bool = False, **options
) -> Frame:
    """``x`` as encode(x, **options)."""
    header, values = _start(x, kind, serial, wants_gradient)
    body = encode(values, **options)
    return replace(header, coding=PAYLOAD, nbytes=body.numel()), body


def grid_frame(
    x: torch.Tensor,
    kind: str,
    serial: int,
    format: FloatFormat | str,
    scale: float,
    *,
    packed: bool,
    wants_gradient: bool = False,
) -> Frame:
    """What quantize(_, format, scale) returned, exactly, at no more bits than the format has."""
    options: dict[str, Any] = {
        "kind": kind,
        "serial": serial,
        "wants_gradient": wants_gradient,
    }
    format = as_format(format, "FloatFormat")
    if not packed and x.dtype == torch.float32 and _is_exact(format, scale):
        # Values of the grid round to themselves.
        return payload_frame(x, **options, mode="float", format=format, scale=scale)
    header, values = _start(x, **options)
    # Rounded to its type, the smallest value of the grid may lie below it, where zero begins.
    lowered = scale * (1 - torch.finfo(x.dtype).eps / 2)
    codes = PackedTensor(pack(values, format, lowered).data, values.shape, x.dtype, format, scale)
    header = replace(header, coding=PACKED, format=format, scale=codes.scale)
    if torch.equal(codes.unpack(), values):
        if packed:
            return replace(header, nbytes=codes.nbytes, body_check=_crc(codes.data)), codes.data
        # A payload has scales of float32 only, and values of the tensor's type: here 1, float32.
        body = encode(_at_one(codes), mode="float", format=format, scale=1.0)
        header = replace(header, coding=SCALED, nbytes=body.numel())
        if _fits(header):
            return header, body
    return payload_frame(x, **options, mode="lossless")


def _start(x: torch.Tensor, kind: str, serial: int, wants_gradient: bool):
    """A header without a body, and the values in the order in which they are sent."""
    if x.dtype not in _TYPES or x.dim() > _MOST_DIMENSIONS:
        raise ValueError(
            f"[boundary] expected a tensor of at most {_MOST_DIMENSIONS} dimensions and of one of "
            f"the types {', '.join(str(t) for t in _TYPES)}, got {x.dtype} of {x.dim()}"
        )
    order = memory_order(x)
    header = Header(kind, PLAIN, x.dtype, tuple(x.shape), order, wants_gradient, serial=serial)
    return header, _in_order(x, order)


def _is_exact(format: FloatFormat, scale: float) -> bool:
    """Whether all values of the grid are numbers of float32."""
    smallest = scale * format.values()[1]
    return torch.tensor(scale, dtype=torch.float32).item() == scale and smallest >= 2.0**-126


def _at_one(codes: PackedTensor) -> torch.Tensor:
    return PackedTensor(codes.data, codes.shape, torch.float32, codes.format, 1.0).unpack()


def refusal(reason: str, serial: int) -> Frame:
    text = bytearray(reason.encode()[:_MOST_TEXT])
    body = torch.frombuffer(text, dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)
    header = Header(REFUSAL, TEXT, serial=serial, nbytes=body.numel(), body_check=_crc(body))
    return header, body


def reason_of(header: Header, body: torch.Tensor) -> str:
    _check_body(header, body)
    return bytes(body.numpy()).decode(errors="replace")


def tensor_of(header: Header, body: torch.Tensor) -> torch.Tensor:
    """The tensor of a frame whose header was expected. Damaged bytes raise PayloadError."""
    shape = tuple(header.shape[i] for i in header.order)
    if header.coding in (PAYLOAD, SCALED):
        dtype = torch.float32 if header.coding == SCALED else header.dtype
        info = inspect(body)
        if info["dtype"] != dtype or tuple(info["shape"]) != shape:
            raise PayloadError(
                f"the payload is {info['dtype']} of shape {list(info['shape'])}, the header in "
                f"front of it says {dtype} of shape {list(shape)}"
            )
        values = decode(body)
        if header.coding == SCALED:
            values = _scaled(values, header)
        return _out_of_order(values, header.order)
    _check_body(header, body)
    if header.coding == PACKED:
        packed = PackedTensor(body, torch.Size(shape), header.dtype, header.grid, header.scale)
        return _out_of_order(checked(packed.unpack), header.order)
    values = torch.empty(shape, dtype=header.dtype)
    _bytes_of(values).copy_(body)
    return _out_of_order(values, header.order)


def _scaled(values: torch.Tensor, header: Header) -> torch.Tensor:
    try:
        codes = pack(values, header.grid, 1.0).data
    except ValueError as error:  # NaN and Inf have no codes
        raise PayloadError(str(error)) from None
    return PackedTensor(codes, values.shape, header.dtype, header.grid, header.scale).unpack()


def _check_body(header: Header, body: torch.Tensor) -> None:
    if _crc(body) != header.body_check:
        raise PayloadError("the checksum of the body does not fit")


# ---- headers ------------------------------------------------------------------------------------


def _padded(values: tuple[int, ...]) -> tuple[int, ...]:
    return values + (0,) * (_MOST_DIMENSIONS - len(values))


def header_bytes(header: Header) -> torch.Tensor:
    fields = _FIELDS.pack(
        _MAGIC,
        VERSION,
        KINDS.index(header.kind),
        _CODINGS.index(header.coding),
        _TYPES.index(header.dtype),
        len(header.shape),
        header.wants_gradient,
        header.format.exponent_bits if header.format else 0,
        header.format.mantissa_bits if header.format else 0,
        bytes(_padded(header.order)),
        header.scale,
        header.serial,
        header.nbytes,
        *_padded(header.shape),
        header.body_check,
    )
    return torch.frombuffer(bytearray(fields + _CHECK.pack(zlib.crc32(fields))), dtype=torch.uint8)


def parse_header(data: torch.Tensor) -> Header:
    """The header from the bytes that header_bytes() wrote; PayloadError for any other."""
    raw = bytes(data.numpy())
    if len(raw) != HEADER_BYTES or raw[:4] != _MAGIC:
        raise PayloadError("this is no frame of a boundary")
    if raw[4] != VERSION:
        raise PayloadError(f"the frame has version {raw[4]}, this side reads version {VERSION}")
    (check,) = _CHECK.unpack(raw[-_CHECK.size :])
    if zlib.crc32(raw[: -_CHECK.size]) != check:
        raise PayloadError("the checksum of the header does not fit")
    _, _, kind, coding, dtype, dims, wants, exponent, mantissa, order, scale, *rest = (
        _FIELDS.unpack(raw[: -_CHECK.size])
    )
    serial, nbytes, *shape, body_check = rest
    if kind >= len(KINDS) or coding >= len(_CODINGS) or dtype >= len(_TYPES) or wants > 1:
        raise PayloadError("the header has a code that no writer writes")
    # Strides are products of lengths, also where a length is 0.
    largest = math.prod(max(length, 1) for length in shape[:dims])
    if (
        dims > _MOST_DIMENSIONS
        or sorted(order[:dims]) != list(range(dims))
        or largest * _TYPES[dtype].itemsize >= 1 << 63
    ):
        raise PayloadError("the header has dimensions that no writer writes")
    header = Header(
        KINDS[kind],
        _CODINGS[coding],
        _TYPES[dtype],
        tuple(shape[:dims]),
        tuple(order[:dims]),
        bool(wants),
        _format(exponent, mantissa) if _CODINGS[coding] in (PACKED, SCALED) else None,
        scale,
        serial,
        nbytes,
        body_check,
    )
    _check_size(header)
    return header


def _format(exponent_bits: int, mantissa_bits: int) -> FloatFormat:
    try:
        return FloatFormat(f"1-{exponent_bits}-{mantissa_bits}")
    except ValueError as error:
        raise PayloadError(f"the header has a format that there is not: {error}") from None


def _check_size(header: Header) -> None:
    """A body is as long as its kind and shape allow: nothing else is ever received."""
    if (header.kind == REFUSAL) != (header.coding == TEXT):
        raise PayloadError("the header has a kind and a coding that do not go together")
    if header.format is not None and not (
        0 < header.scale < math.inf and header.dtype in _TYPES_OF_CODES
    ):
        raise PayloadError(f"codes cannot have scale {header.scale} and type {header.dtype}")
    if not _fits(header):
        raise PayloadError(
            f"the header announces {header.nbytes} bytes, {header.coding}, for {header.describe()}"
        )


def _fits(header: Header) -> bool:
    if header.coding == TEXT:
        return header.nbytes <= _MOST_TEXT
    if header.coding in (PAYLOAD, SCALED):
        return header.nbytes <= header.plain_bytes + PAYLOAD_SLACK
    if header.coding == PACKED:
        return header.nbytes == (math.prod(header.shape) * header.grid.bits + 7) // 8
    return header.nbytes == header.plain_bytes
