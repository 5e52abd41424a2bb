"""A boundary between two stages of a model in two processes.

    # the process with the first part          # the process with the second
    out = sg.distributed.StageOutput(to=1)     inp = sg.distributed.StageInput(0, gradients="fp6")
    token = out(first(x))                      loss = criterion(second(inp()), target)
    token.backward()                           loss.backward()

Activations go forward, as they are, without loss, or in few bits. The neural gradient comes back
through a gate, as compress() would put one there, and coded, so that what is trained is what one
process with the same gate trains, to the bit: StageBoundary is that process's. The library codes,
sends and receives (<slimgrad/stages.h>); here are the modules.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable

from .._library import classes
from .._support import check_stream, current_stream, fresh_seed, in_the_name_of
from ..compression.compress import gate_options
from ..compression.gate import GradientGate
from ..compression.gradients import LossScale, Prune, Quantize, parse_gradients
from .calls import BoundaryError, call, group_of

# Differs from the tags of exchanges, and is unlikely to be used elsewhere.
TAG = 0x5360
Gradients = str | Prune | Quantize | Iterable | None


# ---- arguments ----------------------------------------------------------------------------------


def is_packed(coding: str, op: str) -> bool:
    """Whether codes are packed rather than entropy coded."""
    if coding not in ("coded", "packed"):
        raise ValueError(f"[{op}] expected coding to be 'coded' or 'packed', got {coding!r}")
    return coding == "packed"


def activations_of(activations: str | None, op: str) -> str | None:
    name = None if activations is None else str(activations)
    call(classes.StageMessages.check_activations, name, op)
    return name


def boundary_gate(
    gradients: Gradients,
    op: str,
    *,
    seed: int | None = None,
    stream: int | None = None,
    refresh: int = 1,
    warmup: int = 0,
    schedule: Mapping[int, float] | None = None,
    sample: int | None = None,
    min_elements: int | None = None,
) -> GradientGate | None:
    """The gate that compress() would put there; None where gradients travel as they are."""
    stream = check_stream(stream, op)
    with in_the_name_of(op):
        options = gate_options(refresh, warmup, sample, min_elements, schedule)
        if gradients is None or gradients == "lossless":
            return None
        prune, quantize = parse_gradients(gradients)
    if prune is not None and (prune.is_sparse or prune.allocation != "uniform"):
        raise ValueError(
            f"[{op}] expected a Prune(sparsity) that needs nothing but the gradient itself, got "
            f"{prune!r}"
        )
    if quantize is not None and isinstance(quantize.scale, LossScale) and quantize.scale.dynamic:
        raise ValueError(f"[{op}] expected a scale of the gradient's own, got {quantize.scale!r}")
    if schedule is not None and prune is None:
        raise ValueError(f"[{op}] expected a schedule with Prune, got {gradients!r}")
    for part in (prune, quantize):
        if part is not None:
            options |= part._options()
    return GradientGate(stream=stream, seed=fresh_seed(seed, op), **options)


def gradient_arguments(gate: GradientGate | None, gradients: Gradients) -> tuple:
    """How a gradient is sent, as the library takes it: a gate compresses it on the way."""
    if gate is None:
        return gradients == "lossless", None, None, 0
    return False, gate.plan, gate.stats, current_stream(gate.stream)


# ---- both ends ----------------------------------------------------------------------------------

_open: weakref.WeakSet[_End] = weakref.WeakSet()


@atexit.register
def _flush_all() -> None:
    for end in list(_open):
        with suppress(BoundaryError):
            end.flush()


class _End(nn.Module):
    """Shared by both ends of a boundary. A copy, or one from a pickle, starts a boundary of its
    own, in the default group."""

    _SENDS: str
    _RECEIVES: str

    def _connect(self, peer: int, group: dist.ProcessGroup | None, *settings: Any) -> None:
        """settings: as the library takes them after the peer."""
        op = type(self).__name__
        if isinstance(peer, bool) or not isinstance(peer, int):
            raise ValueError(
                f"[{op}] expected the rank of another of the {dist.get_world_size(group)} "
                f"processes, got {peer!r} in rank {dist.get_rank(group)}"
            )
        self._settings = (peer, *settings)
        self._link = self._new_link(group)

    def _new_link(self, group: dist.ProcessGroup | None = None) -> Any:
        op = type(self).__name__
        name = group_of(group, op).group_name
        link = call(getattr(classes, op), name, *self._settings)
        _open.add(self)
        return link

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_link": None}

    def _held(self) -> Any:
        """The library's."""
        if self._link is None:
            self._link = self._new_link()
        return self._link

    def report(self) -> dict[str, dict[str, int]]:
        """Messages and bytes on the wire, headers included, and what they would be plainly."""
        numbers = {self._SENDS: self._held().sent(), self._RECEIVES: self._held().received()}
        return {
            way: dict(zip(("messages", "bytes", "plain_bytes"), counted, strict=True))
            for way, counted in numbers.items()
        }

    def flush(self) -> None:
        """Returns when the other process has taken all that was sent."""
        call(self._held().flush)


# ---- the end of a stage -------------------------------------------------------------------------


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, output):
        ctx.held, ctx.device = output._held(), y.device
        ctx.number = call(ctx.held.send, y.detach(), ctx.needs_input_grad[0])
        return torch.zeros((), device=y.device)

    @staticmethod
    @once_differentiable
    def backward(ctx, _grad):
        return call(ctx.held.receive, ctx.number).to(ctx.device), None


class StageOutput(_End):
    """The end of a stage: sends a tensor to the stage in process ``to``, and returns a token, a
    zero whose backward() waits for the gradient and runs this stage's backward pass.

    to: the rank, in ``group``, of the process with the StageInput.
    activations: None sends them as they are; "lossless"; "fp3" to "fp8" (each tensor with the split
        that suits it best), a format such as "1-4-3", and "uniform2" to "uniform8" round them to
        nearest, which the backward pass takes for the identity.
    coding: "coded" (entropy coded) or "packed" (exactly as many bits as the format has, for fast
        links), of floats.
    tag: one for each boundary between the same two processes.
    timeout: seconds to wait for the other process; None as long as the process group does.

    A batch may go in microbatches: as many calls, and backward() of their tokens in any order.
    """

    _SENDS, _RECEIVES = "activations", "gradients"

    def __init__(
        self,
        to: int,
        activations: str | None = None,
        *,
        coding: str = "coded",
        group: dist.ProcessGroup | None = None,
        tag: int = TAG,
        timeout: float | None = None,
    ):
        super().__init__()
        name = activations_of(activations, "StageOutput")
        self._connect(to, group, name, is_packed(coding, "StageOutput"), tag, timeout)

    @torch.compiler.disable
    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return _Send.apply(y, self)


# ---- the beginning of a stage -------------------------------------------------------------------


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, _anchor, stage_input, number, received):
        ctx.input, ctx.number = stage_input, number
        return received.pop()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        how = gradient_arguments(ctx.input.gate, ctx.input.gradients)
        call(ctx.input._held().send, grad, ctx.number, *how)
        return None, None, None, None


class StageInput(_End):
    """The beginning of a stage: receives the tensor that the StageOutput in process ``source`` sent
    and returns it; in backward the gradient is compressed and sent there.

    source: the rank, in ``group``, of the process with the StageOutput.
    gradients: None sends them as they are; "lossless"; or as compress() takes them: "fp2" to "fp8",
        "1-4-1", a Prune, a Quantize, or one of each. What arrives is what the gate makes of them,
        exactly.
    shape, dtype: what is expected, -1 for any length; None takes what comes, up to max_bytes.
    max_bytes: what is announced to be larger is refused before it is received.
    coding, group, tag, timeout: as those of the StageOutput.
    seed, stream, refresh, warmup, schedule, sample, min_elements: of the gate, as in compress().
        The stream is by default this process's rank: set it on both sides to compare with a run of
        one process.

    slimgrad.state_dict(module) has the gate's state.
    """

    _SENDS, _RECEIVES = "gradients", "activations"

    def __init__(
        self,
        source: int,
        gradients: Gradients = None,
        *,
        shape: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        max_bytes: int = 1 << 30,
        coding: str = "coded",
        device: torch.device | str = "cpu",
        group: dist.ProcessGroup | None = None,
        tag: int = TAG,
        timeout: float | None = None,
        **gate_options,
    ):
        super().__init__()
        self.gradients, self.device = gradients, torch.device(device)
        self.gate = boundary_gate(gradients, "StageInput", **gate_options)
        limits = None if shape is None else list(shape), dtype, max_bytes
        packed = is_packed(coding, "StageInput")
        self._connect(source, group, *limits, packed, tag, timeout)

    @torch.compiler.disable
    def forward(self) -> torch.Tensor:
        x, number, wants_gradient = call(self._held().receive)
        x = x.to(self.device)
        if not wants_gradient:
            return x
        anchor = torch.zeros((), device=self.device, requires_grad=True)
        return _Receive.apply(anchor, self, number, [x])


# ---- both in one process ------------------------------------------------------------------------


class _RoundTrip(torch.autograd.Function):
    """What arrives of activations in few bits; the identity in backward."""

    @staticmethod
    def forward(ctx, x, activations, packed):
        return call(classes.StageMessages.round_trip, x.detach(), activations, packed)

    @staticmethod
    def backward(ctx, grad):
        return grad, None, None


class StageBoundary(nn.Module):
    """The same boundary inside one process: what StageOutput and StageInput with these arguments do
    to activations and gradients, without sending them."""

    def __init__(
        self,
        activations: str | None = None,
        gradients: Gradients = None,
        *,
        coding: str = "coded",
        **gate_options,
    ):
        super().__init__()
        self.activations = activations_of(activations, "StageBoundary")
        self.packed = is_packed(coding, "StageBoundary")
        self.gate = boundary_gate(gradients, "StageBoundary", **gate_options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.activations not in (None, "lossless"):
            x = _RoundTrip.apply(x, self.activations, self.packed)
        return x if self.gate is None else self.gate(x)
