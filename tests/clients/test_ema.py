"""Averaged copies of a compressed model."""

import copy
import pickle

import pytest
import torch
from small_models import MODELS, batch, build, calls, compress, equal_tensors, snapshot, train
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

WHAT = pytest.mark.parametrize("what", ["prune", "sparse", "gates and activations"])


@WHAT
@pytest.mark.parametrize("name", MODELS)
def test_an_average_with_buffers_is_that_of_the_plain_model(name, what):
    model = build(name)
    controller = compress(model, what)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    plain = AveragedModel(build(name), multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    follower = build(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        train(model, name, 1, step, optimizer)
        average.update_parameters(model)
        follower.load_state_dict(model.state_dict())
        plain.update_parameters(follower)
    assert equal_tensors(snapshot(average), snapshot(plain))
    assert max(calls(controller).values()) == 3


@WHAT
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_backward_through_an_average(name, what):
    """The copy has gates of its own: the state that they draw from stays valid, and apart."""
    model = build(name)
    controller = compress(model, what)
    train(model, name, 1)
    average = AveragedModel(model, use_buffers=True)
    for _ in range(3):
        average.update_parameters(model)
    before = calls(controller)
    average(**batch(name)).loss.backward()
    assert calls(controller) == before
    for parameter in average.module.parameters():
        assert parameter.grad.isfinite().all()


@WHAT
def test_copies_go_on_as_the_original_does(what):
    model = build("bert")
    compress(model, what)
    train(model, "bert", 2)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    losses = train(model, "bert", 2)
    for one in copies:
        assert train(one, "bert", 2) == losses
        assert equal_tensors(snapshot(one), snapshot(model))
