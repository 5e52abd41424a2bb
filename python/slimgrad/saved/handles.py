"""What autograd holds in place of a tensor: packed words, or the tensor itself."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .._library import ops
from .settings import EXACT

CAST = "cast"  # beside numbers of bits and "exact": the same values in a type as small as they need

Kind = tuple[int | str, int, torch.dtype]  # bits, "exact" or "cast"; group; of what


def _check_version(holder: torch.Tensor, saved: int, tensor: str) -> None:
    """torch compares versions of what it saves itself, and not where hooks save it."""
    if holder._version != saved:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{tensor}] is at version {holder._version}; expected version {saved} "
            "instead. (slimgrad packed it when it was saved.)"
        )


def _refuse_second_derivatives() -> None:
    if torch.is_grad_enabled() and torch._C._current_graph_task_id() != -1:
        raise RuntimeError(
            "[saved_tensors] expected backward without create_graph=True, as second derivatives of "
            "rounded values would be approximate in silence: keep this part with bits='exact'"
        )


def _described(dtype: torch.dtype, size: tuple[int, ...]) -> str:
    return f"{dtype} {list(size)}"


class Words:
    """The values of a piece of memory, packed once for all that save it.

    storage: a weak reference to where they were. While it is there no other storage can have its
    place in memory, so that a piece is never taken for another one that came after it.
    is_rounded: whether other values come back than were saved.
    """

    __slots__ = ("__weakref__", "bits", "group", "is_rounded", "storage", "tensor", "version")

    def __init__(self, plain: torch.Tensor, tensor: torch.Tensor, bits: int | str, group: int):
        self.tensor = tensor
        self.bits = bits
        self.group = group
        self.is_rounded = plain.is_floating_point() if bits == CAST else bits != EXACT
        self.version = plain._version
        self.storage = StorageWeakRef(plain.untyped_storage())
        ops.share_version(tensor, plain)  # tensor._version is from now on that of ``plain``


class Packed:
    """A tensor as words, with its shape."""

    __slots__ = ("dtype", "size", "stride", "words")

    def __init__(self, words: Words, plain: torch.Tensor, stride: list[int]):
        self.words = words
        self.size = plain.size()
        self.stride = stride
        self.dtype = plain.dtype

    def unpack(self) -> torch.Tensor:
        words = self.words
        if words.tensor._version != words.version:
            _check_version(words.tensor, words.version, _described(self.dtype, self.size))
        if words.is_rounded:
            _refuse_second_derivatives()
        if words.bits == CAST:
            return words.tensor.to(self.dtype).as_strided(self.size, self.stride)
        if words.bits == EXACT:
            return ops.unpack_exact(words.tensor, self.size, self.stride, self.dtype)
        return ops.unpack_saved(
            words.tensor, self.size, self.stride, self.dtype, words.bits, words.group
        )


class Plain:
    """A tensor as it is. Detached, because what holds an output of its own node never dies."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor if tensor.grad_fn is None else tensor.detach()
        self.version = tensor._version

    def unpack(self) -> torch.Tensor:
        if self.tensor._version != self.version:
            size = tuple(self.tensor.shape)
            _check_version(self.tensor, self.version, _described(self.tensor.dtype, size))
        return self.tensor


class Copied:
    """A small piece of a large storage, copied: kept as it is it would keep all of it."""

    __slots__ = ("holder", "tensor", "version")

    def __init__(self, plain: torch.Tensor):
        self.tensor = plain.clone(memory_format=torch.preserve_format)
        self.holder = torch.empty(0)
        self.version = plain._version
        ops.share_version(self.holder, plain)

    def unpack(self) -> torch.Tensor:
        if self.holder._version != self.version:
            size = tuple(self.tensor.shape)
            _check_version(self.holder, self.version, _described(self.tensor.dtype, size))
        return self.tensor


Handle = Packed | Plain | Copied
