"""The modules, their conversion, and how they get along with the rest of torch."""

import copy

import pytest
import torch
from ranks import join_group, leave_group, run_ranks
from torch import nn
from torch.utils.checkpoint import checkpoint

import slimgrad as sg
import slimgrad.functional as S
from slimgrad.nn.step_tables import table_for

# Attention has a file of its own: it takes three tensors and returns two.
NAMES = [name for name in sg.nn.__all__ if hasattr(nn, name) and name != "MultiheadAttention"]
ARGUMENTS = {
    "Threshold": (0.1, 0.2),
    "MaxPool2d": (2,),
    "Conv2d": (3, 4, 3),
    "Linear": (8, 4),
}


def make(package, name, **kwargs):
    return getattr(package, name)(*ARGUMENTS.get(name, ()), **kwargs)


@pytest.mark.parametrize("name", NAMES)
def test_drop_in(name):
    theirs, ours = make(nn, name), make(sg.nn, name)
    assert isinstance(ours, getattr(nn, name))
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    torch.manual_seed(0)
    expected = theirs(x)
    torch.manual_seed(0)
    y = ours(x)
    assert torch.equal(y, expected)
    y.sum().backward()
    assert x.grad.shape == x.shape
    assert torch.equal(copy.deepcopy(ours).eval()(x), theirs.eval()(x))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "arguments", [(2,), (3, 2, 1), ((3, 5), (2, 1), (1, 2)), (2, 2, 0, 2), (3, 2, 1, 1, True)]
)
def test_max_pool(arguments, layout):
    x = torch.randn(3, 4, 17, 19).contiguous(memory_format=layout).requires_grad_()
    expected = torch.nn.functional.max_pool2d(x, *arguments)
    y = S.max_pool2d(x, *arguments)
    assert torch.equal(y, expected)
    gradient = torch.randn_like(y)
    assert torch.equal(
        torch.autograd.grad(y, x, gradient)[0], torch.autograd.grad(expected, x, gradient)[0]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_keeps_a_bit(dtype):
    x = torch.randn(1 << 12, dtype=dtype, requires_grad=True)
    gradient = torch.randn(1 << 12, dtype=dtype)
    results, kept = [], []
    for function in (torch.nn.functional.dropout, S.dropout):
        torch.manual_seed(0)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, sizes=sizes: sizes.append(t.nbytes) or t, lambda t: t
        ):
            y = function(x, 0.3)
        results.append((y.detach(), torch.autograd.grad(y, x, gradient)[0]))
        kept.append(sum(sizes))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert kept[1] == (1 << 12) // 8 < kept[0]


def test_prelu_with_a_frozen_weight():
    module = sg.nn.PReLU(4)
    x = torch.randn(3, 4, 5, requires_grad=True)
    module(x).sum().backward()  # the weight learns: torch's own
    assert module.weight.grad is not None
    module.weight.requires_grad_(False)
    gradient = torch.randn(3, 4, 5)
    expected = torch.nn.functional.prelu(x, module.weight)
    assert torch.equal(
        torch.autograd.grad(module(x), x, gradient)[0],
        torch.autograd.grad(expected, x, gradient)[0],
    )


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.act = nn.GELU()
        self.second = nn.Linear(16, 8)
        self.again = self.act
        self.slope = nn.PReLU()
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        x = self.again(self.second(self.act(self.first(x))))
        return torch.tanh(self.slope(self.drop(x)))


def test_conversion_reports_what_it_did_and_what_not():
    model, x = Mixed(), torch.randn(64, 8)
    before = sg.saved_bytes(model, x)
    state = set(model.state_dict())
    report = sg.nn.convert_activations(model, 3, inputs=x)
    after = sg.saved_bytes(model, x)
    assert isinstance(model.act, sg.nn.GELU) and model.again is model.act
    assert {name for name, _, _ in report.converted} == {"act", "drop"}
    left = {name: what for name, what, _ in report.left}
    assert left["slope"] == "PReLU" and "tanh" in left.values()
    assert after.total < before.total
    assert set(model.state_dict()) == state
    assert sum(after.by_layer.values()) == after.total
    assert "tanh" in str(report) and "total" in str(after)


def test_conversion_carries_arguments_and_the_table():
    plain = [nn.ELU(0.5, inplace=True), nn.GELU("tanh"), nn.SiLU(True), nn.Hardtanh(-2.0, 3.0)]
    for bits, kept in ((2, 2), ("exact", 4)):
        model = nn.Sequential(*copy.deepcopy(plain))
        sg.nn.convert_activations(model, bits, interval=(-4, 4), weight="uniform")
        elu, gelu, silu, hardtanh = model
        assert (elu.alpha, elu.inplace, elu.bits) == (0.5, True, kept)
        assert (elu.interval, elu.weight) == ((-4, 4), "uniform")
        assert (gelu.approximate, gelu.bits, silu.bits) == ("tanh", bits, bits)
        assert silu.inplace == (bits != "exact")
        assert (gelu.interval is None) == (bits == "exact")
        assert (hardtanh.min_val, hardtanh.max_val, hardtanh.bits) == (-2.0, 3.0, kept)


def test_conversion_of_transformers_activations():
    activations = pytest.importorskip("transformers.activations")
    names = ["gelu", "gelu_new", "gelu_fast", "quick_gelu", "silu", "gelu_python", "relu", "mish"]
    model = nn.ModuleDict({name: activations.ACT2FN[name] for name in names})
    originals = copy.deepcopy(model)
    report = sg.nn.convert_activations(model, 4)
    assert {name for name, _, _ in report.converted} == set(names)
    x = torch.randn(5000)
    for name in names:
        given, wanted = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, expected = model[name](given), originals[name](wanted)
        assert torch.equal(y, expected)
        y.sum().backward()
        expected.sum().backward()
        assert (given.grad - wanted.grad).abs().max() < 0.2
        kept = sg.saved_bytes(nn.Sequential(nn.Linear(64, 512), model[name]), torch.randn(8, 64))
        assert kept.by_layer["1"] <= 8 * 512 // 2


def make_model(bits=3):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 64), sg.nn.GELU(bits=bits), nn.Linear(64, 16), sg.nn.ReLU(inplace=True)
    )


@pytest.mark.parametrize("bits", [3, "exact"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_fullgraph(bits, dynamic):
    torch._dynamo.reset()
    model, x = make_model(bits), torch.randn(32, 16)
    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    model(x).square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    compiled(x).square().sum().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


TANH = sg.steps("tanh", 2)
WITH_NUMBERS = {
    "elu": lambda x, a, bits: S.elu(x, a, bits=bits),
    "celu": lambda x, a, bits: S.celu(x, a, bits=bits),
    "softplus": lambda x, a, bits: S.softplus(x, a, 10 * a, bits=bits),
    "leaky_relu": lambda x, a, bits: S.leaky_relu(x, a, bits=bits),
    "threshold": lambda x, a, bits: S.threshold(x, a, 2 * a, bits=bits),
    "hardtanh": lambda x, a, bits: S.hardtanh(x, -a, 2 * a, bits=bits),
    "softshrink": lambda x, a, bits: S.softshrink(x, a, bits=bits),
    "interval": lambda x, a, bits: S.gelu(x, interval=(-9 - a, 9 + a), bits=bits),
    "dropout": lambda x, a, bits: S.dropout(x, a),
}


@pytest.mark.parametrize("function", WITH_NUMBERS.values(), ids=WITH_NUMBERS)
def test_numbers_may_change_under_dynamic_compilation(function):
    """With dynamic=True a number that is passed in is a symbol: each value needs its own table."""
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for a, bits, size in [(0.2, 3, 100), (0.35, 3, 130), (0.4, 2, 100)]:
        x = torch.randn(size, requires_grad=True)
        results = []
        for call in (function, compiled):
            torch.manual_seed(0)
            y = call(x, a, bits)
            results.append((y.detach(), *torch.autograd.grad(y.sum(), x)))
        assert torch.equal(results[0][0], results[1][0])
        assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: S.max_pool2d(x, 2),
        lambda x: S.max_pool2d(x, (3, 2), 2, 1, 1, True),
        lambda x: S.prelu(x, torch.tensor([0.1, 0.2, 0.3])),
        lambda x: S.stepwise(x, torch.tanh, TANH),
    ],
    ids=["max_pool2d", "overlapping", "prelu", "stepwise"],
)
def test_sizes_may_change_under_dynamic_compilation(function):
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for size in [(2, 3, 12, 14), (5, 3, 9, 11)]:
        x = torch.randn(size, requires_grad=True)
        results = [
            (y, *torch.autograd.grad(y.square().sum(), x)) for y in (function(x), compiled(x))
        ]
        for eager, graph in zip(*results, strict=True):
            assert torch.equal(eager, graph)


@pytest.mark.parametrize("needs_grad", [False, True])
def test_opcheck_of_masks(needs_grad):
    ops = torch.ops.slimgrad
    x = torch.randn(2, 3, 8, 9, requires_grad=needs_grad)
    torch.library.opcheck(ops.prelu.default, (x, torch.tensor([0.1, 0.2, 0.3])))
    torch.library.opcheck(ops.max_pool2d.default, (x, [2, 2], [], [0, 0], [1, 1], False))
    torch.library.opcheck(ops.dropout.default, (x, 0.3, False))


def test_compile_with_inductor():
    torch._dynamo.reset()
    model, x = make_model(), torch.randn(32, 16)
    model(x).square().sum().backward()
    expected = model[0].weight.grad.clone()
    model.zero_grad()
    torch.compile(model, fullgraph=True)(x).square().sum().backward()
    torch.testing.assert_close(model[0].weight.grad, expected)


def test_checkpointing_gives_the_same_gradient():
    model, x = make_model(), torch.randn(32, 16, requires_grad=True)
    model(x).sum().backward()
    expected, x.grad = x.grad, None
    checkpoint(model, x, use_reentrant=False).sum().backward()
    assert torch.equal(x.grad, expected)


def test_autocast():
    model, x = make_model(), torch.randn(32, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert torch.isfinite(model[0].weight.grad).all()


def _ddp_worker(rank, world, port, results):
    torch.set_num_threads(1)  # Two processes that spin on two threads each starve one another.
    join_group(rank, world, port)
    model = nn.parallel.DistributedDataParallel(make_model())
    torch.manual_seed(rank)
    model(torch.randn(8, 16)).sum().backward()
    torch.save(model.module[0].weight.grad, f"{results}/{rank}.pt")
    leave_group()


def test_ddp(tmp_path):
    run_ranks(_ddp_worker, (str(tmp_path),))
    gradients = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert torch.equal(gradients[0], gradients[1])
    mean = 0
    for rank in range(2):
        model = make_model()
        torch.manual_seed(rank)
        model(torch.randn(8, 16)).sum().backward()
        mean = mean + model[0].weight.grad / 2
    torch.testing.assert_close(gradients[0], mean)


def test_opcheck():
    ops = torch.ops.slimgrad
    x = torch.randn(4, 1000, requires_grad=True)
    gradient, plain = torch.randn(4, 1000), torch.randn(4, 1000)
    table = table_for("gelu", {}, 3)
    codes = ops.stepwise_codes(plain, table.borders, False)
    bit = ops.stepwise_codes(plain, [-0.75], False)
    for op, arguments in [
        (ops.fewbit_activation, (x, "gelu", [], table.borders, table.levels, False)),
        (ops.fewbit_activation_, (plain.clone(), "relu", [], [0.0], [0.0, 1.0], False)),
        (ops.fewbit_forward, (plain, "gelu", [], table.borders, False)),
        (ops.fewbit_forward_, (plain.clone(), "relu", [], [0.0], False)),
        (ops.stepwise_codes, (plain, table.borders, False)),
        (ops.stepwise_backward, (gradient, codes, table.levels, [1000, 1])),
        (ops.stepwise_backward_, (gradient.clone(), codes, table.levels)),
        (ops.invertible_activation, (x, "gelu")),
        (ops.invertible_backward, (gradient, torch.nn.functional.gelu(plain), bit, "gelu")),
        (ops.invertible_backward_, (gradient.clone(), plain, bit, "gelu")),
    ]:
        torch.library.opcheck(op.default, arguments)
