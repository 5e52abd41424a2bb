"""Arguments that are no tensors with values get our errors, short and naming what was expected."""

import pytest
import torch

import slimgrad as sg

FUNCTIONS = {
    "measure": sg.measure,
    "fit": lambda x: sg.fit(x, "lognormal"),
    "ks": sg.fit(torch.randn(100), "normal").ks,
    "wasserstein": sg.fit(torch.randn(100), "normal").wasserstein,
    "encode": sg.encode,
    "quantize": lambda x: sg.quantize(x, "1-4-3", 1.0),
    "quantize_": lambda x: sg.quantize_(x, "1-4-3", 1.0),
    "prune": lambda x: sg.prune(x, 1.0),
    "prune_": lambda x: sg.prune_(x, 1.0),
    "prune_quantize": lambda x: sg.prune_quantize(x, 1.0, "1-4-3", 1.0),
    "pack": lambda x: sg.pack(x, "1-4-3", 1.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_has_no_values_is_refused(name):
    wrong = {
        "list": [0.5] * 100_000,
        "bytes": bytes(100_000),
        "NoneType": None,
        "meta": torch.empty(10, device="meta"),
        "sparse": torch.eye(10).to_sparse(),
    }
    for what, argument in wrong.items():
        with pytest.raises((TypeError, ValueError)) as error:
            FUNCTIONS[name](argument)
        text = str(error.value)
        assert text.startswith(f"[{name}] expected x to") and what in text, text
        assert len(text) < 200
