"""Fewer bytes between machines, on torch.distributed as it is. docs/distributed.md has the design.

sg.distributed.register(model, codec="uniform8")         # DDP and FSDP2
sg.distributed.all_reduce(tensors, codec="lossless")     # in place, a sum
sg.distributed.DiLoCo(model, optimizer, every=50)        # few exchanges, for slow links
"""

from .auto import Choice
from .boundary import StageBoundary, StageInput, StageOutput
from .calls import BoundaryError, ExchangeError
from .codec import CODECS, Codec
from .collectives import Handle, all_gather, all_reduce, broadcast, reduce_scatter
from .diloco import DiLoCo, Outer
from .estimation import Estimate, estimate
from .plan import Plan
from .registration import register

__all__ = [
    "CODECS",
    "BoundaryError",
    "Choice",
    "Codec",
    "CompressedPipelineStage",
    "DiLoCo",
    "Estimate",
    "ExchangeError",
    "Handle",
    "Outer",
    "Plan",
    "StageBoundary",
    "StageInput",
    "StageOutput",
    "all_gather",
    "all_reduce",
    "broadcast",
    "estimate",
    "reduce_scatter",
    "register",
]


def __getattr__(name: str):
    # torch.distributed.pipelining is large, and few have a use for it.
    if name == "CompressedPipelineStage":
        from .pipeline_stage import CompressedPipelineStage

        return CompressedPipelineStage
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
