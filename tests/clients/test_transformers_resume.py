"""A run that is interrupted and resumed has the weights of one that was not, bit by bit."""

import io
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import MODELS, SPARSE, build, calls, equal_tensors, snapshot, train

import slimgrad as sg

SETTINGS = {
    "gates": dict(gradients=[sg.Prune(0.8), "fp6"], refresh=3, warmup=1),
    "allocation": dict(gradients=sg.Prune(0.8, allocation="min_cosine"), refresh=2),
    "schedule": dict(gradients=sg.Prune(0.8), schedule={0: 0.3, 6: 0.8}),
    "dynamic scale": dict(
        gradients=sg.Quantize(
            format="1-4-1", scale=sg.LossScale(16.0, dynamic=True, growth_interval=2)
        )
    ),
    "sparse": dict(gradients=SPARSE, refresh=3, activations=3),
}


def start(name, what, seed):
    model = build(name, seed=seed)
    controller = sg.compress(model, **SETTINGS[what], seed=seed, min_elements=0)
    return model, controller, torch.optim.AdamW(model.parameters(), lr=1e-2)


def through_torch(state, folder):
    torch.save(state, folder / "state.pt")
    return torch.load(folder / "state.pt", weights_only=True)


def through_safetensors(state, folder):
    save_file(state, folder / "state.safetensors")
    return load_file(folder / "state.safetensors")


@pytest.mark.parametrize("through", [through_torch, through_safetensors])
@pytest.mark.parametrize("what", SETTINGS)
@pytest.mark.parametrize("name", MODELS)
def test_resumes_to_the_bit(name, what, through, tmp_path):
    model, controller, optimizer = start(name, what, seed=1)
    train(model, name, 3, 0, optimizer)
    weights, moments = snapshot(model), io.BytesIO()
    torch.save(optimizer.state_dict(), moments)
    state = through(controller.state_dict(), tmp_path)
    losses = train(model, name, 4, 3, optimizer)

    again, resumed, optimizer = start(name, what, seed=2)
    again.load_state_dict(weights)
    moments.seek(0)
    optimizer.load_state_dict(torch.load(moments))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # there is nothing to say
        resumed.load_state_dict(state)
        assert train(again, name, 4, 3, optimizer) == losses
    assert equal_tensors(snapshot(again), snapshot(model))
    assert equal_tensors(resumed.state_dict(), controller.state_dict())
    assert max(calls(resumed).values()) == 7
