"""What a callback does with a controller, whichever loop calls it: schedule, refresh, statistics,
warnings, and going on from a saved state."""

from __future__ import annotations

import math
import re
import warnings
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ..compression.controller import Controller
from ..compression.state import StateWarning

STATISTICS = ("sparsity", "cosine", "relative_error", "log_std", "scale")

MISSING = (
    "[SlimgradCallback] {where} has no state of the compression: draws, counters, warm-up and what "
    "compress() schedules start anew, and the run is not the one that was interrupted"
)
OF_RANK_0 = (
    "[SlimgradCallback] {where} has no state of the compression of rank {rank}: it takes that of "
    "rank 0, and its plans until they are refreshed"
)


class Schedule:
    """A sparsity by optimizer step, linear in between, constant before the first and after the
    last."""

    def __init__(self, points: Mapping[int, float]):
        if not isinstance(points, Mapping) or not points:
            raise ValueError(
                f"[SlimgradCallback] expected schedule={{step: sparsity}}, got {points!r}"
            )
        for step, sparsity in points.items():
            if isinstance(step, bool) or not isinstance(step, int) or step < 0:
                raise ValueError(
                    f"[SlimgradCallback] expected whole steps >= 0 in schedule, got {step!r}"
                )
            if not (isinstance(sparsity, int | float) and 0 <= sparsity < 1):
                raise ValueError(
                    f"[SlimgradCallback] expected 0 <= sparsity < 1 in schedule, got {sparsity!r}"
                )
        self._points = sorted(points.items())

    def at(self, step: int) -> float:
        place = bisect_right(self._points, step, key=lambda point: point[0])
        if place in (0, len(self._points)):
            return float(self._points[max(place - 1, 0)][1])
        (begin, low), (end, high) = self._points[place - 1 : place + 1]
        return low + (high - low) * (step - begin) / (end - begin)


class ControllerSteps:
    """Drives a controller by a loop's optimizer steps.

    controller: what compress() returned, or a function of the model that is trained that returns
        it; then it is None until begin().
    step: the last step that was begun. Loops with gradient accumulation may begin one several
        times; only the first counts.
    epoch: the last epoch that was begun.
    """

    def __init__(
        self,
        controller: Controller | Callable[[nn.Module], Controller],
        log_every: int | None,
        schedule: Mapping[int, float] | None,
        refresh: str | int | None,
    ):
        _check_every("log_every", log_every)
        if refresh != "epoch":
            _check_every("refresh", refresh, " or 'epoch'")
        self.log_every = log_every
        self.refresh = refresh
        self.schedule = None if schedule is None else Schedule(schedule)
        self.controller: Controller = None  # type: ignore[assignment]  # until begin()
        self.step = self.epoch = -1
        self._make: Callable[[nn.Module], Controller] | None = None
        self._made_for: nn.Module | None = None
        self._sparsity: float | None = None  # as the schedule set it last
        self._scheduled: list[str | None] = [None]  # products of a sparse backward pass
        self._said: set[str] = set()
        if callable(controller) and not isinstance(controller, nn.Module):
            self._make = controller
        else:
            self._take(controller)

    def _take(self, controller: Any) -> None:
        if not isinstance(controller, Controller):
            raise ValueError(
                "[SlimgradCallback] expected controller to be what compress() returned, or a "
                f"function that returns it, got {type(controller).__name__}"
            )
        if self.schedule is not None and controller.prune is None:
            raise ValueError(
                "[SlimgradCallback] expected a schedule for a model compressed with Prune"
            )
        # As with compress(schedule=): a product that is not pruned stays so.
        products = {} if controller.prune is None else controller.prune.products
        self._scheduled = [name for name, sparsity in products.items() if sparsity > 0] or [None]
        self.controller = controller

    def begin(self, model: nn.Module) -> None:
        """When training begins; ``model`` is what the loop trains."""
        if self._make is not None and self._made_for is not model:
            self._take(self._make(model))
            self._made_for = model
        trained = set(model.modules())
        layers = [layer.module for layer in self.controller.layers.values()]
        if layers and trained.isdisjoint(layers):
            raise ValueError(
                "[SlimgradCallback] expected the controller of the model that is trained, got one "
                "of another model. Where the loop makes its model itself, give the callback a "
                "function of the model that returns compress(model, ...)"
            )
        self.step = self.epoch = -1
        self._sparsity = None

    # ---- while it runs ----------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        if epoch == self.epoch:
            return
        self.epoch = epoch
        if self.refresh == "epoch":
            self.controller.refresh()

    def begin_step(self, step: int) -> None:
        """Before the first backward pass of an optimizer step; ``step`` of them are done."""
        if step == self.step:
            return
        self.step = step
        self._follow_schedule()
        if isinstance(self.refresh, int) and step % self.refresh == 0:
            self.controller.refresh()

    def _follow_schedule(self) -> None:
        if self.schedule is None:
            return
        sparsity = self.schedule.at(self.step)
        if sparsity != self._sparsity:
            self._sparsity = sparsity
            for product in self._scheduled:
                self.controller.set_sparsity(sparsity, product)

    def statistics(self, steps_done: int) -> dict[str, float]:
        """The statistics of every layer by the name for loggers; empty between two logs."""
        if self.log_every is None or steps_done == 0 or steps_done % self.log_every:
            return {}
        return {
            f"slimgrad/{key}/{name}": float(row[key])
            for name, row in self.controller.report().items()
            for key in STATISTICS
            if row["calls"] and row[key] is not None and math.isfinite(row[key])
        }

    def warn(self) -> None:
        """Says what controller.warnings() says, once each, whatever the figures in it."""
        for sentence in self.controller.warnings():
            kind = without_figures(sentence)
            if kind not in self._said:
                self._said.add(kind)
                warnings.warn(sentence, stacklevel=2)

    # ---- going on ---------------------------------------------------------------------------

    def resume(self, state: Mapping[str, torch.Tensor], step: int, epoch: int = -1) -> None:
        """``step`` was the last that had begun when the state was saved."""
        self.step, self.epoch = step, epoch
        self._follow_schedule()  # The state has its sparsity, and compares.
        self.controller.load_state_dict(state)

    def start_anew(self, where: str, rank: int, advice: str = "") -> None:
        """A run is resumed, and there is no state: one warning for all ranks."""
        if rank == 0:
            warnings.warn(MISSING.format(where=where) + advice, StateWarning, stacklevel=3)


def _check_every(name: str, steps: Any, or_what: str = "") -> None:
    whole = isinstance(steps, int) and not isinstance(steps, bool) and steps > 0
    if steps is not None and not whole:
        raise ValueError(
            f"[SlimgradCallback] expected {name} to be a number of steps >= 1{or_what} or None, "
            f"got {steps!r}"
        )


def without_figures(sentence: str) -> str:
    """The sentence with every figure replaced, but for those in the name that it may begin with."""
    name, space, rest = sentence.partition(" ")
    if not name.endswith(":"):
        name, rest = "", sentence
    return name + space + re.sub(r"(?<![\w.])[-+]?\d[\d.]*", "#", rest)


def of_rank(states: Mapping[int, Any], rank: int, where: str) -> Any | None:
    """Which of the saved states a rank goes on with; None if there is none. Warns if it is not its
    own: another number of ranks is another run, whose counters and plans are those of rank 0."""
    if rank not in states and 0 in states:
        warnings.warn(OF_RANK_0.format(where=where, rank=rank), StateWarning, stacklevel=3)
    return states.get(rank, states.get(0))
