"""The hooks that autograd calls for what it saves, and what they remember."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from .._library import ops
from .._support import counter, current_stream, derive_seed, records_plain_model
from . import rules
from .handles import CAST, Copied, Handle, Packed, Plain, Words
from .settings import EXACT, Saved
from .tally import Tally

Observer = Callable[[torch.Tensor, Handle, str | None], None]

DRAWS = "draws"

_local = threading.local()  # .observers: whoever measures what is saved in this thread


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Calls observer(tensor, handle, reason) for all that any packer saves meanwhile."""
    observers = _local.__dict__.setdefault("observers", [])
    observers.append(observer)
    try:
        yield
    finally:
        observers.remove(observer)


class Packer:
    """Packs what autograd saves while its hooks are set, each piece of memory once.

    seed, number: its state. Draws are numbered by the tensors that were packed.
    stream: which of the seed's draws; by default those of this process's rank.
    """

    def __init__(self, settings: Saved, seed: int, stream: int | None = None):
        self.settings = settings
        self.seed = seed
        self.stream = stream
        self.number = 0
        self._begin()

    def _begin(self) -> None:
        self.tally = Tally()
        self._known: dict[tuple, weakref.ref[Words]] = {}
        self._lock = threading.RLock()
        self._inside = threading.local()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def __getstate__(self) -> dict[str, Any]:
        own = ("settings", "seed", "stream")
        return {name: self.__dict__[name] for name in own} | {"saved": self.tensors_by_name()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["settings"], state["seed"], state["stream"])
        self.load(state["saved"])

    def __enter__(self) -> None:
        self._hooks.__enter__()  # It may raise: transforms of torch.func refuse hooks.
        if self._depth() == 0:
            self.tally = Tally()
        self._inside.depth = self._depth() + 1

    def __exit__(self, *error) -> None:
        self._hooks.__exit__(*error)
        self._inside.depth -= 1

    def _depth(self) -> int:
        return getattr(self._inside, "depth", 0)

    def run(self, forward: Callable, *args, **kwargs) -> Any:
        """A forward pass whose saved tensors are packed."""
        if not torch.is_grad_enabled() or records_plain_model():
            return forward(*args, **kwargs)
        with self:
            return forward(*args, **kwargs)

    # ---- state ------------------------------------------------------------------------------

    def tensors_by_name(self) -> dict[str, torch.Tensor]:
        return {DRAWS: torch.tensor([self.seed, self.number], device="cpu")}

    def check(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Raises ValueError for what tensors_by_name() cannot have given."""
        draws = saved.get(DRAWS)
        if draws is None or draws.dtype != torch.int64 or draws.shape != (2,):
            raise ValueError(
                f"[load_state_dict] expected {DRAWS!r}, an int64 tensor of seed and number, got "
                f"{draws!r}"
            )
        counter(draws[1], "load_state_dict", f"the number in {DRAWS!r}")

    def load(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Goes on where tensors_by_name() was taken."""
        self.check(saved)
        self.seed, self.number = saved[DRAWS].tolist()

    # ---- hooks ------------------------------------------------------------------------------

    def pack(self, tensor: torch.Tensor) -> Handle:
        began = time.perf_counter()
        why = rules.reason_to_leave(tensor, self.settings.min_elements)
        handle: Handle | None = None
        if why is None or rules.may_be_smaller(tensor, why, self.settings.min_elements):
            with self._lock:
                handle, why = self._packed(tensor, why)
        if handle is None:
            handle = _left(tensor, why)
        self.tally.saved(tensor, handle, why, time.perf_counter() - began)
        for observer in _local.__dict__.get("observers", ()):
            observer(tensor, handle, why)
        return handle

    def unpack(self, handle: Handle) -> torch.Tensor:
        began = time.perf_counter()
        tensor = handle.unpack()
        self.tally.unpacking_seconds += time.perf_counter() - began
        return tensor

    def _packed(self, tensor: torch.Tensor, why: str | None) -> tuple[Packed | None, str | None]:
        """why: if a reason is given, only masks and indices are packed, exactly."""
        plain = tensor.detach()
        own = list(plain.stride())
        stride = own if plain.is_contiguous() else ops.restored_strides(plain)
        # Dense tensors are packed in the order of memory: of all views of a piece it is the same.
        shape = plain.numel() if stride == own else (plain.size(), tuple(own))
        storage = plain.untyped_storage()._cdata
        key = (storage, plain.storage_offset(), shape, plain.dtype, plain._version)
        known = words = self._find(key)
        if words is not None and words.is_rounded and why is not None:
            words = None  # x.detach() has the memory of x, and stays exact
        if words is None:
            words, why = self._make(tensor, plain, why)
            if words is None:
                return None, why
            if known is None:
                self._known[key] = weakref.ref(words, lambda ref: self._forget(key, ref))
        return Packed(words, plain, stride), None

    def _find(self, key: tuple) -> Words | None:
        known = self._known.get(key)
        return None if known is None else known()

    def _forget(self, key: tuple, ref: weakref.ref) -> None:
        with self._lock:
            if self._known.get(key) is ref:
                del self._known[key]

    def _make(
        self, tensor: torch.Tensor, plain: torch.Tensor, why: str | None
    ) -> tuple[Words | None, str | None]:
        if why is None and self.settings.bits != EXACT and not rules.is_logarithm(tensor):
            return self._make_of_bits(plain)
        if why == rules.TYPE:
            packed, bits = _smaller_integers(plain), CAST
        elif why is not None or self.settings.bits == EXACT:
            packed, bits = ops.pack_exact(plain, only_masks=why is not None), EXACT
            why = why or rules.DENSE
        else:
            is_long = plain.dtype == torch.float32
            packed, bits = (plain.to(torch.bfloat16) if is_long else None), CAST
            why = rules.LOGARITHM
        if packed is None or packed.numel() == 0:
            return None, why
        return Words(plain, packed, bits, 0), None

    def _make_of_bits(self, plain: torch.Tensor) -> tuple[Words | None, str | None]:
        bits = self.settings.bits
        group = self.settings._group_at(bits)
        seed = derive_seed(self.seed, current_stream(self.stream))
        packed = ops.pack_saved(plain, bits, group, self.settings.rounding, seed, self.number)
        if ops.saved_bad_groups(packed) > 0:
            return None, rules.NOT_FINITE
        self.number += 1
        return Words(plain, packed, bits, group), None


def _smaller_integers(plain: torch.Tensor) -> torch.Tensor | None:
    """Indices, as those of a max-pooling, in as few bytes as the largest of them needs."""
    least, most = (bound.item() for bound in plain.aminmax())
    for dtype in (torch.uint8, torch.int16, torch.int32):
        bounds = torch.iinfo(dtype)
        if bounds.min <= least and most <= bounds.max:
            return plain.to(dtype)
    return None


def _left(tensor: torch.Tensor, why: str | None) -> Handle:
    if why == rules.SMALL and 2 * tensor.nbytes < tensor.untyped_storage().nbytes():
        return Copied(tensor.detach())
    return Plain(tensor)


class Untouched:
    """For parts of a model that save their tensors as they are, inside of one that packs them."""

    def __init__(self) -> None:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def __reduce__(self):
        return Untouched, ()

    def run(self, forward: Callable, *args, **kwargs) -> Any:
        if torch.jit.is_tracing() or torch.compiler.is_exporting():
            return forward(*args, **kwargs)
        with self._hooks:
            return forward(*args, **kwargs)

    @staticmethod
    def _pack(tensor: torch.Tensor) -> Handle:
        handle = Plain(tensor)
        for observer in _local.__dict__.get("observers", ()):
            observer(tensor, handle, rules.EXCLUDED)
        return handle

    @staticmethod
    def _unpack(handle: Handle) -> torch.Tensor:
        return handle.unpack()
