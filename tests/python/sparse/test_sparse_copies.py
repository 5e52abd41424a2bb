"""Which tensors a backward pass copies: none that has its channels first or last."""

import pytest
import torch
from gate_samples import lognormal
from sparse_samples import ALWAYS, pair

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")

LAYOUTS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}
COPIES = {"aten::clone", "aten::contiguous", "aten::copy_"}
DENSE = sg.Prune(weight=0, input=0)


def copies(ours, x, grad):
    """What the backward op calls of torch's that copies a tensor."""
    state = ours.slimgrad_sparse.tensors()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.ops.slimgrad.sparse_conv2d_backward(
            grad, x, ours.weight.detach(), [1, 1], [1, 1], [1, 1], 1, [True, True, False], state, 0
        )
    return [event.name for event in profile.events() if event.name in COPIES]


def tensors(layout, grad_layout):
    x = torch.randn(4, 16, 12, 12).to(memory_format=layout)
    return x, lognormal((4, 24, 12, 12)).to(memory_format=grad_layout)


@pytest.mark.parametrize("grad_layout", LAYOUTS.values(), ids=[f"grad {name}" for name in LAYOUTS])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_sparse_products_copy_nothing(layout, grad_layout):
    ours = pair(sg.nn.Conv2d, 16, 24, 3, padding=1, gradients=ALWAYS)[1]
    assert not copies(ours, *tensors(layout, grad_layout))


def test_a_gradient_with_gaps_is_copied_once():
    ours = pair(sg.nn.Conv2d, 16, 24, 3, padding=1, gradients=ALWAYS)[1]
    x = torch.randn(4, 16, 12, 12)
    assert copies(ours, x, lognormal((4, 24, 12, 24))[..., ::2]).count("aten::copy_") == 1


def test_dense_products_leave_the_gradient_to_torch():
    """One that torch copies for its products: both are done in one call, and there is no copy
    besides."""
    ours = pair(sg.nn.Conv2d, 16, 24, 3, padding=1, gradients=DENSE)[1]
    x, grad = torch.randn(4, 16, 12, 12), lognormal((4, 24, 12, 24))[..., ::2]
    weight = ours.weight.detach()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.ops.aten.convolution_backward(
            grad, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
        )
    plain = [event.name for event in profile.events() if event.name == "aten::clone"]
    assert copies(ours, x, grad).count("aten::clone") == len(plain)
