"""LoRA adapters of peft over compressed models, and compressed models over adapters."""

import warnings

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from small_models import (
    batch,
    build,
    calls,
    classes,
    compress,
    equal_tensors,
    snapshot,
    train,
)
from torch import nn

TARGETS = {"bert": ["query", "value"], "gpt2": ["c_attn", "c_fc"], "llama": ["q_proj", "down_proj"]}

EACH = [
    pytest.mark.parametrize("name", TARGETS),
    pytest.mark.parametrize("what", ["prune", "sparse", "gates and activations"]),
    pytest.mark.parametrize("first", ["compress", "adapt"]),
]


def each(test):
    for mark in EACH:
        test = mark(test)
    return test


def adapt(model, name):
    torch.manual_seed(1)  # the adapters' weights
    config = LoraConfig(r=4, target_modules=TARGETS[name], fan_in_fan_out=name == "gpt2")
    return get_peft_model(model, config)


def compressed_adapters(name, what, first):
    model = build(name)
    if first == "compress":
        controller = compress(model, what)
        return adapt(model, name), controller
    adapted = adapt(model, name)
    return adapted, compress(adapted, what)


@each
def test_adapters_train_and_a_seed_gives_the_same_bits(name, what, first):
    adapted, controller = compressed_adapters(name, what, first)
    before = snapshot(adapted)
    losses = train(adapted, name)
    changed = {k for k, v in adapted.state_dict().items() if not torch.equal(v, before[k])}
    assert changed and all("lora_" in key for key in changed)
    reached = {layer for layer, count in calls(controller).items() if count == 3}
    if first == "adapt":  # the adapters' own layers among them
        assert any("lora_B" in layer for layer in reached)
    assert reached  # not all: no gradient gets below the first adapter
    again, _ = compressed_adapters(name, what, first)
    assert train(again, name) == losses and equal_tensors(snapshot(again), snapshot(adapted))


@each
def test_adapter_files_hold_nothing_of_ours(name, what, first, tmp_path):
    adapted, _ = compressed_adapters(name, what, first)
    train(adapted, name, 1)
    adapted.save_pretrained(tmp_path)
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"slimgrad" not in file.read_bytes(), file.name
    plain = adapt(build(name), name)
    keys = {key.replace(".default", "") for key in plain.state_dict() if "lora_" in key}
    assert set(load_file(tmp_path / "adapter_model.safetensors")) == keys
    read = PeftModel.from_pretrained(build(name), tmp_path)
    assert equal_tensors(snapshot(read), snapshot(adapted))


@each
def test_merged_and_removed_it_is_a_plain_model(name, what, first):
    adapted, controller = compressed_adapters(name, what, first)
    train(adapted, name, 1)
    plain = adapt(build(name), name)
    plain.load_state_dict(adapted.state_dict())
    merged = adapted.merge_and_unload()
    with warnings.catch_warnings():  # some of the layers are gone with the adapters
        warnings.simplefilter("ignore", UserWarning)
        controller.remove()
    expected = plain.merge_and_unload()
    assert classes(merged) == classes(expected) == classes(build(name))
    assert equal_tensors(snapshot(merged), snapshot(expected))
    with torch.no_grad():
        a, b = (model.eval()(**batch(name)).logits for model in (merged, expected))
    assert torch.equal(a, b)


@pytest.mark.parametrize("first", ["compress", "adapt"])
def test_compiled_adapters_are_compressed(first):
    torch._dynamo.reset()
    eager, expected = compressed_adapters("llama", "prune", first)
    compiled, controller = compressed_adapters("llama", "prune", first)
    losses = train(eager, "llama", 2)
    forward = torch.compile(compiled, backend="aot_eager")
    assert train(compiled, "llama", 2, forward=forward) == pytest.approx(losses, rel=1e-3)
    assert calls(controller) == calls(expected)


def test_compress_first_and_the_adapters_themselves_are_exact():
    """Their layers came later. What runs through the frozen ones to the layers before is pruned."""

    def gradient(first):
        model = build("llama")
        if first == "compress":
            compress(model, "prune", exclude="lm_head")
        adapted = adapt(model, "llama")
        if first == "adapt":
            compress(adapted, "prune", exclude="base_model.model.lm_head")
        adapted(**batch("llama")).loss.backward()
        layers = adapted.base_model.model.model.layers
        behind, before = layers[1].mlp.down_proj, layers[0].self_attn.q_proj
        return [layer.lora_B["default"].weight.grad for layer in (behind, before)]

    plain, compressed, adapted = (gradient(first) for first in ("", "compress", "adapt"))
    assert torch.equal(compressed[0], plain[0]) and not torch.equal(compressed[1], plain[1])
    assert not torch.equal(adapted[0], plain[0]) and not torch.equal(adapted[1], plain[1])


@pytest.mark.parametrize("what", ["prune", "sparse"])
def test_a_head_that_was_replaced(what):
    """The old head is gone: remove() says so and restores the rest."""
    model = build("bert")
    controller = compress(model, what)
    model.classifier = nn.Linear(32, 5)
    with pytest.warns(UserWarning, match="classifier"):
        controller.remove()
    plain = build("bert")
    plain.classifier = nn.Linear(32, 5)
    assert classes(model) == classes(plain)
    assert list(model.state_dict()) == list(plain.state_dict())
