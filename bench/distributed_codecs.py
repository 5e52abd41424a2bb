"""What the gradients may travel as: a name for every exchange that is measured."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from bench.int8_exchange import Int8Exchange


def _ddp(model: nn.Module, bucket_mb: float = 25) -> DistributedDataParallel:
    return DistributedDataParallel(
        model, gradient_as_bucket_view=True, init_sync=False, bucket_cap_mb=bucket_mb
    )


def _float32(model):
    return _ddp(model)


def _fp16(model):
    model = _ddp(model)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return model


def _bf16(model):
    """By another name, for DDP refuses this hook by its own where there is no CUDA."""

    def hook(group, bucket):
        return default_hooks.bf16_compress_hook(group, bucket)

    model = _ddp(model)
    model.register_comm_hook(None, hook)
    return model


def _powersgd(model):
    """In one bucket, where it is quickest, as its factors are few bytes and its messages many."""
    model = _ddp(model, 1000)
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=4, start_powerSGD_iter=2, random_seed=0
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return model


def _int8(model):
    model = _ddp(model)
    model.register_comm_hook(None, Int8Exchange().hook)
    return model


RIVALS: dict[str, Callable] = {
    "float32": _float32,
    "fp16 hook": _fp16,
    "bf16 hook": _bf16,
    "PowerSGD rank 4": _powersgd,
    "int8 exchange": _int8,
}


# Of ours: one of every kind, those with a table both counted and fitted.
OURS = ["lossless", "fp8", "fp6", "fp4", "uniform8", "uniform8 gennorm", "uniform4"]
OURS += ["uniform4 gennorm", "uniform2", "uniform2 gennorm", "packed8", "packed4", "rate4"]
OURS += ["rate2", "rate2 gennorm", "pruned"]


def _ours(name: str) -> Callable:
    def make(model):
        import slimgrad as sg

        kind, _, more = name.partition(" ")
        settings = {"": {}, "feedback": {"error_feedback": True}}.get(more, {"model": more})
        model = _ddp(model)
        codec = sg.distributed.Codec.parse(kind, **settings)
        model.slimgrad_plan = sg.distributed.register(model, codec)
        return model

    return make


def exchange(name: str) -> Callable:
    """What makes a model one whose gradients travel so: a rival, or ours, "uniform8", with a fitted
    law as "uniform8 gennorm", with error feedback as "uniform8 feedback"."""
    return RIVALS.get(name) or _ours(name)


def exchanges() -> dict[str, Callable]:
    """By name: what makes a model one whose gradients travel so."""
    return RIVALS | {name: _ours(name) for name in OURS}
