"""Fewer bytes between processes."""

from .boundary import StageBoundary, StageInput, StageOutput
from .stage_link import BoundaryError

__all__ = [
    "BoundaryError",
    "CompressedPipelineStage",
    "StageBoundary",
    "StageInput",
    "StageOutput",
]


def __getattr__(name: str):
    # torch.distributed.pipelining is large, and few have a use for it.
    if name == "CompressedPipelineStage":
        from .pipeline_stage import CompressedPipelineStage

        return CompressedPipelineStage
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
