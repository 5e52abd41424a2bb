"""``register``: gradients of a distributed model travel coded."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .ddp import exchange_bucket
from .plan import CodecChoice, Plan, Schedule


def register(
    model: nn.Module,
    codec: CodecChoice = "uniform8",
    *,
    warmup: int = 0,
    schedule: Schedule | None = None,
    error_feedback: bool | None = None,
) -> Plan:
    """From the next backward pass on the gradients of ``model`` are averaged over ranks coded.

    ``model``: a ``DistributedDataParallel``, or what ``fully_shard`` (FSDP2) was applied to.
    ``codec``: a ``Codec``, one of ``CODECS``, a format such as "1-4-3", "float32" for torch's own
    exchange, "auto" for the quickest on this link (measured now, for a second or two; lossless or 8
    bits, or "float32" if nothing pays; ``choice`` of the result has what was found), or a function
    of the model and its group that returns one of these. For the first ``warmup`` steps gradients
    travel as torch sends them; ``schedule`` maps steps to codecs that hold from then on.
    ``error_feedback`` overrides the codecs' own. Every rank must pass the same arguments and use
    the same version of slimgrad; otherwise every rank raises, with both settings.

    Returns the state: ``step``, ``sent_bytes``, ``residual_bytes()``, ``state_dict()``.
    """
    from torch.distributed.fsdp import FSDPModule

    modules = model.modules() if isinstance(model, nn.Module) else ()
    if isinstance(model, DistributedDataParallel):
        plan = Plan(model.module, codec, model.process_group, warmup, schedule, error_feedback)
        plan.is_static_graph = model.static_graph
        try:
            model.register_comm_hook(plan, exchange_bucket)
        except RuntimeError as error:
            if "only be called once" not in str(error):
                raise
            raise RuntimeError(
                "[register] expected a DistributedDataParallel without a communication hook, got "
                "one that has a hook already; wrap the module in a new one"
            ) from error
        return plan
    if any(isinstance(module, FSDPModule) for module in modules):
        from .fsdp import shard_group, use_coded_reduce_scatter

        plan = Plan(model, codec, shard_group(model), warmup, schedule, error_feedback)
        use_coded_reduce_scatter(model, plan)
        return plan
    raise TypeError(
        "[register] expected a DistributedDataParallel or a module under fully_shard, got "
        f"{type(model).__name__}"
    )
