"""slimgrad: gradient compression for neural-network training."""

from importlib.metadata import version as _version

import torch as _torch

from . import functional, nn
from ._seeds import derive_seed
from .coding import PayloadError, decode, encode, inspect
from .compression import compress
from .controller import Controller
from .distributions import FAMILIES, Distribution, fit
from .files import load, save
from .formats import FloatFormat, best_format, expected_error, gradient_scale, relative_error
from .gradients import LossScale, Prune, Quantize
from .memory import cached_memory, empty_cache
from .pruning import (
    Allocation,
    SparsityWarning,
    allocate,
    expected_cosine,
    expected_sparsity,
    threshold,
)
from .quantization import (
    PackedTensor,
    pack,
    prune,
    prune_,
    prune_quantize,
    prune_quantize_,
    quantize,
    quantize_,
)
from .run_log import log_run
from .saved.context import SavedTensors, saved_tensors
from .saved.saved_bytes import SavedBytes, saved_bytes
from .saved.settings import Saved
from .state import StateWarning, load_state_dict, state_dict
from .stats import TensorStats, measure
from .step_tables import StepTable, steps

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
    "best_format",
    "cached_memory",
    "compress",
    "decode",
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
