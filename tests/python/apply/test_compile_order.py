"""torch.compile, whatever it has seen before: a plain model of the class, or the model itself."""

import pytest
import torch
from controller_samples import Net, batch, equal_states
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")

WAYS = {
    "gates": sg.Prune(0.8),
    "allocated": sg.Prune(0.8, allocation="min_cosine"),
    "sparse": sg.Prune(weight=0.9, input=0.5, sparse_backward="always"),
}
each_way = pytest.mark.parametrize("gradients", WAYS.values(), ids=WAYS)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def step(model):
    x, y = batch(0)
    nn.functional.cross_entropy(model(x.requires_grad_()), y).backward()


def compiled(model):
    return torch.compile(model, backend="aot_eager")


@each_way
def test_a_plain_model_of_the_class_first(gradients):
    step(compiled(Net()))
    model = Net()
    controller = sg.compress(model, gradients, min_elements=1)
    forward = compiled(model)
    step(forward)
    step(forward)
    assert {row["calls"] for row in controller.report().values()} == {2}


@each_way
def test_compile_run_compress_run(gradients):
    model = Net()
    forward = compiled(model)
    step(forward)
    controller = sg.compress(model, gradients, min_elements=1)
    step(forward)
    assert {row["calls"] for row in controller.report().values()} == {1}
    controller.remove()
    gradient = model.conv1.weight.grad.clone()
    model.zero_grad()
    step(forward)
    assert not torch.equal(model.conv1.weight.grad, gradient)


@each_way
def test_layers_compiled_on_their_own(gradients):
    """Regional compilation: blocks of one class share one graph."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(4)]
    model = nn.Sequential(*blocks)
    for block in blocks:
        block.compile(backend="aot_eager")
    model(torch.randn(16, 32)).square().sum().backward()
    controller = sg.compress(model, gradients, include=["1", "3"], min_elements=1)
    model(torch.randn(16, 32)).square().sum().backward()
    assert {row["calls"] for row in controller.report().values()} == {1}


def test_two_of_a_class_with_gates_of_their_own():
    """The graph of one model must not write the state of another."""
    torch.manual_seed(0)
    models = [Net(), Net()]
    controllers = [sg.compress(m, sg.Prune(0.8), min_elements=1, seed=1) for m in models]
    forwards = [compiled(m) for m in models]
    step(forwards[0])
    step(forwards[1])
    step(forwards[1])
    calls = [{row["calls"] for row in c.report().values()} for c in controllers]
    assert calls == [{1}, {2}]


def test_a_loaded_state_is_seen_by_the_graph():
    torch.manual_seed(0)
    models = [Net(), Net()]
    models[1].load_state_dict(models[0].state_dict())
    a, b = (sg.compress(m, sg.Prune(0.8), min_elements=1, seed=s) for s, m in enumerate(models))
    forwards = [compiled(m) for m in models]
    step(forwards[0])
    step(forwards[1])
    models[1].load_state_dict(models[0].state_dict())
    b.load_state_dict(a.state_dict())
    for model, forward in zip(models, forwards, strict=True):
        model.zero_grad()
        step(forward)
    assert equal_states(*models)
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)
