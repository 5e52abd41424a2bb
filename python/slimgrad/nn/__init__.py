"""torch.nn's activations with a few bits kept for backward instead of the input, and its linear and
convolution layers and its attention with a sparse backward pass."""

from .activations import (
    CELU,
    ELU,
    GELU,
    SELU,
    Hardshrink,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    RReLU,
    Sigmoid,
    SiLU,
    Softplus,
    Softshrink,
    Softsign,
    Stepwise,
    Tanh,
    Tanhshrink,
    Threshold,
)
from .attention import MultiheadAttention
from .conversion_report import ConversionReport
from .convert import convert_activations
from .layers import Conv2d, Linear
from .masks import Dropout, MaxPool2d

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "SELU",
    "Conv2d",
    "ConversionReport",
    "Dropout",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "Linear",
    "LogSigmoid",
    "MaxPool2d",
    "Mish",
    "MultiheadAttention",
    "PReLU",
    "RReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Stepwise",
    "Tanh",
    "Tanhshrink",
    "Threshold",
    "convert_activations",
]
