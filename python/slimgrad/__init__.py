"""slimgrad: gradient compression for neural-network training."""

from importlib.metadata import version as _version

import torch as _torch

from . import functional, nn
from ._support import derive_seed
from .compression.compress import compress
from .compression.controller import Controller
from .compression.gradients import LossScale, Prune, Quantize
from .compression.run_log import log_run
from .compression.state import StateWarning, load_state_dict, state_dict
from .memory import cached_memory, empty_cache
from .saved.packer import SavedTensors, saved_tensors
from .saved.saved_bytes import SavedBytes, saved_bytes
from .saved.settings import Saved
from .tensors.coding import PayloadError, decode, encode, inspect
from .tensors.deltas import apply_delta, delta
from .tensors.distributions import FAMILIES, Distribution, fit
from .tensors.files import load, save
from .tensors.formats import (
    FloatFormat,
    best_format,
    expected_error,
    gradient_scale,
    relative_error,
)
from .tensors.pruning import (
    Allocation,
    SparsityWarning,
    allocate,
    expected_cosine,
    expected_sparsity,
    threshold,
)
from .tensors.quantization import (
    PackedTensor,
    pack,
    prune,
    prune_,
    prune_quantize,
    prune_quantize_,
    quantize,
    quantize_,
)
from .tensors.stats import TensorStats, measure
from .tensors.step_tables import StepTable, steps

__version__ = _version("slimgrad")

if _torch.distributed.is_available():
    from . import distributed  # noqa: F401

__all__ = [
    "FAMILIES",
    "Allocation",
    "Controller",
    "Distribution",
    "FloatFormat",
    "LossScale",
    "PackedTensor",
    "PayloadError",
    "Prune",
    "Quantize",
    "Saved",
    "SavedBytes",
    "SavedTensors",
    "SparsityWarning",
    "StateWarning",
    "StepTable",
    "TensorStats",
    "allocate",
    "apply_delta",
    "best_format",
    "cached_memory",
    "compress",
    "decode",
    "delta",
    "derive_seed",
    "empty_cache",
    "encode",
    "expected_cosine",
    "expected_error",
    "expected_sparsity",
    "fit",
    "functional",
    "gradient_scale",
    "inspect",
    "load",
    "load_state_dict",
    "log_run",
    "measure",
    "nn",
    "pack",
    "prune",
    "prune_",
    "prune_quantize",
    "prune_quantize_",
    "quantize",
    "quantize_",
    "relative_error",
    "save",
    "saved_bytes",
    "saved_tensors",
    "state_dict",
    "steps",
    "threshold",
]
