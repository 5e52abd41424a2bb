"""Layers that are computed once more in backward: to gates that is one step, not two."""

import pytest
import torch
from small_models import (
    COMPRESSIONS,
    MODELS,
    build,
    calls,
    compress,
    equal_tensors,
    snapshot,
    train,
)

import slimgrad as sg

REENTRANT = pytest.mark.parametrize("reentrant", [True, False])


def run(name, reentrant, gradients, **options):
    model = build(name, dropout=0.1)
    controller = sg.compress(model, gradients, seed=3, min_elements=0, **options)
    if reentrant is not None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    torch.manual_seed(5)
    train(model, name, 3)
    return snapshot(model), calls(controller)


@REENTRANT
@pytest.mark.parametrize("what", ["prune", "sparse and activations"])
@pytest.mark.parametrize("name", MODELS)
def test_checkpointing_changes_no_bit_and_counts_a_step_once(name, what, reentrant):
    plain, counts = run(name, None, **COMPRESSIONS[what])
    checkpointed, same = run(name, reentrant, **COMPRESSIONS[what])
    assert equal_tensors(plain, checkpointed)
    assert counts == same and max(counts.values()) == 3


@REENTRANT
def test_the_forward_pass_does_run_twice(reentrant):
    """Else the test above says nothing."""
    model = build("bert")
    compress(model, "prune")
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    count = []
    model.bert.encoder.layer[0].attention.register_forward_hook(lambda *_: count.append(1))
    train(model, "bert", 1)
    assert len(count) == 2


@REENTRANT
@pytest.mark.parametrize(
    "gradients",
    [
        sg.Prune(0.8, allocation="min_cosine"),
        sg.Prune(weight=0.9, input=0.5, sparse_backward="always", allocation="mean_error"),
        sg.Quantize(format="1-4-1", scale=sg.LossScale(dynamic=True, growth_interval=1)),
    ],
    ids=["allocation", "sparse allocation", "dynamic scale"],
)
def test_what_looks_at_all_layers_looks_once_a_step(gradients, reentrant):
    """The forward pass within backward is none that a new step begins with."""
    plain, counts = run("bert", None, gradients)
    checkpointed, same = run("bert", reentrant, gradients)
    assert counts == same and equal_tensors(plain, checkpointed)
