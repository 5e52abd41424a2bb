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
from .coding import Payload, bytes_of, checked, encode, encode_arguments

_OPTIONS = tuple(name for name in inspect.signature(encode).parameters if name not in ("x", "out"))


def _bytes_of_file(file: str | os.PathLike | Payload) -> torch.Tensor:
    """All bytes as a uint8 tensor. A path is mapped: its bytes come when they are decoded."""
    if not isinstance(file, str | os.PathLike):
        return bytes_of(file, "load", "a path, or a file")
    with open(file, "rb") as opened:
        if os.fstat(opened.fileno()).st_size == 0:
            return torch.empty(0, dtype=torch.uint8)
        return bytes_of(memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)), "load")


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
    if max_bytes is not None:
        whole_number(max_bytes, "load", "max_bytes")
    with in_the_name_of("load"):
        names, tensors = checked(ops.load_file, _bytes_of_file(file), max_bytes)
    return tensors[0] if len(tensors) > len(names) else dict(zip(names, tensors, strict=True))


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
    """The bytes of a file."""
    for name, x in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"[save] expected names to be strings, got {type(name).__name__}")
        tensor_with_values(x, "save", repr(name))
    if not isinstance(metadata, Mapping | None):
        raise TypeError(f"[save] expected metadata to be a dict, got {type(metadata).__name__}")
    words = [] if metadata is None else list(itertools.chain(*metadata.items()))
    if not all(isinstance(word, str) for word in words):
        raise TypeError("[save] expected metadata to be a dict of strings, got other values")
    parameters = inspect.signature(encode).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.name not in ("x", "out")}
    return ops.file_parts(
        list(tensors.values()),
        list(tensors),
        words,
        metadata is not None,
        *encode_arguments("save", **defaults | options),
    )
