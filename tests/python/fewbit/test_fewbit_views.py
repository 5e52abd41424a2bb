"""Few-bit activations in place on views: what torch does, or torch's refusal before anything is
written."""

import inspect

import pytest
import torch
import torch.nn.functional as F

import slimgrad as sg
import slimgrad.functional as S

CALLS = {  # all that have a few-bit version in place, with their other arguments
    "relu": (),
    "leaky_relu": (0.2,),
    "rrelu": (),
    "threshold": (0.1, 2.0),
    "relu6": (),
    "hardtanh": (-1.0, 0.5),
    "hardsigmoid": (),
    "hardswish": (),
    "silu": (),
    "mish": (),
    "elu": (0.7,),
    "celu": (0.7,),
    "selu": (),
}
MODULES = {
    "relu": sg.nn.ReLU(inplace=True),
    "leaky_relu": sg.nn.LeakyReLU(0.2, inplace=True),
    "rrelu": sg.nn.RReLU(inplace=True).eval(),
    "threshold": sg.nn.Threshold(0.1, 2.0, inplace=True),
    "relu6": sg.nn.ReLU6(inplace=True),
    "hardtanh": sg.nn.Hardtanh(-1.0, 0.5, inplace=True),
    "hardsigmoid": sg.nn.Hardsigmoid(inplace=True),
    "hardswish": sg.nn.Hardswish(inplace=True),
    "silu": sg.nn.SiLU(inplace=True),
    "mish": sg.nn.Mish(inplace=True),
    "elu": sg.nn.ELU(0.7, inplace=True),
    "celu": sg.nn.CELU(0.7, inplace=True),
    "selu": sg.nn.SELU(inplace=True),
}
DENSE = {
    "whole": lambda base: base.view(-1),
    "rows": lambda base: base[3:5],
    "transposed": lambda base: base.t(),
    "channels last": lambda base: base.view(2, 6, 5, 13).permute(0, 3, 1, 2),
    "one element": lambda base: base[2, 3],
    "no elements": lambda base: base[:, :0],
}
WITH_HOLES = {
    "every second column": lambda base: base[:, ::2],
    "columns": lambda base: base[:, 20:51],
    "every third column, transposed": lambda base: base.t()[::3],
    "rows of channels last": lambda base: base.view(2, 6, 5, 13).permute(0, 3, 1, 2)[:, :, 1:3],
    "diagonal": lambda base: base.diagonal(),
    "a view of a view": lambda base: base[:, 1:60].t()[::2, 1:],
}
VIEWS = DENSE | WITH_HOLES


def test_nothing_in_place_is_left_out():
    functions = [f for _, f in inspect.getmembers(S, inspect.isfunction)]
    own = [f for f in functions if f.__module__ == S.__name__ and not f.__name__.startswith("_")]
    assert {f.__name__ for f in own if "inplace" in inspect.signature(f).parameters} == set(CALLS)
    assert MODULES.keys() == CALLS.keys()


def start(dtype=torch.float32):
    torch.manual_seed(0)
    leaf = torch.randn(12, 65).mul(2).to(dtype).requires_grad_()
    return leaf, leaf * 1, torch.randn(12, 65).to(dtype)


def changed(call, view, dtype=torch.float32):
    """The base after an activation in place on a view, and the gradient of what it came from."""
    leaf, base, gradient = start(dtype)
    call(view(base))
    return base.detach(), torch.autograd.grad(base, leaf, gradient)[0]


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_place_on_a_view(name, view, dtype):
    arguments, function = CALLS[name], getattr(S, name)
    leaf, base, gradient = start(dtype)
    copy = base.clone()
    view(copy).copy_(function(view(base), *arguments))  # the same out of place
    expected = copy.detach(), torch.autograd.grad(copy, leaf, gradient)[0]
    theirs = changed(lambda x: getattr(F, name)(x, *arguments, inplace=True), view, dtype)
    assert torch.equal(expected[0], theirs[0])
    for call in (lambda x: function(x, *arguments, inplace=True), MODULES[name]):
        found = changed(call, view, dtype)
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    untouched = torch.ones(12, 65, dtype=torch.bool)
    view(untouched).fill_(False)
    assert torch.equal(found[1][untouched], theirs[1][untouched])


@pytest.mark.parametrize("view", WITH_HOLES.values(), ids=WITH_HOLES)
def test_the_result_of_a_view_has_its_own_gradient(view):
    """Not through the base: by what the function returns, with more behind it."""
    results = []
    for inplace in (False, True):
        leaf, base, _ = start()
        y = S.silu(view(base), inplace=inplace)
        (y.exp() * torch.arange(y.numel()).view(y.shape)).sum().backward()
        results.append(leaf.grad)
    assert torch.equal(*results)


REFUSED = {
    "a leaf": lambda base, leaf: leaf,
    "a view of a leaf": lambda base, leaf: leaf[:, ::2],
    "expanded": lambda base, leaf: base[:1].expand(4, -1),
    "one of several views": lambda base, leaf: base.unbind(1)[3],
    "a chunk": lambda base, leaf: base.chunk(2, 1)[1],
}


@pytest.mark.parametrize("view", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("name", CALLS)
def test_refused_as_torch_refuses_and_before_anything_is_written(name, view):
    messages = []
    if name == "threshold" and view is REFUSED["expanded"]:
        pytest.skip("torch allows it: to apply a threshold twice changes nothing")
    for package in (F, S):
        leaf, base, _ = start()
        before = leaf.detach().clone()
        with pytest.raises(RuntimeError) as error:
            getattr(package, name)(view(base, leaf), *CALLS[name], inplace=True)
        assert torch.equal(leaf.detach(), before) and torch.equal(base.detach(), before)
        messages.append(str(error.value).split(".")[0])
    assert messages[0] == messages[1]


def test_inference_tensors():
    with torch.inference_mode():
        x = torch.randn(40)
        expected = F.silu(x[::2])
        S.silu(x[::2], inplace=True)
        assert torch.equal(x[::2], expected)
    for package in (F, S):
        with pytest.raises(RuntimeError, match="outside InferenceMode"):
            package.silu(x, inplace=True)


def test_in_place_on_a_slice_compiles():
    def step(leaf):
        base = leaf * 1
        S.silu(base[:, ::2], inplace=True)
        return base

    results = []
    for call in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
        leaf, _, gradient = start()
        base = call(leaf)
        results.append((base.detach(), torch.autograd.grad(base, leaf, gradient)[0]))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
