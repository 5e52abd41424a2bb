"""A stage for the schedules of torch.distributed.pipelining whose tensors travel as frames.

torch's stages move tensors themselves: a schedule asks a stage for point-to-point operations
(get_fwd_send_ops and its three siblings), runs them together with those of other microbatches, and
calls forward_one_chunk or backward_one_chunk. There is no hook between a tensor and its operation,
but these six methods are public: here they exchange the tensor of an operation for a frame, and
frames for tensors before the chunk is computed.

The receiver posts its operation before it knows how long a frame will be, with room for the
longest. Gloo delivers a shorter message into a longer buffer; backends that want equal sizes are
refused.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

from .._support import derive_seed, fresh_seed
from ..compression.gate import GradientGate
from ..tensors.coding import PayloadError
from .boundary import check_coding, compressed
from .frames import (
    ACTIVATION,
    GRADIENT,
    HEADER_BYTES,
    PAYLOAD_SLACK,
    Frame,
    header_bytes,
    parse_header,
    tensor_of,
)
from .stage_link import Traffic
from .treatments import (
    Gradients,
    activation_frame,
    boundary_gate,
    gradient_frame,
    parse_activations,
)

_OP = "CompressedPipelineStage"


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
        super().__init__(submodule, stage_index, num_stages, device, **kwargs)
        _check_backend(self.group)
        self._mode = parse_activations(activations, _OP)
        self._packed = check_coding(coding, _OP)
        self._gradients = gradients
        self._gate_options = dict(gate_options or {})
        self._seed = fresh_seed(seed, _OP)
        boundary_gate(gradients, _OP, seed=0, **self._gate_options)  # refuses early what it must
        self.gates = nn.ModuleList()
        self.traffic = {name: Traffic() for name in ("activations", "gradients")}
        self._received: dict[tuple[str, int], list] = {}

    def report(self) -> dict[str, dict[str, int]]:
        """What this stage sent: messages, bytes on the wire, and what they would be plainly."""
        return {name: traffic.as_dict() for name, traffic in self.traffic.items()}

    # ---- sending --------------------------------------------------------------------------------

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        ops = super().get_fwd_send_ops(fwd_chunk_id)
        for op in ops:
            frame = activation_frame(op.tensor, fwd_chunk_id, *self._mode, self._packed, True)
            op.tensor = self._as_bytes(frame, "activations")
        return ops

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        ops = super().get_bwd_send_ops(bwd_chunk_id)
        for index, op in enumerate(ops):
            gate = self._gate(index)
            grad = compressed(op.tensor, gate)
            frame = gradient_frame(grad, bwd_chunk_id, gate, self._gradients, self._packed)
            op.tensor = self._as_bytes(frame, "gradients")
        return ops

    def _gate(self, index: int) -> GradientGate | None:
        if self._gradients is None or self._gradients == "lossless":
            return None
        while len(self.gates) <= index:
            seed = derive_seed(self._seed, "stage", self.stage_index, len(self.gates))
            gate = boundary_gate(self._gradients, _OP, seed=seed, **self._gate_options)
            self.gates.append(gate)  # type: ignore[arg-type]
        return self.gates[index]  # type: ignore[return-value]

    def _as_bytes(self, frame: Frame, what: str) -> torch.Tensor:
        header, body = frame
        self.traffic[what].count(header)
        return torch.cat([header_bytes(header), body])

    # ---- receiving ------------------------------------------------------------------------------

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        ops = super().get_fwd_recv_ops(fwd_chunk_id)
        return self._with_room(ops, ACTIVATION, fwd_chunk_id, self.args_recv_info)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        ops = super().get_bwd_recv_ops(bwd_chunk_id)
        return self._with_room(ops, GRADIENT, bwd_chunk_id, self.grad_recv_info)

    def _with_room(
        self, ops: list[dist.P2POp], kind: str, chunk: int, infos: dict
    ) -> list[dist.P2POp]:
        if not ops:
            return ops
        places = [info for info in infos[chunk] if info.buffer is not None]
        for op in ops:
            room = HEADER_BYTES + op.tensor.nbytes + PAYLOAD_SLACK
            op.tensor = torch.empty(room, dtype=torch.uint8)
        rooms = [op.tensor for op in ops]
        self._received[kind, chunk] = list(zip(places, rooms, strict=True))
        return ops

    def forward_one_chunk(self, fwd_chunk_id: int, *args, **kwargs):
        self._take(ACTIVATION, fwd_chunk_id)
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args, **kwargs):
        self._take(GRADIENT, bwd_chunk_id)
        return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def _take(self, kind: str, chunk: int) -> None:
        """Frames that have arrived become the tensors that torch's stage expects."""
        for place, data in self._received.pop((kind, chunk), ()):
            try:
                header = parse_header(data[:HEADER_BYTES])
                wanted = (kind, chunk, tuple(place.buffer.shape), place.buffer.dtype)
                if (header.kind, header.serial, header.shape, header.dtype) != wanted:
                    raise PayloadError(
                        f"expected {place.buffer.dtype} of shape {list(place.buffer.shape)}, got "
                        f"{header.kind} {header.serial}, {header.describe()}"
                    )
                body = data[HEADER_BYTES : HEADER_BYTES + header.nbytes]
                tensor = tensor_of(header, body)
            except PayloadError as error:
                raise PayloadError(
                    f"[{_OP}] {kind} {chunk} for stage {self.stage_index} from stage "
                    f"{place.source}: {error}"
                ) from None
            place.buffer = tensor.to(self.device)


def _check_backend(group: dist.ProcessGroup | None) -> None:
    group = group or dist.distributed_c10d._get_default_group()
    try:
        backend = group._get_backend(torch.device("cpu")).name()
    except RuntimeError:
        backend = "none"
    if backend != "gloo":
        raise ValueError(
            f"[{_OP}] expected a process group that moves tensors on the CPU with Gloo, got "
            f"{backend}: frames are shorter than the buffers they are received into"
        )
