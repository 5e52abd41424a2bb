"""Notices a run that goes on without its state."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from .state import StateWarning

MISSING = (
    "the model's weights were loaded after compress(), but not the state of its compression: the "
    "schedule, warm-up or loss scale starts anew. To resume a run, call "
    "controller.load_state_dict() as well; to start one, nothing is wrong"
)


class WeightsLoaded:
    """A hook behind the model's load_state_dict(). An object and no closure, so that a model with
    it can be copied and pickled."""

    def __init__(self, model: nn.Module):
        self._weights = self._state = self._warned = False
        self._hook = model.register_load_state_dict_post_hook(self)

    def __call__(self, _model, _keys) -> None:
        self._weights = True

    def state_loaded(self) -> None:
        self._state = True

    @property
    def without_state(self) -> bool:
        return self._weights and not self._state

    def warn_once(self) -> None:
        if self.without_state and not self._warned:
            self._warned = True
            warnings.warn(f"[compress] {MISSING}", StateWarning, stacklevel=2)

    @torch.compiler.assume_constant_result
    def warn_while_tracing(self) -> bool:
        """A graph guards on ``without_state`` and is traced anew when it changes."""
        self.warn_once()
        return True

    def remove(self) -> None:
        self._hook.remove()
