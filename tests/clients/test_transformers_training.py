"""Five transformers, each with everything that compress() can do to it."""

import math

import pytest
import torch
from small_models import (
    COMPRESSIONS,
    MODELS,
    batch,
    build,
    calls,
    classes,
    compress,
    equal_tensors,
    layers_with_weights,
    snapshot,
    train,
)

pytestmark = [
    pytest.mark.parametrize("name", MODELS),
    pytest.mark.parametrize("what", COMPRESSIONS),
]


def run(name, what, steps=3):
    model = build(name, dropout=0.1)
    controller = compress(model, what)
    torch.manual_seed(5)  # dropout's
    return model, controller, train(model, name, steps)


def test_trains_and_a_seed_gives_the_same_bits(name, what):
    model, controller, losses = run(name, what)
    assert all(math.isfinite(loss) for loss in losses)
    again, _, same = run(name, what)
    assert losses == same and equal_tensors(snapshot(model), snapshot(again))
    plain = build(name, dropout=0.1)
    torch.manual_seed(5)
    train(plain, name)
    # T5's ReLU and dropout keep exactly what their backward needs; all else is compressed.
    exact = (name, what) == ("t5", "activations")
    assert equal_tensors(snapshot(model), snapshot(plain)) == exact
    assert set(calls(controller).values()) <= {0, 3}


def test_every_layer_is_converted_or_left_with_a_reason(name, what):
    model = build(name)
    expected = layers_with_weights(model)
    controller = compress(model, what)
    activations = {name for name, _, _ in controller.activations.converted}
    assert bool(activations) == ("activations" in what)
    if what == "activations":
        assert controller.layers == {} and set(controller.converted) == activations
        return
    assert set(controller.converted) == expected | activations
    embeddings = ("Embedding", "ViTEmbeddings holds position_embeddings itself")
    assert all(any(e in why for e in embeddings) for why in controller.left.values())
    train(model, name, 1)
    report = controller.report()
    images = "vit.embeddings.patch_embeddings.projection"  # nobody wants a gradient of its input
    for layer in expected:
        keys = [layer] if layer in report else [f"{layer}.weight", f"{layer}.input"]
        for key in keys:
            assert report[key]["calls"] == (key != f"{images}.input"), key


def test_state_dicts_are_those_of_the_plain_model(name, what):
    plain, model = build(name), build(name, seed=1)
    compress(model, what)
    train(model, name, 1)
    state = model.state_dict()
    assert list(state) == list(plain.state_dict())
    plain.load_state_dict(state, strict=True)
    assert equal_tensors(snapshot(plain), snapshot(model))
    model.load_state_dict(build(name, seed=2).state_dict(), strict=True)
    assert len(list(model.buffers())) == len(list(plain.buffers()))


def test_saved_models_hold_nothing_of_ours(name, what, tmp_path):
    model = build(name)
    compress(model, what)
    train(model, name, 1)
    model.save_pretrained(tmp_path)
    for file in tmp_path.iterdir():
        assert b"slimgrad" not in file.read_bytes(), file.name
    read = type(build(name)).from_pretrained(tmp_path)
    assert classes(read) == classes(build(name))
    assert equal_tensors(snapshot(read), snapshot(model))


def test_remove_gives_back_the_plain_model(name, what):
    plain, model = build(name), build(name)
    before = classes(model)
    controller = compress(model, what)
    train(model, name, 1)
    controller.remove()
    assert classes(model) == before
    assert list(model.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(model.state_dict())
    assert train(plain, name, 1) == train(model, name, 1)
    assert equal_tensors(snapshot(plain), snapshot(model))
    with torch.no_grad():
        a, b = (some.eval()(**batch(name)).logits for some in (plain, model))
    assert torch.equal(a, b)
