"""Training with few exchanges: ranks train alone, then exchange how far they went. The library does
it (<slimgrad/diloco.h>, which has the rules); this takes the inner step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .._library import classes
from .._support import number, tensor_with_values, whole_number
from .calls import call, group_of
from .codec import Codec, as_codec
from .collectives import SIGNALS, exchange_of

_OP = "DiLoCo"


@dataclass(frozen=True)
class Outer:
    """The optimizer of the weights that ranks share: SGD, by default with Nesterov's momentum."""

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True


class DiLoCo:
    """Ranks train alone for ``every`` steps, then exchange how far each one's weights moved.

    ``step()`` takes the place of ``inner.step()``. The mean over ranks of the distances is the
    gradient of ``outer``, which moves the weights that all ranks share, bit for bit, and go on
    from. ``inner``: an optimizer of this rank, or a function that takes a step of it
    (``lambda: scaler.step(optimizer)``). ``codec``: what distances travel as.

    ``fragments``: parts of the model, by modules, that take turns: ``fragments`` times as many
    exchanges of a part each. ``overlap``: for how many steps (``True``: 1) ranks train on while an
    exchange is under way; they keep what they trained meanwhile. ``error_feedback``: whether the
    next round adds what rounding lost; a number below 1 is the share of it, SparseLoCo's momentum.
    None is the codec's own setting. ``group``: the ranks that exchange; by default all.

    All ranks begin with the weights of the first one, and pass equal settings; otherwise all raise.
    Parameters that do not require a gradient are left alone. Buffers of float types, such as
    BatchNorm's, become their means over ranks with the last fragment, others are left alone.
    A rank that is lost makes ``step()`` of all others raise an ``ExchangeError``; ``state_dict()``
    still has the state of the last whole round.
    """

    def __init__(
        self,
        model: nn.Module,
        inner: torch.optim.Optimizer | Callable[[], Any],
        outer: Outer | None = None,
        *,
        every: int = 50,
        codec: Codec | str = "fp4",
        fragments: int = 1,
        overlap: bool | int = False,
        error_feedback: bool | float | None = None,
        group: dist.ProcessGroup | None = None,
    ):
        group = group_of(group, _OP)
        ranks = dist.get_process_group_ranks(group)
        # Kept: an exchange counts what was exchanged, and has buffers, for as long as it lives.
        self._exchange = exchange_of(group, _OP)
        try:
            arguments = _arguments(
                model, inner, outer, every, codec, fragments, overlap, error_feedback
            )
        except Exception as error:  # which the other ranks have to hear
            call(classes.DiLoCo.refuse, group.group_name, ranks, str(error))
            raise
        self._inner = inner
        self._held = call(classes.DiLoCo, group.group_name, ranks, *arguments)

    def step(self, closure: Callable[[], Any] | None = None) -> bool:
        """A step of the inner optimizer, and what of a round is due after it. Whether weights
        became, or with ``overlap`` took up, shared ones. All ranks must take as many steps."""
        if isinstance(self._inner, torch.optim.Optimizer):
            self._inner.step(closure)
        elif closure is not None:
            raise ValueError("[DiLoCo.step] expected no closure where inner is a function, got one")
        else:
            self._inner()
        call(self._held.begin_step)
        return self._end()

    def synchronize(self) -> None:
        """Ends all rounds now: all ranks have the same weights, to the bit. Before the model is
        saved or used, if training does not end with a round, or with fragments or overlap."""
        call(self._held.begin_last)
        self._end()
        call(self._held.begin_all)
        self._end()

    def _end(self) -> bool:
        while not call(self._held.wait_for, SIGNALS):
            pass
        return call(self._held.end_step)

    @property
    def steps(self) -> int:
        """Inner steps taken."""
        return self._held.num_steps()

    @property
    def rounds(self) -> int:
        """Exchanges whose outcome was applied: ``fragments`` for the whole model."""
        return self._held.num_rounds()

    @property
    def sent_bytes(self) -> int:
        """What this rank sent in these, headers included."""
        return self._held.sent_bytes()

    def state_dict(self, own: bool = False) -> dict[str, torch.Tensor]:
        """The state of the last whole round: shared weights, momentum, counters. Needs no other
        rank, also after an ``ExchangeError``, and any number of ranks can go on from it: loaded, it
        puts the shared weights into the model.

        With ``own`` this rank's as it stands, for as many ranks to go on to the bit: every rank
        saves it beside its own weights and inner optimizer, and loads all of them."""
        return dict(call(self._held.state_dict, own))

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """All ranks must call it, with states of the same round. What rounding lost on a rank goes
        on with that rank of as many, and is dropped otherwise."""
        is_state = isinstance(state, Mapping) and all(
            isinstance(name, str) and isinstance(x, torch.Tensor) for name, x in state.items()
        )
        # One that is none is refused by the library, on all ranks.
        call(self._held.load_state_dict, dict(state) if is_state else {})

    def __repr__(self) -> str:
        return (
            f"DiLoCo({self.steps} steps, {self.rounds} rounds, {self.sent_bytes:,} bytes sent by "
            "this rank)"
        )


def _arguments(model, inner, outer, every, codec, fragments, overlap, error_feedback) -> list:
    """What the library takes. What is wrong is raised."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"[{_OP}] expected a module, got {type(model).__name__}")
    parameters = [
        (name, tensor_with_values(p, _OP, name))
        for name, p in model.named_parameters()
        if p.requires_grad
    ]
    for name, p in parameters:
        if type(p.data) is not torch.Tensor:
            raise ValueError(
                f"[{_OP}] expected parameters that are whole on every rank, got {name} as a "
                f"{type(p.data).__name__}"
            )
    if isinstance(inner, torch.optim.Optimizer):
        known = {id(p) for _, p in parameters}
        if not any(id(p) in known for g in inner.param_groups for p in g["params"]):
            raise ValueError(f"[{_OP}] expected inner to be an optimizer of the model's parameters")
    elif not callable(inner):
        raise TypeError(
            f"[{_OP}] expected inner to be an optimizer or a function, got {type(inner).__name__}"
        )
    outer = Outer() if outer is None else outer
    if not isinstance(outer, Outer):
        raise TypeError(f"[{_OP}] expected outer to be an Outer, got {type(outer).__name__}")
    codec, share = as_codec(codec, _OP), 1.0
    if error_feedback is not None:
        share = number(error_feedback, _OP, "error_feedback")
        if not 0 <= share <= 1:
            raise ValueError(f"[{_OP}] expected error_feedback to be 0 to 1, got {share:g}")
        codec = codec.replace(error_feedback=share > 0, rounding=None)
    buffers = list(model.named_buffers())
    return [
        [name for name, _ in parameters],
        [p for _, p in parameters],
        [name for name, _ in buffers],
        [x for _, x in buffers],
        codec._library_settings(),
        whole_number(every, _OP, "every"),
        whole_number(fragments, _OP, "fragments"),
        whole_number(int(overlap) if isinstance(overlap, bool) else overlap, _OP, "overlap"),
        share or 1.0,
        number(outer.lr, _OP, "the outer lr"),
        number(outer.momentum, _OP, "the outer momentum"),
        bool(outer.nesterov),
    ]
