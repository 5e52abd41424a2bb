"""A bound method of a converted layer, held by others when the layer is given back."""

import pytest
import torch
from torch import nn

import slimgrad as sg

SPARSE = sg.Prune(weight=0.9, input=0.5, sparse_backward="always")


@pytest.mark.parametrize("gradients", ["fp6", SPARSE], ids=["gates", "sparse"])
@pytest.mark.parametrize("kind", ["linear", "conv", "attention"])
def test_a_forward_that_is_held_outlives_remove(gradients, kind):
    """As accelerate holds that of a layer which it hooks after compress()."""
    layer, shape = {
        "linear": (nn.Linear(8, 8), (3, 8)),
        "conv": (nn.Conv2d(8, 8, 1), (3, 8, 4, 4)),
        "attention": (nn.MultiheadAttention(8, 2), (3, 2, 8)),
    }[kind]
    controller = sg.compress(layer, gradients, min_elements=1)
    held = layer.forward
    controller.remove()
    inputs = [torch.randn(shape)] * (3 if kind == "attention" else 1)
    want, got = layer(*inputs), held(*inputs)
    assert torch.equal(*(y[0] if kind == "attention" else y for y in (want, got)))
