"""Bits for every saved tensor, so that a share of the bytes does least harm to the gradients.

A tensor is known from pass to pass by its place: which module was entered, and how many were packed
before it in that pass. It counts as the same while its size, divided by that of the first of its
pass, is the same: so with batches of any size. Others get the bits that fit the budget alone.
"""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .._arguments import MOST_CALLS
from .._library import ops
from .allocation import Choice, spread
from .sensitivity import Measurement, Met
from .settings import BITS, Keep

AS_IS = 0  # bits of a tensor that the budget has room for in full
SLOTS, PLACES = "slots", "places"
_WIDTHS = (2, 4)  # bytes of a value

Place = tuple[int, int]  # module, order


def packed_bytes(size: int, bits: int, group: int) -> int:
    """formats/kept.h; AS_IS has none."""
    return -(-size // 512) * 64 * bits + 4 * -(-size // group) + 4


def mean_squared_step(plain: torch.Tensor, bits: int, group: int) -> float | None:
    """Of all its values, with 0 for the zeros of groups that keep them; None with NaN or Inf."""
    words = ops.keep_values(plain, bits, group, "nearest", 0, 0)
    if ops.kept_bad_groups(words) > 0:
        return None
    groups = -(-plain.numel() // group)
    scales = words[-1 - groups : -1]
    squares = scales.bitwise_and(0x7FFF0000).view(torch.float32).double().square()
    if (scales < 0).any():  # The sign bit says that zeros are exact.
        squares[scales < 0] *= plain.count_nonzero().item() / plain.numel()
    return squares.mean().item()


@dataclass
class Slot:
    """size, first: values of the tensor and of the first of its pass. width: bytes of a value.
    errors: of the gradients, by bits in the order of BITS, up to a factor common to all."""

    size: int
    first: int
    width: int
    errors: tuple[float, ...]
    bits: int = AS_IS


class Pass:
    """What one forward pass saved so far."""

    def __init__(self, budget: Budget, module: int, measurement: Measurement | None):
        self.measurement = measurement
        self._budget = budget
        self._module = module
        self._order = 0
        self._first = 0
        self.fixed = (0, 0)  # bytes of what is packed without choice, plain and packed

    def bits(self, plain: torch.Tensor) -> int:
        """For the next tensor."""
        place = (self._module, self._order)
        self._order += 1
        self._first = self._first or plain.numel()
        self._budget.name(place)
        slot = self._budget.slots.get(place)
        if slot is None or slot.width != plain.element_size():
            return self._budget.fallback(plain.element_size())
        if slot.size * self._first != plain.numel() * slot.first:
            return self._budget.fallback(plain.element_size())
        return slot.bits

    def measured(self, plain: torch.Tensor) -> Met | None:
        """The tensor that bits() was last asked for, if this pass is measured."""
        if self.measurement is None:
            return None
        keep = self._budget.settings
        steps = {bits: mean_squared_step(plain, bits, keep.group_at(bits)) for bits in BITS}
        if None in steps.values():
            return None
        met = Met(self.measurement, plain.numel(), plain.element_size(), self._first, steps)
        self.measurement.met[self._module, self._order - 1] = met
        return met

    def packed_without_choice(self, plain_bytes: int, num_bytes: int) -> None:
        """Masks, indices and logarithms: they have no choice, and count."""
        self.fixed = (self.fixed[0] + plain_bytes, self.fixed[1] + num_bytes)
        if self.measurement is not None:
            self.measurement.fixed[self._module] = self.fixed


class Budget:
    """slots: by place, what was measured and the bits that follow from it. passes: of every
    module, how many there were. fixed: of every module, bytes that are not to be chosen."""

    def __init__(self, settings: Keep):
        self.settings = settings
        self.slots: dict[Place, Slot] = {}
        self.passes: list[int] = []
        self.fixed: dict[int, tuple[int, int]] = {}
        self.names: dict[Place, str] = {}
        self.module_names: Mapping[Any, str] = {}
        self._modules: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._num_modules = 0
        self._measurement: Measurement | None = None
        self._lock = threading.RLock()

    @property
    def measurement(self) -> Measurement | None:
        """The one whose backward pass has not ended."""
        return self._measurement

    def begin(self, module: Any) -> Pass:
        """A forward pass. Modules are numbered as they are first entered; None is number 0."""
        with self._lock:
            number = 0 if module is None else self._number(module)
            self.passes += [0] * (number + 1 - len(self.passes))
            every, count = self.settings.measure_every, self.passes[number]
            self.passes[number] += 1
            is_known = any(place[0] == number for place in self.slots)
            if is_known and (every == 0 or count % every != 0):
                return Pass(self, number, None)
            if self._measurement is None:
                self._measurement = Measurement(self._learn)
            for place in [place for place in self._measurement.met if place[0] == number]:
                self._measurement.met.pop(place).measurement = None
            self._measurement.fixed[number] = (0, 0)
            return Pass(self, number, self._measurement)

    def _number(self, module: Any) -> int:
        if module not in self._modules:
            self._modules[module] = self._num_modules
            self._num_modules += 1  # not len(): some may be gone, and their numbers in use
        return self._modules[module]

    def _learn(self, measurement: Measurement) -> None:
        with self._lock:
            if measurement is not self._measurement:
                return
            self._measurement = None
            weights = measurement.weights()
            if weights is None:
                return
            modules = {place[0] for place in weights}
            self.slots = {p: slot for p, slot in self.slots.items() if p[0] not in modules}
            for place, weight in weights.items():
                met = measurement.met[place]
                errors = tuple(weight * met.steps[bits] for bits in BITS)
                self.slots[place] = Slot(met.size, met.first, met.width, errors)
            self.slots = dict(sorted(self.slots.items()))
            self.fixed |= measurement.fixed
            self._allocate()

    def _choices(self, slot: Slot) -> dict[int, Choice]:
        """By bits, in the order of their bytes."""
        plain = slot.size * slot.width
        choices: dict[int, Choice] = {}
        for bits, error in zip(reversed(BITS), reversed(slot.errors), strict=True):
            num_bytes = packed_bytes(slot.size, bits, self.settings.group_at(bits))
            if num_bytes < plain and num_bytes not in [known for known, _ in choices.values()]:
                choices[bits] = (num_bytes, error)
        return dict(sorted(choices.items(), key=lambda item: item[1])) | {AS_IS: (plain, 0.0)}

    def _allocate(self) -> None:
        plain = sum(slot.size * slot.width for slot in self.slots.values())
        plain += sum(fixed[0] for fixed in self.fixed.values())
        # Whole bytes: a share that was divided out must not miss its last one by rounding.
        room = math.floor(self.settings.budget * plain + 1e-3)
        room -= sum(fixed[1] for fixed in self.fixed.values())
        choices = [self._choices(slot) for slot in self.slots.values()]
        chosen = spread([list(own.values()) for own in choices], room)
        for slot, own, number in zip(self.slots.values(), choices, chosen, strict=True):
            slot.bits = list(own)[number]

    def fallback(self, width: int) -> int:
        """The most bits that a tensor alone may have; the fewest if none fits."""
        if self.settings.budget == 1:
            return AS_IS
        for bits in BITS:
            share = (bits / 8 + 4 / self.settings.group_at(bits)) / width
            if share <= self.settings.budget:
                return bits
        return BITS[-1]

    def name(self, place: Place) -> None:
        """Finds the module that saves, once for every place."""
        if place not in self.names and self.module_names:
            self.names[place] = _calling(self.module_names)

    # ---- state ------------------------------------------------------------------------------

    def tensors_by_name(self) -> dict[str, torch.Tensor]:
        rows = [
            [*place, slot.size, slot.first, slot.width, *slot.errors]
            for place, slot in self.slots.items()
        ]
        columns = 5 + len(BITS)
        slots = torch.tensor(rows, dtype=torch.float64, device="cpu").reshape(-1, columns)
        places = [[count, *self.fixed.get(i, (0, 0))] for i, count in enumerate(self.passes)]
        return {
            SLOTS: slots,
            PLACES: torch.tensor(places, dtype=torch.int64, device="cpu").reshape(-1, 3),
        }

    @staticmethod
    def check(saved: Mapping[str, torch.Tensor]) -> None:
        """Raises ValueError for what tensors_by_name() cannot have given."""
        slots, places = saved[SLOTS], saved[PLACES]
        if places.dtype != torch.int64 or places.dim() != 2 or places.shape[1] != 3:
            raise ValueError(
                f"[load_state_dict] expected {PLACES!r}, an int64 tensor with three columns, got "
                f"{places!r}"
            )
        columns = 5 + len(BITS)
        if slots.dtype != torch.float64 or slots.dim() != 2 or slots.shape[1] != columns:
            raise ValueError(
                f"[load_state_dict] expected {SLOTS!r}, a float64 tensor with {columns} columns, "
                f"got {slots!r}"
            )
        whole = slots[:, :5]
        is_possible = (
            ((places >= 0) & (places <= MOST_CALLS)).all()
            and (slots >= 0).all()
            and slots.isfinite().all()
            and (whole == whole.round()).all()
            and (whole[:, 2:4] >= 1).all()
            and torch.isin(whole[:, 4], torch.tensor(_WIDTHS, dtype=torch.float64)).all()
            and (whole[:, 0] < len(places)).all()
            and len(whole[:, :2].unique(dim=0)) == len(whole)
        )
        if not is_possible:
            raise ValueError(
                f"[load_state_dict] expected {SLOTS!r} and {PLACES!r} as state_dict() gives them, "
                "got numbers that no budget has"
            )

    def load(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Goes on where tensors_by_name() was taken; with another budget, from what was measured.
        What is saved in between is not measured any more."""
        self._measurement = None
        counts = saved[PLACES].tolist()
        self.passes = [row[0] for row in counts]
        self.fixed = {i: (row[1], row[2]) for i, row in enumerate(counts)}
        self.slots = {}
        for row in saved[SLOTS].tolist():
            module, order, size, first, width = map(int, row[:5])
            self.slots[module, order] = Slot(size, first, width, tuple(row[5:]))
        self._allocate()


_CALL = torch.nn.Module._call_impl.__code__


def _calling(names: Mapping[Any, str]) -> str:
    """The innermost module whose call is under way, of those that have a name."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL:
            module = frame.f_locals.get("self")
            if module in names:
                return names[module]
        frame = frame.f_back
    return ""
