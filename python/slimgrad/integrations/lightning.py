"""A callback for Lightning's Trainer: keeps the state of the compression in its checkpoints, logs
what the layers do, drives the sparsity."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import nn

from ..compression.controller import Controller
from ._steps import ControllerSteps, of_rank


def _callback_class() -> type:
    """The Callback of the package that is already imported, or of the one that is installed."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return import_module(name).Callback
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise
    raise ImportError(
        "[slimgrad.integrations.lightning] expected the package lightning or pytorch_lightning, "
        "got neither: pip install lightning"
    )


class SlimgradCallback(_callback_class()):  # type: ignore[misc]
    """For a LightningModule that was compressed, or is to be.

    controller: what compress() returned; or a function of the LightningModule that calls compress()
        and returns what that returned; or None if the LightningModule does so itself, in __init__,
        setup or configure_model, and keeps the controller as an attribute. Both are asked for it
        when fitting begins, when all layers are there.
    log_every: every this many optimizer steps the statistics of every layer go to the Trainer's
        loggers, and what controller.warnings() says becomes a warning, once each. None: neither.
    schedule: sparsity by optimizer step (trainer.global_step), {0: 0.5, 1000: 0.85}, linear in
        between. That of compress() counts backward passes: with gradient accumulation these are
        more.
    refresh: "epoch", or a number of optimizer steps after which layers are planned anew; together
        with compress(refresh=0). None leaves it to compress().

    The state of all ranks is in the checkpoint, as tensors: it loads with weights_only=True. A run
    that is resumed goes on as if it had not been interrupted, as far as Lightning does: it does not
    restore torch's random generator, which dropout and shuffling draw from.
    """

    def __init__(
        self,
        controller: Controller | Callable[[nn.Module], Controller] | None = None,
        *,
        log_every: int | None = 100,
        schedule: Mapping[int, float] | None = None,
        refresh: str | int | None = None,
    ):
        super().__init__()
        make = _attribute_of if controller is None else controller
        self._steps = ControllerSteps(make, log_every, schedule, refresh)
        self._saved: dict[str, Any] | None = None
        self._logged = -1

    @property
    def controller(self) -> Controller | None:
        """None before fitting, if it is not known before."""
        return self._steps.controller

    # ---- saving and going on ----------------------------------------------------------------
    # Lightning: setup(), the module's configure_model(), load_state_dict(), on_fit_start(),
    # then the loops' own progress is restored, on_train_start().

    def setup(self, trainer, pl_module, stage: str) -> None:
        self._saved = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict  # There may be no controller yet.

    def on_fit_start(self, trainer, pl_module) -> None:
        self._steps.begin(pl_module)

    def on_train_start(self, trainer, pl_module) -> None:
        saved, self._saved = self._saved or {}, None
        if not trainer.ckpt_path:
            return
        states = {int(rank): state for rank, state in saved.get("ranks", {}).items()}
        state = of_rank(states, trainer.global_rank, str(trainer.ckpt_path))
        if state is None:
            self._steps.start_anew(str(trainer.ckpt_path), trainer.global_rank)
        else:
            self._steps.resume(state, int(saved["step"]), int(saved["epoch"]))

    def state_dict(self) -> dict[str, Any]:
        if self.controller is None:
            return {}
        states = _of_all_ranks(self.controller.state_dict())
        return {
            "ranks": {str(rank): state for rank, state in enumerate(states)},
            "step": torch.tensor(self._steps.step),
            "epoch": torch.tensor(self._steps.epoch),
        }

    # ---- while it runs ----------------------------------------------------------------------

    def on_train_epoch_start(self, trainer, pl_module) -> None:
        self._steps.begin_epoch(trainer.current_epoch)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        self._steps.begin_step(trainer.global_step)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        step = trainer.global_step
        if step == self._logged:  # A batch whose gradients are only added up.
            return
        self._logged = step
        statistics = self._steps.statistics(step)
        if not statistics:
            return
        if trainer.is_global_zero:
            self._steps.warn()
        for logger in trainer.loggers:
            logger.log_metrics(statistics, step=step)


def _attribute_of(module: nn.Module) -> Controller:
    found = [value for value in vars(module).values() if isinstance(value, Controller)]
    if len(found) != 1:
        raise ValueError(
            "[SlimgradCallback] expected controller=, or a LightningModule with one controller "
            f"among its attributes, got {len(found) or 'none'}"
        )
    return found[0]


def _of_all_ranks(state: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Lightning collects the state of every rank, and writes that of rank 0."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return [state]
    states: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(states, state)
    return states
