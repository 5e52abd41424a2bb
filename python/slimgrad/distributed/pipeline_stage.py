"""A stage for the schedules of torch.distributed.pipelining whose tensors travel as messages of
<slimgrad/stages.h>.

torch's stages move tensors themselves: a schedule asks a stage for point-to-point operations, runs
them together with those of other microbatches, and calls the stage to compute a chunk. torch has no
hook between a tensor and its operation, so six methods are overridden, those that every schedule
calls. They have no underscore, but torch does not document them: ``_METHODS`` lists them, and a
torch without one of them is refused when a stage is made. Nothing else of a stage is read or
written: an operation says which tensor torch wants to send, or to have received.

A receive is posted before the length of the message is known, with room for the longest.
Gloo delivers a shorter message into a longer buffer; backends that need equal sizes are refused.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

from .._library import classes
from .._support import derive_seed, fresh_seed
from ..compression.gate import GradientGate
from ..tensors.coding import PayloadError
from .boundary import Gradients, activations_of, boundary_gate, gradient_arguments, is_packed
from .calls import call

_OP = "CompressedPipelineStage"
ACTIVATION, GRADIENT = "activation", "gradient"
_METHODS = (
    "get_fwd_send_ops",  # the activations of a chunk, to be replaced by messages
    "get_bwd_send_ops",  # the gradients of a chunk, to be replaced by messages
    "get_fwd_recv_ops",  # the buffers of activations, to be replaced by room for messages
    "get_bwd_recv_ops",  # the buffers of gradients, to be replaced by room for messages
    "forward_one_chunk",  # called when the activations of a chunk have arrived
    "backward_one_chunk",  # called when the gradients of a chunk have arrived
)


class CompressedPipelineStage(PipelineStage):
    """torch.distributed.pipelining.PipelineStage, for any of its schedules, with fewer bytes.

    activations: of the outputs that this stage sends forward, as StageOutput has it.
    gradients, coding and the options of a gate: of the gradients that it sends back, as StageInput
        has them. The gates are in ``gates``, one for each input.
    kwargs: those of PipelineStage.

    Between stages of one process, which some schedules have, nothing is sent or compressed.
    """

    def __init__(
        self,
        submodule: nn.Module,
        stage_index: int,
        num_stages: int,
        device: torch.device,
        *,
        activations: str | None = None,
        gradients: Gradients = None,
        coding: str = "coded",
        seed: int | None = None,
        gate_options: dict | None = None,
        **kwargs,
    ):
        _check_torch()
        super().__init__(submodule, stage_index, num_stages, device, **kwargs)
        _check_backend(self.group)
        self._activations = activations_of(activations, _OP)
        self._packed = is_packed(coding, _OP)
        self._gradients = gradients
        self._gate_options = dict(gate_options or {})
        self._seed = fresh_seed(seed, _OP)
        boundary_gate(gradients, _OP, seed=0, **self._gate_options)  # refuses early what it must
        self.gates = nn.ModuleList()
        counted = {"messages": 0, "bytes": 0, "plain_bytes": 0}
        self._sent = {"activations": dict(counted), "gradients": dict(counted)}
        self._received: dict[tuple[str, int], list[tuple[int, torch.Tensor, torch.Tensor]]] = {}

    def report(self) -> dict[str, dict[str, int]]:
        """What this stage sent: messages, bytes on the wire, and what they would be plainly."""
        return {name: dict(counted) for name, counted in self._sent.items()}

    # ---- sending --------------------------------------------------------------------------------

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        ops = super().get_fwd_send_ops(fwd_chunk_id)
        how = self._activations, self._packed
        for op in ops:
            message = call(classes.StageMessages.activation, op.tensor.detach(), fwd_chunk_id, *how)
            op.tensor = self._counted(message, op.tensor, "activations")
        return ops

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        ops = super().get_bwd_send_ops(bwd_chunk_id)
        for index, op in enumerate(ops):
            how = self._packed, *gradient_arguments(self._gate(index), self._gradients)
            message = call(classes.StageMessages.gradient, op.tensor, bwd_chunk_id, *how)
            op.tensor = self._counted(message, op.tensor, "gradients")
        return ops

    def _gate(self, index: int) -> GradientGate | None:
        if self._gradients is None or self._gradients == "lossless":
            return None
        while len(self.gates) <= index:
            seed = derive_seed(self._seed, "stage", self.stage_index, len(self.gates))
            gate = boundary_gate(self._gradients, _OP, seed=seed, **self._gate_options)
            self.gates.append(gate)  # type: ignore[arg-type]
        return self.gates[index]  # type: ignore[return-value]

    def _counted(self, message: torch.Tensor, x: torch.Tensor, what: str) -> torch.Tensor:
        for name, more in zip(self._sent[what], (1, message.nbytes, x.nbytes), strict=True):
            self._sent[what][name] += more
        return message

    # ---- receiving ------------------------------------------------------------------------------

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._with_room(super().get_fwd_recv_ops(fwd_chunk_id), ACTIVATION, fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._with_room(super().get_bwd_recv_ops(bwd_chunk_id), GRADIENT, bwd_chunk_id)

    def _with_room(self, ops: list[dist.P2POp], kind: str, chunk: int) -> list[dist.P2POp]:
        """Receives messages instead; what torch wanted to receive into is filled by ``_take``."""
        received = self._received[kind, chunk] = []
        for op in ops:
            buffer = op.tensor
            op.tensor = classes.StageMessages.room(buffer)
            received.append((op.peer, buffer, op.tensor))
        return ops

    def forward_one_chunk(self, fwd_chunk_id: int, *args, **kwargs):
        self._take(ACTIVATION, fwd_chunk_id)
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args, **kwargs):
        self._take(GRADIENT, bwd_chunk_id)
        return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def _take(self, kind: str, chunk: int) -> None:
        """Decodes the messages that have arrived into the buffers of torch's stage."""
        for peer, buffer, data in self._received.pop((kind, chunk), ()):
            try:
                is_gradient = kind == GRADIENT
                tensor = call(classes.StageMessages.tensor, data, is_gradient, chunk, buffer)
            except PayloadError as error:
                raise PayloadError(
                    f"[{_OP}] {kind} {chunk} for stage {self.stage_index} from rank {peer}: {error}"
                ) from None
            with torch.no_grad():
                buffer.copy_(tensor)


def _check_torch() -> None:
    missing = [name for name in _METHODS if not hasattr(PipelineStage, name)]
    if missing:
        raise RuntimeError(
            f"[{_OP}] expected torch.distributed.pipelining.PipelineStage to have the methods "
            f"{', '.join(_METHODS)}; torch {torch.__version__} lacks {', '.join(missing)}: write "
            "the loop over microbatches yourself, with StageOutput and StageInput "
            "(docs/pipeline.md)"
        )


def _check_backend(group: dist.ProcessGroup | None) -> None:
    config = dist.get_backend_config(group)  # "cpu:gloo,cuda:nccl"
    if "cpu:gloo" not in config.split(","):
        raise ValueError(
            f"[{_OP}] expected a process group that moves tensors on the CPU with Gloo, got "
            f"{config}: messages are shorter than the buffers they are received into"
        )
