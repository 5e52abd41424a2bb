"""torch.compile for CUDA without a GPU: fake tensors on "cuda" go through every op with device
kernels, and Inductor lowers them."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import slimgrad as sg

ops = torch.ops.slimgrad
BOTH = (3, 2, 0.5, "stochastic", "stochastic", 5)
BORDERS, LEVELS = [-0.5, 0.0, 0.5], [0.0, 0.2, 0.8, 1.0]

CALLS = {
    "measure": lambda x: ops.measure(x),
    "prune": lambda x: ops.prune(x, 0.5, 1),
    "quantize": lambda x: ops.quantize(x, *BOTH),
    "prune_quantize": lambda x: ops.prune_quantize(x, 0.5, *BOTH),
    "pack": lambda x: ops.unpack(ops.pack(x, *BOTH), x.shape, 3, 2, 0.5, x.dtype),
    "codes": lambda x: ops.stepwise_backward(
        x, ops.stepwise_codes(x, BORDERS, False), LEVELS, x.stride()
    ),
    "activation": lambda x: ops.fewbit_forward(x, "gelu", [], BORDERS, False)[0],
    "exact activation": lambda x: ops.invertible_backward(
        x, x, ops.stepwise_codes(x, [0.0], False), "gelu"
    ),
    "saved": lambda x: ops.unpack_saved(
        ops.pack_saved(x, 4, 0, "stochastic", 1, 2), x.shape, x.stride(), x.dtype, 4, 0
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_fake_tensors_on_cuda(name):
    with FakeTensorMode():
        x = torch.empty(16, 48, device="cuda", dtype=torch.bfloat16)
        y = CALLS[name](x)
    assert y.device.type == "cuda"
    if name != "measure":
        assert y.shape == x.shape and y.dtype == x.dtype


@pytest.mark.parametrize("name", CALLS)
def test_inductor_lowers_for_cuda(name):
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    def function(x):
        return CALLS[name](x * 2) + 1

    with FakeTensorMode() as mode:
        x = torch.empty(16, 48, device="cuda")
        traced = make_fx(function, tracing_mode="fake", decomposition_table=select_decomp_table())(
            x
        )
        graph = GraphLowering(traced)
        with V.set_graph_handler(graph), V.set_fake_mode(mode):
            graph.run(x)
    ours = {
        str(node.target) for node in traced.graph.nodes if str(node.target).startswith("slimgrad")
    }
    assert ours  # each stays one call
    assert graph.buffers and {str(b.get_device()) for b in graph.buffers} == {"cuda:0"}


def layers():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(48, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    sg.compress(model, activations=3)
    return model


def test_a_graph_on_cuda_tells_what_it_saves():
    """By an op that draws on the CPU: such a graph packs nothing."""
    has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    assert has_kernel("slimgrad::draw_saved", "CUDA")


def test_no_graph_break():
    """One graph on the device, with the gradients that it has without torch.compile."""
    import testdevice

    device = testdevice.load()
    x = torch.randn(32, 48, generator=torch.Generator().manual_seed(1))
    gradients = []
    for where, compile in ((device, True), (device, False), ("cpu", False)):
        model = layers().to(where)
        run = torch.compile(model, backend="aot_eager", fullgraph=True) if compile else model
        run(x.to(where)).square().sum().backward()
        gradients.append([p.grad.cpu() for p in model.parameters()])
    for others in gradients[1:]:
        assert all(torch.equal(a, b) for a, b in zip(gradients[0], others, strict=True))
