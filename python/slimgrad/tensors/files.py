"""load and save: .sg files, of one tensor or of several with names. docs/format.md has them."""

from __future__ import annotations

import inspect
import itertools
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .._library import ops
from .._support import in_the_name_of, tensor_with_values, whole_number
from .coding import Payload, PayloadError, bytes_of, checked, decode, encode

# Names as in .safetensors files. Tensors of the first five types are encoded as such, those of the
# others as bytes.
_TYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F64": torch.float64,
    "I8": torch.int8,
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_PAYLOAD_TYPES = ("F32", "BF16", "F16", "F64", "I8")
_LOSSY_TYPES = ("F32", "BF16", "F16")
_MAGIC = b"\x8dSGC"
_NO_LIMIT = 1 << 60
_OPTIONS = tuple(name for name in inspect.signature(encode).parameters if name not in ("x", "out"))


def _bytes_of_file(file: str | os.PathLike | Payload) -> torch.Tensor:
    """All bytes as a uint8 tensor. A path is mapped: its bytes come when they are decoded."""
    if not isinstance(file, str | os.PathLike):
        data = bytes_of(file, "load", "a path, or a file")
        if data.dtype != torch.uint8 or data.dim() != 1:
            raise ValueError(
                "[load] expected a file as a uint8 tensor of one dimension, got "
                f"{data.dtype} with {data.dim()}"
            )
        return data
    with open(file, "rb") as opened:
        if os.fstat(opened.fileno()).st_size == 0:
            return torch.empty(0, dtype=torch.uint8)
        return bytes_of(memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)), "load")


def _entries(file: torch.Tensor, max_bytes: int | None):
    """name, type, shape, payload and size of every tensor of a container."""
    names, types, num_dims, lengths, offsets, sizes, num_bytes = checked(
        ops.container_index, file, _NO_LIMIT if max_bytes is None else min(max_bytes, _NO_LIMIT)
    )
    length = iter(lengths)
    shapes = [list(itertools.islice(length, count)) for count in num_dims]
    payloads = [file[at : at + size] for at, size in zip(offsets, sizes, strict=True)]
    return list(zip(names, types, shapes, payloads, num_bytes, strict=True))


def _tensor_of(name: str, kind: str, shape: list[int], payload: torch.Tensor) -> torch.Tensor:
    values = checked(ops.decode, payload)
    if kind in _PAYLOAD_TYPES:
        return values
    return values.view(_TYPES[kind]).reshape(shape)


def load(
    file: str | os.PathLike | Payload, *, max_bytes: int | None = None
) -> torch.Tensor | dict[str, torch.Tensor]:
    """What is in a .sg file: a tensor, or a dict of tensors if several with names were encoded.

    ``file`` is a path, or all bytes of the file as ``decode`` takes them. ``slimgrad encode``
    writes several tensors from a .safetensors file, ``save`` from a dict. Damage raises
    ``PayloadError``.

    ``max_bytes``: refuse a file whose tensors would together take more, before any of them is
    allocated; see ``decode``. Names, shapes and metadata may take as much again, and 64 KiB.
    """
    data = _bytes_of_file(file)
    if bytes(data[: len(_MAGIC)].tolist()) != _MAGIC:
        with in_the_name_of("load"):
            return decode(data, max_bytes=max_bytes)
    if max_bytes is not None:
        whole_number(max_bytes, "load", "max_bytes")
    entries = _entries(data, max_bytes)
    announced = sum(num_bytes for *_, num_bytes in entries)
    if max_bytes is not None and announced > max_bytes:
        raise PayloadError(
            f"[load] expected at most max_bytes={max_bytes} of values, got {announced} bytes"
        )
    for name, kind, *_ in entries:
        if kind not in _TYPES:
            raise PayloadError(f"[load] expected types that torch has, got {kind} of {name!r}")
    return {
        name: _tensor_of(name, kind, shape, payload) for name, kind, shape, payload, _ in entries
    }


def _payload(name: str, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    if _NAMES[x.dtype] not in _LOSSY_TYPES:
        options = {"coder": options["coder"]} if "coder" in options else {}
    if _NAMES[x.dtype] not in _PAYLOAD_TYPES:
        x = x.contiguous().reshape(-1).view(torch.int8)
    try:
        return encode(x, **options)
    except ValueError as error:
        raise ValueError(f"{error} in {name!r}") from None


def save(
    tensors: torch.Tensor | Mapping[str, torch.Tensor],
    path: str | os.PathLike,
    *,
    metadata: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Writes a .sg file, which ``load`` and ``slimgrad decode`` read.

    ``tensors`` is one tensor, or a dict of them with their names, such as a ``state_dict``.
    ``options`` are those of ``encode``; by default every bit comes back. In other modes tensors of
    types that these do not take (float64, integers, ...) are coded without loss. ``metadata``: a
    dict of strings, for several tensors. The file appears under its name when it is complete.
    """
    path = Path(path)
    if unknown := sorted(options.keys() - _OPTIONS):
        raise TypeError(f"[save] expected options of encode ({', '.join(_OPTIONS)}), got {unknown}")
    with in_the_name_of("save"):
        if isinstance(tensors, Mapping):
            parts = _container(tensors, metadata, options)
        elif metadata is not None:
            raise ValueError("[save] expected a dict of tensors with metadata, got one tensor")
        else:
            parts = [encode(tensor_with_values(tensors, "save", "tensors"), **options)]
    unfinished = path.with_name(f"{path.name}.part.{os.getpid()}")
    try:
        with open(unfinished, "xb") as file:
            for part in parts:
                file.write(part.numpy().data)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _container(
    tensors: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str] | None,
    options: dict[str, Any],
) -> list[torch.Tensor]:
    for name, x in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"[save] expected names to be strings, got {type(name).__name__}")
        if tensor_with_values(x, "save", repr(name)).dtype not in _NAMES:
            raise ValueError(f"[save] expected a type that .safetensors has, got {x.dtype}")
    if not isinstance(metadata, Mapping | None):
        raise TypeError(f"[save] expected metadata to be a dict, got {type(metadata).__name__}")
    words = [] if metadata is None else list(itertools.chain(*metadata.items()))
    if not all(isinstance(word, str) for word in words):
        raise TypeError("[save] expected metadata to be a dict of strings, got other values")
    payloads = [_payload(name, x.detach().cpu(), options) for name, x in tensors.items()]
    header = ops.container_header(
        list(tensors),
        [_NAMES[x.dtype] for x in tensors.values()],
        [x.dim() for x in tensors.values()],
        list(itertools.chain(*(x.shape for x in tensors.values()))),
        [payload.numel() for payload in payloads],
        metadata is not None,
        words,
    )
    return [header, *payloads]
