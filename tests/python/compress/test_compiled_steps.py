"""Compressed models under torch.compile: one graph, compiled once for all steps."""

import pytest
import torch
from torch import nn

import slimgrad as sg

WAYS = {
    "gates": {"gradients": sg.Prune(0.8)},
    "formats": {"gradients": sg.Quantize(6, scale=sg.LossScale(dynamic=True))},
    "sparse": {"gradients": sg.Prune(weight=0.9, input=0.5, sparse_backward="always")},
    "allocation": {"gradients": sg.Prune(0.8, allocation="min_cosine")},
    "saved": {"saved": sg.Saved(4, min_elements=64), "activations": 3},
    "all": {
        "gradients": sg.Prune(weight=0.9, input=0.5, allocation="min_cosine"),
        "saved": sg.Saved(4, min_elements=64),
        "activations": 3,
    },
}


@pytest.mark.parametrize("how", WAYS)
def test_no_graph_break_and_no_recompilation(how):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    sg.compress(model, seed=1, min_elements=0, **WAYS[how])
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    compiled = torch.compile(model, backend=counting, fullgraph=True)
    for _ in range(4):
        compiled(torch.randn(16, 32)).square().sum().backward()
    assert len(graphs) == 1
