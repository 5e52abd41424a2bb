"""A reduce-scatter for FSDP2 (``fully_shard``)."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

from .collectives import reduce_scatter
from .plan import Plan


def _groups_of_parameters(model: nn.Module) -> list:
    """FSDP's own, one for each module that it shards by itself."""
    groups = []
    for module in model.modules():
        if isinstance(module, FSDPModule):
            groups += [(module, group) for group in module._get_fsdp_state()._fsdp_param_groups]
    return groups


def shard_group(model: nn.Module) -> dist.ProcessGroup:
    """The one over which gradients are scattered."""
    groups = {
        parameters._reduce_scatter_process_group for _, parameters in _groups_of_parameters(model)
    }
    if len(groups) != 1:
        raise ValueError(
            f"[register] expected a model that is sharded over one group, got {len(groups)}"
        )
    return groups.pop()


def use_coded_reduce_scatter(model: nn.Module, plan: Plan) -> None:
    for module, parameters in _groups_of_parameters(model):
        module.set_custom_reduce_scatter(CodedReduceScatter(plan, parameters))


class CodedReduceScatter(DefaultReduceScatter):
    """The reduce-scatter of one module's gradients. FSDP has split them along their first
    dimension, padded, into a row for each rank, one parameter after the other."""

    def __init__(self, plan: Plan, parameters):
        self.plan, self.parameters = plan, parameters
        self.calls = 0  # of this module, which a step may not use

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        plan = self.plan
        step = max(self.calls, plan.resumed_at)
        codec = plan.codec(step)
        self.calls = step + 1
        plan.step = max(plan.step, self.calls)
        world = dist.get_world_size(group)
        divide_by = _divisor(op, world)
        if codec is None:
            return super().__call__(output_tensor, input_tensor, group, op, async_op)
        rows = input_tensor.view(world, -1)
        lengths = self._lengths(rows.size(1), world)
        names = [parameter._param_fqn or "" for parameter in self.parameters.fsdp_params]
        all_there = len(names) == len(lengths)
        residuals = None
        if codec.error_feedback:
            if not all_there:
                raise ValueError(
                    "[reduce_scatter] expected gradients of all parameters of a module with error "
                    f"feedback, got fewer: those of {', '.join(names)} are not all used"
                )
            residuals = self._residuals(rows, lengths, names, codec)
        handle = reduce_scatter(
            list(output_tensor.split(lengths)),
            [list(row.split(lengths)) for row in rows],
            codec,
            group,
            async_op=True,
            step=step,
            divide_by=divide_by,
            residuals=residuals,
            keys=[plan._draws(name) for name in (names if all_there else [" ".join(names)])],
        )
        assert handle is not None
        handle.wait()
        plan.sent_bytes += handle.sent_bytes
        return None

    def _lengths(self, row: int, world: int) -> list[int]:
        """The length of each parameter's part of a row. Parameters without a gradient are missing
        in the row, and FSDP does not pass their names; then the row is one piece with one scale."""
        lengths = []
        for parameter in self.parameters.fsdp_params:
            size = parameter._orig_size
            rows = -(-size[0] // world) if len(size) > 0 else 1
            lengths.append(rows * size[1:].numel() if len(size) > 0 else 1)
        return lengths if sum(lengths) == row else [row]

    def _residuals(self, rows, lengths, names, codec) -> list[list[torch.Tensor | None]]:
        """The residuals for each rank's part of each parameter. Those of a parameter are in one
        tensor, row by row as FSDP splits it; this rank's own row is not coded and loses nothing."""
        parts = []
        for name, length in zip(names, lengths, strict=True):
            residual = self.plan._residual(name, len(rows) * length, codec, rows.device)
            parts.append([None] * len(rows) if residual is None else residual.view(len(rows), -1))
        return [[part[rank] for part in parts] for rank in range(len(rows))]


def _divisor(op, world: int) -> float:
    """The number of ranks for a mean; for a sum FSDP divides before or after."""
    if op == dist.ReduceOp.AVG:
        return world
    if op == dist.ReduceOp.SUM:
        return 1
    raise ValueError(
        f"[reduce_scatter] expected FSDP to reduce by sum or mean, got {op}: call "
        "set_force_sum_reduction_for_comms(True) where a gradient divide factor is set"
    )
