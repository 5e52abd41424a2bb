"""Arguments of the wrong kind get our errors, short and naming what was expected; never torch's."""

import inspect

import numpy as np
import pytest
import torch

import slimgrad as sg

NORMAL = sg.fit(torch.randn(100), "normal")

# What a tensor is expected of: by the name that is in the error.
NEED_VALUES = {
    "measure": sg.measure,
    "fit": lambda x: sg.fit(x, "lognormal"),
    "ks": NORMAL.ks,
    "wasserstein": NORMAL.wasserstein,
    "encode": sg.encode,
}
OF_ANY_DEVICE = {
    "quantize": lambda x: sg.quantize(x, "1-4-3", 1.0),
    "quantize_": lambda x: sg.quantize_(x, "1-4-3", 1.0),
    "prune": lambda x: sg.prune(x, 1.0),
    "prune_": lambda x: sg.prune_(x, 1.0),
    "prune_quantize": lambda x: sg.prune_quantize(x, 1.0, "1-4-3", 1.0),
    "prune_quantize_": lambda x: sg.prune_quantize_(x, 1.0, "1-4-3", 1.0),
    "pack": lambda x: sg.pack(x, "1-4-3", 1.0),
}
OF_TENSORS = NEED_VALUES | OF_ANY_DEVICE
# All activations: those with further arguments get them here.
FURTHER = {"threshold": (0.5, 0.0), "prelu": (torch.tensor([0.25]),), "max_pool2d": (2,)}
FURTHER["stepwise"] = (torch.sin, sg.steps(torch.sin))
ACTIVATIONS = {
    name: (lambda x, function=function, name=name: function(x, *FURTHER.get(name, ())))
    for name, function in inspect.getmembers(sg.functional, inspect.isfunction)
    if function.__module__ == "slimgrad.functional" and not name.startswith("_")
}
OF_STATISTICS = {
    "threshold": lambda x: sg.threshold(x, 0.5),
    "expected_sparsity": lambda x: sg.expected_sparsity(x, 0.5),
    "expected_cosine": lambda x: sg.expected_cosine(x, 0.5),
    "expected_error": lambda x: sg.expected_error(x, "1-4-3", 1.0),
    "gradient_scale": lambda x: sg.gradient_scale(x, "1-4-3"),
    "allocate": lambda x: sg.allocate([x], 0.5),
    "best_format": lambda x: sg.best_format(6, x),
}
OF_OTHERS = {
    "decode": sg.decode,
    "inspect": sg.inspect,
    "load": lambda x: sg.load(x, max_bytes=10),
    "allocate": lambda x: sg.allocate(x, 0.5),
    "steps": sg.steps,
    "saved_bytes": lambda x: sg.saved_bytes(x, torch.ones(3)),
    "relative_error": lambda x: sg.relative_error("1-4-3", x),
    "FloatFormat": sg.FloatFormat,
    "pdf": NORMAL.pdf,
    "cdf": NORMAL.cdf,
    "quantile": NORMAL.quantile,
}

NO_TENSORS = {
    "list": [0.5] * 100_000,
    "bytes": bytes(100_000),
    "NoneType": None,
    "ndarray": np.ones(100_000, np.float32),
}
NO_DENSE_TENSORS = {
    "sparse": torch.eye(10).to_sparse(),
    "sparse_csr": torch.eye(10).to_sparse_csr(),
    "quantized": torch.quantize_per_tensor(torch.ones(10), 0.1, 0, torch.qint8),
}
NO_FLOATS = {"Long": torch.ones(10, dtype=torch.int64), "Complex": torch.ones(10) * 1j}


def error_of(function, argument):
    with pytest.raises((TypeError, ValueError)) as error:
        function(argument)
    text = str(error.value)
    assert len(text) < 300, text
    assert "expected" in text and "got" in text, text
    return text


@pytest.mark.parametrize("name", OF_TENSORS)
def test_what_is_no_dense_tensor_is_refused(name):
    for what, argument in (NO_TENSORS | NO_DENSE_TENSORS).items():
        text = error_of(OF_TENSORS[name], argument)
        assert text.startswith(f"[{name}] expected x to be a ") and what in text, text


@pytest.mark.parametrize("name", OF_TENSORS)
def test_other_types_are_refused(name):
    for what, argument in NO_FLOATS.items():
        text = error_of(OF_TENSORS[name], argument)
        assert text.startswith(f"[{name.rstrip('_')}"), text
        assert "x of type float32" in text and what in text, text


@pytest.mark.parametrize("name", NEED_VALUES)
def test_values_are_expected(name):
    text = error_of(NEED_VALUES[name], torch.empty(10, device="meta"))
    assert text == f"[{name}] expected x to have values, got a tensor on device meta"


@pytest.mark.parametrize("name", OF_ANY_DEVICE)
def test_shapes_alone_are_enough_for_shapes(name):
    x = torch.empty(10, 3, dtype=torch.bfloat16, device="meta")
    y = OF_ANY_DEVICE[name](x)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert (y.data if name == "pack" else y).device.type == "meta"


@pytest.mark.parametrize("name", OF_TENSORS)
def test_a_tensor_that_requires_a_gradient(name):
    """What returns a tensor that would have one says so; the others do their work."""
    x = torch.randn(100, requires_grad=True)
    if name in NEED_VALUES:
        OF_TENSORS[name](x)
    else:
        with pytest.raises(ValueError, match=rf"^\[{name}\] expected a tensor that does not req"):
            OF_TENSORS[name](x)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    for what, argument in (NO_TENSORS | NO_DENSE_TENSORS).items():
        text = error_of(ACTIVATIONS[name], argument)
        # rrelu is a leaky_relu, and says so.
        assert " expected x to be a " in text and what in text, text
    if name != "prelu":  # whose weight has values here
        assert ACTIVATIONS[name](torch.empty(2, 4, 4, device="meta")).device.type == "meta"


@pytest.mark.parametrize("name", OF_STATISTICS)
def test_statistics_are_no_tensors(name):
    meta = {"meta": torch.empty(10, device="meta")}
    for argument in (NO_TENSORS | NO_DENSE_TENSORS | NO_FLOATS | meta).values():
        assert error_of(OF_STATISTICS[name], argument).startswith(f"[{name}] expected ")


@pytest.mark.parametrize("name", OF_OTHERS)
def test_everything_else(name):
    others = {"meta": torch.empty(10, device="meta", dtype=torch.uint8)} | NO_FLOATS
    for what, argument in (NO_TENSORS | NO_DENSE_TENSORS | others).items():
        if what == "bytes" and name in ("decode", "inspect", "load"):
            continue  # that is what they take
        if what == "Long" and name in ("pdf", "cdf", "quantile"):
            continue  # numbers
        text = error_of(OF_OTHERS[name], argument)
        assert text.startswith(f"[{name}] expected "), text


def test_numbers_and_ranges():
    assert sg.best_format(6, np.float32(3)) == sg.best_format(6, torch.tensor(3.0))
    for wrong in [(1,), (1, 2, 3), (1, "x"), [None, 2]]:
        assert error_of(lambda x: sg.best_format(6, x), wrong).startswith("[best_format] ")
        assert error_of(lambda x: sg.steps("gelu", interval=x), wrong).startswith("[steps] ")
    assert error_of(lambda x: sg.steps("gelu", bits=x), 2.5).startswith("[steps] expected bits")
