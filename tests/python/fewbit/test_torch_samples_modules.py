"""slimgrad.nn on the samples that torch tests its own modules with, and its layers on those of the
functions behind them."""

import pytest
import torch
from step_bounds import TORCHS, largest_difference
from torch import nn
from torch.testing._internal.common_modules import FunctionInput, ModuleErrorEnum
from torch_samples import DTYPES, MODULES, OPS, gradient_like, op_samples, same

import slimgrad as sg
from slimgrad.nn.step_tables import table_for

pytestmark = pytest.mark.usefixtures("one_thread")

# Attention has a file of its own: it takes three tensors and returns two.
NAMES = [name for name in sg.nn.__all__ if hasattr(nn, name) and name != "MultiheadAttention"]
WITHOUT_SAMPLES = {"Dropout", "Hardsigmoid", "RReLU"}  # torch has none; those of functions serve
APPROXIMATE = {name for name in NAMES if name.lower() in TORCHS}
LAYERS = {"Linear", "Conv2d"}
# No pruning: the gradient as it comes, by whatever way is faster, and by the sparse one.
WAYS = {
    "chosen": None,
    "sparse": sg.Prune(weight=0.0, input=0.0, sparse_backward="always"),
}
# Sums in another order: relative to the largest value of a gradient.
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def module_samples(name, dtype, training=True):
    info = MODULES[name]
    torch.manual_seed(0)
    found = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=False, training=training
    )
    assert found
    return [(s.constructor_input, by_position(name, s.forward_input)) for s in found]


def by_position(name, inputs):
    """Layers take their input by position."""
    if name not in LAYERS:
        return inputs
    return FunctionInput(*inputs.args, *inputs.kwargs.values())


def make_pair(name, constructor, dtype, training, **options):
    kwargs = {k: v for k, v in constructor.kwargs.items() if k not in ("device", "dtype")}
    plain = getattr(nn, name)(*constructor.args, **kwargs).to(dtype)
    ours = getattr(sg.nn, name)(*constructor.args, **kwargs, **options)
    for parameter in ours.parameters():
        parameter.data = parameter.data.to(dtype)
    ours.load_state_dict(plain.state_dict(), strict=False)
    return plain.train(training), ours.train(training)


def output_of(result):
    """Without the indices of a pool that returns them."""
    return result[0] if isinstance(result, tuple) else result


def run(module, inputs):
    """The output, and the gradients of input and parameters."""
    args = [a.detach().requires_grad_() for a in inputs.args]
    kwargs = {k: v.detach().requires_grad_() for k, v in inputs.kwargs.items()}
    leaves = [*args, *kwargs.values(), *module.parameters()]
    y = output_of(module(*args, **kwargs))
    return y.detach(), torch.autograd.grad(y, leaves, gradient_like(y))


def assert_near(found, expected, dtype):
    assert found.shape == expected.shape and found.dtype == expected.dtype
    if expected.numel():
        away = (found.double() - expected.double()).abs().max()
        assert away <= ROUNDING[dtype] * expected.double().abs().max().clamp(min=1e-3)


def test_every_module_has_samples():
    assert {name for name in NAMES if name not in MODULES} == WITHOUT_SAMPLES


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", [n for n in NAMES if n in MODULES and n not in LAYERS])
def test_activations(name, training):
    for dtype in DTYPES:
        for constructor, inputs in module_samples(name, dtype, training):
            plain, ours = make_pair(name, constructor, dtype, training)
            expected_y, expected = run(plain, inputs)
            y, found = run(ours, inputs)
            assert same(y, expected_y)
            with torch.inference_mode():
                assert same(output_of(ours(*inputs.args, **inputs.kwargs)), expected_y)
            if name not in APPROXIMATE:
                assert all(same(a + 0.0, b + 0.0) for a, b in zip(found, expected, strict=True))
                continue
            params = {
                k: getattr(ours, k) for k in ("alpha", "beta", "threshold") if hasattr(ours, k)
            }
            shape = name.lower()
            if getattr(ours, "approximate", None) == "tanh":
                shape = "gelu_tanh"
            limit = largest_difference(lambda x, plain=plain: plain(x), table_for(shape, params, 3))
            limit += 2 * torch.finfo(dtype).eps
            away = (found[0].double() - expected[0].double()).abs()
            assert (away <= limit * gradient_like(y).double().abs()).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layers(name, dtype, way):
    for constructor, inputs in module_samples(name, dtype):
        plain, ours = make_pair(name, constructor, dtype, True, gradients=WAYS[way], seed=1)
        expected_y, expected = run(plain, inputs)
        y, found = run(ours, inputs)
        assert same(y, expected_y)
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert_near(a, b, dtype)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert same(ours(*inputs.args, **inputs.kwargs), expected_y)


def layer_of(name, args, kwargs, way):
    """A layer of torch and ours for the arguments of a functional call."""
    weight, bias, *rest = (*args, None)[: max(2, len(args))]
    options = dict(zip(("stride", "padding", "dilation", "groups"), rest, strict=False)) | kwargs
    if name == "Linear":
        sizes = weight.shape[1], weight.shape[0]
    else:
        sizes = weight.shape[1] * options.get("groups", 1), weight.shape[0], tuple(weight.shape[2:])
    layers = [
        getattr(nn, name)(*sizes, **options),
        getattr(sg.nn, name)(*sizes, **options, gradients=WAYS[way], seed=1),
    ]
    for layer in layers:
        layer.weight = nn.Parameter(weight.detach().clone())
        layer.bias = None if bias is None else nn.Parameter(bias.detach().clone())
    return layers


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name, op", [("Linear", "linear"), ("Conv2d", "conv2d")])
def test_layers_on_samples_of_functions(name, op, dtype, way):
    assert dtype in OPS[op].supported_dtypes("cpu")
    num_compared = 0
    for x, args, kwargs in op_samples(op, dtype):
        if args[0].dim() < 2:  # nn.Linear has no weight of one dimension
            continue
        plain, ours = layer_of(name, args, kwargs, way)
        results = []
        for layer in (plain, ours):
            given = x.detach().requires_grad_()
            y = layer(given)
            leaves = [given, *layer.parameters()]
            results.append((y.detach(), torch.autograd.grad(y, leaves, gradient_like(y))))
        assert same(results[0][0], results[1][0])
        for a, b in zip(results[1][1], results[0][1], strict=True):
            assert_near(a, b, dtype)
        num_compared += 1
    assert num_compared >= 8


def test_modules_refuse_what_torch_refuses():
    num_refused = 0
    for name in NAMES:
        info = MODULES.get(name)
        if info is None or info.module_error_inputs_func is None:
            continue
        errors = info.module_error_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
        )
        for error in errors:
            assert error.error_on is ModuleErrorEnum.FORWARD_ERROR  # none in a constructor so far
            given = error.module_error_input
            _, ours = make_pair(name, given.constructor_input, torch.float32, True)
            (x,) = given.forward_input.args
            for needs_grad in (False, True):
                with pytest.raises((error.error_type, ValueError)):
                    ours(x.detach().requires_grad_(needs_grad))
            num_refused += 1
    assert num_refused >= 3  # those of max pooling


def test_layers_refuse_what_torch_refuses():
    num_refused = 0
    for error in OPS["conv2d"].error_inputs("cpu"):
        sample = error.sample_input
        args, kwargs = sample.args, sample.kwargs
        try:
            plain, ours = layer_of("Conv2d", args, kwargs, "chosen")
        except (RuntimeError, ValueError, IndexError):
            continue  # no such layer can be made
        for layer in (plain, ours):
            with pytest.raises((error.error_type, ValueError)):
                layer(sample.input.detach().requires_grad_())
        num_refused += 1
    assert num_refused > 0
