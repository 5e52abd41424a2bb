"""Loops of accelerate: prepare() before and after compress(), accumulation, mixed precision."""

import math

import pytest
import torch
from accelerate import Accelerator
from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from accelerate.state import AcceleratorState, GradientState
from small_models import (
    COMPRESSIONS,
    batch,
    build,
    calls,
    classes,
    compress,
    equal_tensors,
    snapshot,
)


@pytest.fixture(autouse=True)
def fresh_accelerator():
    """Its settings are the process's: every test has its own."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def run(name, what, first, steps=4, **options):
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, **options)
    model = build(name)
    if first == "compress":
        controller = compress(model, what)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    prepared, optimizer = accelerator.prepare(model, optimizer)
    if first == "prepare":
        controller = compress(prepared, what)
    for step in range(steps):
        with accelerator.accumulate(prepared):
            loss = prepared(**batch(name, step)).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    assert math.isfinite(loss.item())
    return accelerator, prepared, controller


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("what", COMPRESSIONS)
def test_the_order_of_prepare_and_compress_is_no_matter(what, precision):
    _, one, a = run("bert", what, "compress", mixed_precision=precision)
    _, other, b = run("bert", what, "prepare", mixed_precision=precision)
    assert equal_tensors(snapshot(one), snapshot(other))
    assert calls(a) == calls(b) and set(calls(a).values()) <= {4}


@pytest.mark.parametrize("first", ["compress", "prepare"])
@pytest.mark.parametrize("what", ["prune", "sparse", "gates and activations"])
@pytest.mark.parametrize("name", ["gpt2", "vit"])
def test_gradients_that_are_accumulated(name, what, first):
    """Every backward pass is a call, and the mean of two is what the optimizer sees."""
    _, model, controller = run(name, what, first, gradient_accumulation_steps=2)
    assert max(calls(controller).values()) == 4
    expected = build(name)
    compress(expected, what)
    optimizer = torch.optim.AdamW(expected.parameters(), lr=1e-2)
    for step in range(4):
        (expected(**batch(name, step)).loss / 2).backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    assert equal_tensors(snapshot(model), snapshot(expected))


@pytest.mark.parametrize("first", ["compress", "prepare"])
def test_a_model_that_accelerate_compiles(first):
    torch._dynamo.reset()
    _, _, eager = run("bert", "prune", "compress", steps=2)
    _, _, compiled = run("bert", "prune", first, steps=2, dynamo_backend="aot_eager")
    assert calls(compiled) == calls(eager) and set(calls(eager).values()) == {2}
    rows = zip(eager.report().values(), compiled.report().values(), strict=True)
    for a, b in rows:
        assert b["sparsity"] == pytest.approx(a["sparsity"], abs=0.1)


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("first", ["compress", "prepare"])
def test_unwrapped_saved_and_removed_it_is_the_plain_model(first, precision, tmp_path):
    accelerator, prepared, controller = run("bert", "prune", first, mixed_precision=precision)
    accelerator.save_model(prepared, tmp_path)
    for file in tmp_path.iterdir():
        assert b"slimgrad" not in file.read_bytes(), file.name
    controller.remove()
    plain = build("bert")
    assert classes(accelerator.unwrap_model(prepared, keep_fp32_wrapper=False)) == classes(plain)
    plain.load_state_dict(prepared.state_dict())


def test_a_layer_with_a_forward_of_its_own_is_left():
    """accelerate's device hooks give a module a forward of its own, which we would never see."""
    model = build("bert")
    add_hook_to_module(model.classifier, ModelHook())
    controller = compress(model, "prune")
    assert "forward" in controller.left["classifier"]
    assert "classifier" not in controller.converted
    model(**batch("bert")).loss.backward()
    assert set(calls(controller).values()) == {1}


@pytest.mark.parametrize("last", ["hooks", "controller"])
@pytest.mark.parametrize("what", ["prune", "sparse"])
def test_hooks_that_come_after_compress(what, last):
    """They keep the bound forward of the converted layer, even after they are gone."""
    model = build("vit")  # it has a convolution
    controller = compress(model, what)
    add_hook_to_module(model, ModelHook())
    for module in model.modules():
        if not list(module.children()) or hasattr(module, "weight"):
            add_hook_to_module(module, ModelHook())
    model(**batch("vit")).loss.backward()
    assert max(calls(controller).values()) == 1
    if last == "controller":
        remove_hook_from_module(model, recurse=True)
    controller.remove()
    plain = build("vit")
    for some in (plain, model):
        some.zero_grad()
        some(**batch("vit")).loss.backward()
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    if last == "hooks":
        remove_hook_from_module(model, recurse=True)
    assert classes(model) == classes(plain)
