"""Fewer bytes between machines, on torch.distributed as it is. docs/distributed.md has the design.

sg.distributed.register(model, codec="uniform8")         # DDP and FSDP2
sg.distributed.all_reduce(tensors, codec="lossless")     # in place, a sum
"""

from .auto import Choice
from .codec import CODECS, Codec
from .collectives import Handle, all_gather, all_reduce, broadcast, reduce_scatter
from .estimation import Estimate, estimate
from .messages import ExchangeError
from .plan import Plan
from .registration import register

__all__ = [
    "CODECS",
    "Choice",
    "Codec",
    "Estimate",
    "ExchangeError",
    "Handle",
    "Plan",
    "all_gather",
    "all_reduce",
    "broadcast",
    "estimate",
    "reduce_scatter",
    "register",
]
