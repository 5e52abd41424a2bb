"""torch.compile of five transformers, compressed before and after it was called."""

import pytest
import torch
from small_models import (
    MODELS,
    SPARSE,
    batch,
    build,
    calls,
    compress,
    equal_tensors,
    snapshot,
    train,
)

import slimgrad as sg

# Most of a compiled step's time is inductor's; what it compiles is decided before it.
QUICK = "aot_eager"


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def step(model, name, forward):
    """The loss and the gradients of one step."""
    model.zero_grad()
    loss = forward(**batch(name)).loss
    loss.backward()
    return loss.item(), {n: p.grad.clone() for n, p in model.named_parameters()}


def assert_close(a, b):
    """Draws are numbered in the order of a gradient's memory, and one layer of T5, a projection of
    keys, gets its gradient in another order from the compiler: it has other draws. So it is the
    median over parameters that must agree."""
    assert a[0] == pytest.approx(b[0], rel=1e-5)
    errors = [((b[1][key] - gradient).norm() / gradient.norm()) for key, gradient in a[1].items()]
    assert torch.stack(errors).nanmedian() < 1e-3  # nan: a bias that has no gradient, as of keys


def small(name):
    return build(name, layers=1)


@pytest.mark.parametrize("what", ["sparse", "gates and activations"])
@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_model_is_compressed(name, what):
    eager, compiled = small(name), small(name)
    a, b = compress(eager, what), compress(compiled, what)
    assert_close(
        step(eager, name, eager), step(compiled, name, torch.compile(compiled, backend=QUICK))
    )
    assert calls(a) == calls(b) and 1 in calls(b).values()


@pytest.mark.parametrize("name", MODELS)
def test_a_plain_model_of_the_class_was_compiled_before(name):
    """Compiled code is kept by the code object, which both models share."""
    plain, eager, model = small(name), small(name), small(name)
    step(plain, name, torch.compile(plain, backend=QUICK))
    expected = compress(eager, "prune")
    controller = compress(model, "prune")
    assert_close(step(eager, name, eager), step(model, name, torch.compile(model, backend=QUICK)))
    assert calls(controller) == calls(expected) and set(calls(controller).values()) == {1}


@pytest.mark.parametrize("name", MODELS)
def test_compress_after_the_compiled_model_has_run_and_remove_again(name):
    model, eager, plain = small(name), small(name), small(name)
    compiled = torch.compile(model, backend=QUICK)
    without = step(model, name, compiled)
    controller = compress(model, "prune")
    compress(eager, "prune")
    assert_close(step(eager, name, eager), step(model, name, compiled))
    assert set(calls(controller).values()) == {1}
    controller.remove()
    assert_close(without, step(model, name, compiled))
    assert_close(without, step(plain, name, plain))


def test_inductor_trains_as_eager_does():
    name = "bert"
    eager, model = small(name), small(name)
    compress(eager, "fp6")
    controller = compress(model, "fp6")
    losses = train(model, name, 3, forward=torch.compile(model))
    assert losses[0] == pytest.approx(train(eager, name, 1)[0], rel=1e-5)
    assert set(calls(controller).values()) == {3}
    again = small(name)
    compress(again, "fp6")
    assert train(again, name, 3, forward=torch.compile(again)) == losses
    assert equal_tensors(snapshot(again), snapshot(model))


ALLOCATING = {
    "gates": sg.Prune(0.8, allocation="min_cosine"),
    "sparse": sg.Prune(weight=0.9, input=0.5, allocation="min_cosine", sparse_backward="always"),
}


@pytest.mark.parametrize("how", ["model", "blocks"])
@pytest.mark.parametrize("what", ALLOCATING)
def test_allocation_takes_effect(what, how):
    """Also where the first layer of all is none of those that are compiled."""
    wanted = []
    for compiled in (False, True):
        model = build("bert")
        controller = sg.compress(model, ALLOCATING[what], seed=3, min_elements=0)
        forward = model
        if compiled and how == "model":
            forward = torch.compile(model, backend=QUICK)
        elif compiled:
            model.bert.encoder.layer[1].compile(backend=QUICK)
        for _ in range(3):
            step(model, "bert", forward)
        wanted.append([row["sparsity_wanted"] for row in controller.report().values()])
    assert len({round(value, 3) for value in wanted[0]}) > 3
    assert wanted[1] == pytest.approx(wanted[0], abs=0.02)


@pytest.mark.parametrize(
    "gradients",
    [
        pytest.param(sg.Prune(0.8), id="gates"),
        pytest.param(SPARSE, id="sparse"),
        pytest.param(ALLOCATING["gates"], id="allocation"),
    ],
)
def test_compiled_gradient_checkpointing(gradients):
    results = []
    for compiled in (False, True):
        model = small("bert")
        controller = sg.compress(model, gradients, seed=3, min_elements=0)
        model.gradient_checkpointing_enable({"use_reentrant": False})
        forward = torch.compile(model, backend=QUICK) if compiled else model
        for _ in range(2):
            result = step(model, "bert", forward)
        results.append(result)
        assert set(calls(controller).values()) == {2}
    assert_close(*results)


@pytest.mark.parametrize("how", ["eager", "compiled"])
@pytest.mark.parametrize(
    "gradients",
    [
        sg.Prune(0.8),
        SPARSE,
        *ALLOCATING.values(),
        sg.Quantize(6, scale=sg.LossScale(dynamic=True)),
    ],
)
def test_two_forward_passes_before_one_backward(gradients, how):
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))
    controller = sg.compress(model, gradients, seed=3, min_elements=0)
    forward = torch.compile(model, backend=QUICK) if how == "compiled" else model
    for _ in range(2):
        (forward(torch.randn(8, 32)).sum() + forward(torch.randn(8, 32)).sum()).backward()
    assert max(calls(controller).values()) == 4


def test_one_block_compiled_in_place():
    model, eager = build("bert"), build("bert")
    controller = compress(model, "fp6")
    compress(eager, "fp6")
    for layer in model.bert.encoder.layer:
        layer.compile(backend=QUICK)
    assert_close(step(eager, "bert", eager), step(model, "bert", model))
    assert set(calls(controller).values()) == {1}
