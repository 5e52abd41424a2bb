"""A callback for transformers.Trainer, and what is built on it: saves and resumes the state of the
compression with the Trainer's checkpoints, logs what the layers do, drives the sparsity."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import nn

from ..compression.controller import Controller
from ._steps import ControllerSteps, of_rank

try:
    from safetensors.torch import load_file, save_file
    from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback
except ModuleNotFoundError as error:
    if error.name not in ("transformers", "safetensors"):
        raise
    raise ImportError(
        f"[slimgrad.integrations.transformers] expected the package {error.name}, which is not "
        "installed: pip install transformers accelerate"
    ) from error


ELSEWHERE = (
    ". If the run was resumed from a checkpoint elsewhere, name that in "
    "TrainingArguments(resume_from_checkpoint=), too"
)


def state_file(folder: str | os.PathLike, rank: int = 0) -> Path:
    """The file of this rank in a checkpoint; ranks draw and measure separately."""
    return Path(folder) / (
        "slimgrad.safetensors" if rank == 0 else f"slimgrad-rank{rank}.safetensors"
    )


class SlimgradCallback(TrainerCallback):
    """For a Trainer whose model was compressed.

    controller: what compress() returned; or a function of the model that calls compress(), for a
        Trainer with model_init. It is called when training begins.
    trainer: the Trainer that it is added to, if what that reports to is to get the statistics:
        trainer.add_callback(SlimgradCallback(controller, trainer=trainer)). None: they are in the
        Trainer's log_history alone.
    log_every: the number of optimizer steps after which the statistics of every layer are logged
        (not to the console), and what controller.warnings() says becomes a warning, once each.
        None: neither.
    schedule: sparsity by optimizer step, {0: 0.5, 1000: 0.85}, linear in between. That of
        compress() counts backward passes: with gradient accumulation these are more.
    refresh: "epoch", or a number of optimizer steps after which layers are planned anew; together
        with compress(refresh=0). None leaves it to compress().

    A checkpoint gets a file slimgrad.safetensors, one for each rank. A run that is resumed from it
    goes on as if it had not been interrupted. The state is read from the folder that
    TrainingArguments(resume_from_checkpoint=) names, or else from the checkpoint of that step in
    output_dir: transformers does not pass the arguments of train() to callbacks.
    """

    def __init__(
        self,
        controller: Controller | Callable[[nn.Module], Controller],
        *,
        trainer: Trainer | None = None,
        log_every: int | None = 100,
        schedule: Mapping[int, float] | None = None,
        refresh: str | int | None = None,
    ):
        self._steps = ControllerSteps(controller, log_every, schedule, refresh)
        self._trainer = trainer
        self._epoch_began = False

    @property
    def controller(self) -> Controller | None:
        """None before training, if a function makes it."""
        return self._steps.controller

    # ---- saving and going on ----------------------------------------------------------------

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self._steps.begin(model)
        # An epoch in whose midst the run was interrupted is begun a second time.
        self._epoch_began = state.global_step > 0 and state.epoch % 1 != 0
        if state.global_step == 0:
            return
        folder = args.resume_from_checkpoint or _checkpoint_folder(args, state)
        files = {rank: state_file(folder, rank) for rank in (0, args.process_index)}
        states = {rank: file for rank, file in files.items() if file.is_file()}
        file = of_rank(states, args.process_index, str(folder))
        if file is None:
            self._steps.start_anew(str(folder), args.process_index, ELSEWHERE)
        else:
            self._steps.resume(load_file(file), step=state.global_step - 1)

    def on_save(self, args, state, control, **kwargs):
        if state.is_hyper_param_search:
            return  # Nobody resumes a trial, and its folder is the Trainer's secret.
        folder = _checkpoint_folder(args, state)
        folder.mkdir(parents=True, exist_ok=True)  # Another rank may create it later.
        save_file(self._steps.controller.state_dict(), state_file(folder, args.process_index))

    def on_push_begin(self, args, state, control, **kwargs):
        # A checkpoint is pushed before on_save().
        if self.controller is not None and _checkpoint_folder(args, state).is_dir():
            self.on_save(args, state, control)

    # ---- while it runs ----------------------------------------------------------------------

    def on_epoch_begin(self, args, state, control, **kwargs):
        if not self._epoch_began:
            self._steps.begin_epoch(self._steps.epoch + 1)
        self._epoch_began = False

    def on_step_begin(self, args, state, control, **kwargs):
        self._steps.begin_step(state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        statistics = self._steps.statistics(state.global_step)
        if not statistics:
            return
        if state.is_world_process_zero:
            self._steps.warn()
        state.log_history.append({**statistics, "epoch": state.epoch, "step": state.global_step})
        # As Trainer.log() does, but for those who would print hundreds of figures.
        trainer = self._trainer
        for callback in [] if trainer is None else trainer.callback_handler.callbacks:
            if callback is not self and not isinstance(
                callback, PrinterCallback | ProgressCallback
            ):
                callback.on_log(args, state, control, logs=dict(statistics), **kwargs)


def _checkpoint_folder(args, state) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
