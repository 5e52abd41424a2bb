"""Layers whose backward is a choice for each element: dropout and max pooling."""

from __future__ import annotations

from torch import nn

from .. import functional as F
from .._support import records_plain_model


class Dropout(nn.Dropout):
    """torch's dropout, same mask for the same seed; keeps 1 bit per element instead of a float."""

    def forward(self, input):
        if self.inplace or records_plain_model():
            return super().forward(input)
        return F.dropout(input, self.p, self.training)


class MaxPool2d(nn.MaxPool2d):
    """torch's max pooling; keeps 4 bits per output (the position in the window) instead of the
    input and a 64-bit index per output. For windows of up to 16 places; others are torch's own."""

    def forward(self, input):
        if records_plain_model():
            return super().forward(input)
        return F.max_pool2d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            self.return_indices,
        )
