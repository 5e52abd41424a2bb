"""A boundary between two stages of a model in two processes.

    # the process with the first part          # the process with the second
    out = sg.distributed.StageOutput(to=1)     inp = sg.distributed.StageInput(0, gradients="fp6")
    token = out(first(x))                      loss = criterion(second(inp()), target)
    token.backward()                           loss.backward()

Activations go forward, as they are, without loss, or in few bits. The neural gradient comes back
through a gate, as compress() would put one there, and coded, so that what is trained is what one
process with the same gate trains, to the bit: StageBoundary is that process's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable

from .._library import ops
from .._support import current_stream
from ..compression.gate import GradientGate
from ..tensors.coding import PayloadError
from .frames import ACTIVATION, GRADIENT, Header, tensor_of
from .stage_link import Link
from .treatments import (
    Gradients,
    activation_frame,
    boundary_gate,
    gradient_frame,
    parse_activations,
)

# Differs from the tags of exchanges, and is unlikely to be used elsewhere.
TAG = 0x5360
CODINGS = ("coded", "packed")


def check_coding(coding: str, op: str) -> bool:
    """Whether codes are packed rather than entropy coded."""
    if coding not in CODINGS:
        raise ValueError(f"[{op}] expected coding to be 'coded' or 'packed', got {coding!r}")
    return coding == "packed"


def _link(
    peer: int, group: dist.ProcessGroup | None, tag: int, timeout: float | None, owner: str
) -> Link:
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    if isinstance(peer, bool) or not isinstance(peer, int) or not 0 <= peer < world or peer == rank:
        raise ValueError(
            f"[{owner}] expected the rank of another of the {world} processes, got {peer!r} in "
            f"rank {rank}"
        )
    if timeout is not None and not 0 < timeout < math.inf:
        raise ValueError(f"[{owner}] expected timeout to be seconds > 0 or None, got {timeout!r}")
    return Link(peer, group, tag, timeout, owner)


class _End(nn.Module):
    """Shared by both ends of a boundary."""

    link: Link
    _SENDS: str
    _RECEIVES: str

    def report(self) -> dict[str, dict[str, int]]:
        """Messages and bytes on the wire, headers included, and what they would be plainly."""
        return {
            self._SENDS: self.link.sent.as_dict(),
            self._RECEIVES: self.link.received.as_dict(),
        }

    def flush(self) -> None:
        """Returns when the other process has taken all that was sent."""
        self.link.flush()


# ---- the end of a stage -------------------------------------------------------------------------


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, output):
        ctx.output, ctx.device = output, y.device
        ctx.serial = output._send(y, wants_gradient=ctx.needs_input_grad[0])
        return torch.zeros((), device=y.device)

    @staticmethod
    @once_differentiable
    def backward(ctx, _grad):
        return ctx.output._receive(ctx.serial).to(ctx.device), None


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
        self.mode, self.bits = parse_activations(activations, "StageOutput")
        self.packed = check_coding(coding, "StageOutput")
        self.link = _link(to, group, tag, timeout, "StageOutput")
        self._next = 0
        self._expected: dict[int, Header] = {}  # what went out and has no gradient yet
        self._early: dict[int, torch.Tensor] = {}  # gradients that were not yet asked for

    @torch.compiler.disable
    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return _Send.apply(y, self)

    def _send(self, y: torch.Tensor, wants_gradient: bool) -> int:
        serial, self._next = self._next, self._next + 1
        frame = activation_frame(y, serial, self.mode, self.bits, self.packed, wants_gradient)
        self.link.send(frame)
        if wants_gradient:
            self._expected[serial] = frame[0]
        return serial

    def _receive(self, serial: int) -> torch.Tensor:
        """The gradient of microbatch ``serial``; others that arrive before it are kept."""
        if serial not in self._expected and serial not in self._early:
            raise RuntimeError(
                "[StageOutput] expected one backward pass for each token, got a second for token "
                f"{serial}"
            )
        while serial not in self._early:
            with self.link.refusing("gradient", serial):
                header = self.link.receive()
                self._check(header)
                self._early[header.serial] = tensor_of(header, self.link.receive_body(header))
            del self._expected[header.serial]
        return self._early.pop(serial)

    def _check(self, header: Header) -> None:
        sent = self._expected.get(header.serial)
        if header.kind != GRADIENT or sent is None:
            waiting = ", ".join(map(str, sorted(self._expected)[:8]))
            raise PayloadError(
                f"expected the gradient of one of {waiting}, got {header.kind} {header.serial}"
            )
        if (header.shape, header.dtype) != (sent.shape, sent.dtype):
            raise PayloadError(
                f"expected {sent.describe()}, as the activation was, got {header.describe()}"
            )


# ---- the beginning of a stage -------------------------------------------------------------------


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, _anchor, stage_input, serial, received):
        ctx.input, ctx.serial = stage_input, serial
        return received.pop()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        ctx.input._send(grad, ctx.serial)
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
        self.gradients = gradients
        self.gate = boundary_gate(gradients, "StageInput", **gate_options)
        self.packed = check_coding(coding, "StageInput")
        self.shape = None if shape is None else tuple(shape)
        self.dtype, self.max_bytes, self.device = dtype, max_bytes, torch.device(device)
        self.link = _link(source, group, tag, timeout, "StageInput")
        self._next = 0

    @torch.compiler.disable
    def forward(self) -> torch.Tensor:
        with self.link.refusing("activation", self._next):
            header = self.link.receive()
            self._check(header)
            x = tensor_of(header, self.link.receive_body(header)).to(self.device)
        self._next += 1
        if not header.wants_gradient:
            return x
        anchor = torch.zeros((), device=self.device, requires_grad=True)
        return _Receive.apply(anchor, self, header.serial, [x])

    def _send(self, grad: torch.Tensor, serial: int) -> None:
        grad = compressed(grad, self.gate)
        self.link.send(gradient_frame(grad, serial, self.gate, self.gradients, self.packed))

    def _check(self, header: Header) -> None:
        if header.kind != ACTIVATION or header.serial != self._next:
            raise PayloadError(
                f"expected activation {self._next}, got {header.kind} {header.serial}"
            )
        if header.plain_bytes > self.max_bytes:
            raise PayloadError(
                f"expected at most max_bytes={self.max_bytes}, got {header.describe()}: "
                f"{header.plain_bytes} bytes"
            )
        fits = self.shape is None or (
            len(self.shape) == len(header.shape)
            and all(want in (-1, got) for want, got in zip(self.shape, header.shape, strict=True))
        )
        if not fits or (self.dtype is not None and self.dtype != header.dtype):
            wanted = "any type" if self.dtype is None else str(self.dtype).removeprefix("torch.")
            shape = "any shape" if self.shape is None else f"shape {list(self.shape)}"
            raise PayloadError(f"expected {wanted} of {shape}, got {header.describe()}")


def compressed(grad: torch.Tensor, gate: GradientGate | None) -> torch.Tensor:
    if gate is None:
        return grad
    return ops.compress_gradient(grad, gate.plan, gate.stats, current_stream(gate.stream))


# ---- both in one process ------------------------------------------------------------------------


class _RoundTrip(torch.autograd.Function):
    """What arrives of activations in few bits; the identity in backward."""

    @staticmethod
    def forward(ctx, x, mode, bits, packed):
        return tensor_of(*activation_frame(x, 0, mode, bits, packed, True)).to(x.device)

    @staticmethod
    def backward(ctx, grad):
        return grad, None, None, None


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
        self.mode, self.bits = parse_activations(activations, "StageBoundary")
        self.packed = check_coding(coding, "StageBoundary")
        self.gate = boundary_gate(gradients, "StageBoundary", **gate_options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mode in ("float", "uniform"):
            x = _RoundTrip.apply(x, self.mode, self.bits, self.packed)
        return x if self.gate is None else self.gate(x)
