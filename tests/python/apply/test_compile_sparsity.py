"""torch.compile and sparsities that a training loop sets in every step."""

import pytest
import torch
from controller_samples import Net, batch
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "gradients",
    [
        sg.Prune(0.8),
        sg.Prune(0.8, allocation="min_cosine"),
        sg.Prune(weight=0.9, input=0.5, sparse_backward="always"),
    ],
    ids=["gates", "allocated", "sparse"],
)
def test_another_sparsity_compiles_nothing_anew(gradients):
    torch._dynamo.reset()
    model = Net()
    controller = sg.compress(model, gradients, min_elements=1, warmup=1)
    forward = torch.compile(model, backend="eager")
    torch._dynamo.utils.counters.clear()
    for sparsity in (0.5, 0.6, 0.7):
        controller.set_sparsity(sparsity)
        x, y = batch(0)
        nn.functional.cross_entropy(forward(x), y).backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()
