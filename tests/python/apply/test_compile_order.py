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
    """Regional compilation: blocks of one class share their graphs, and other layers are eager."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(12)]
    model = nn.Sequential(nn.Linear(32, 32), *blocks, nn.Linear(32, 32))
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    for block in blocks:
        block.compile(backend=counter)

    def step():
        model(torch.randn(64, 32, requires_grad=True)).pow(3).sum().backward()

    step()
    plain = counter.frame_count
    controller = sg.compress(model, gradients, exclude=["4", "9"], min_elements=1)
    for _ in range(4):
        step()
    assert {row["calls"] for row in controller.report().values()} == {4}
    assert counter.frame_count <= plain + 3  # no block its own
    if gradients is WAYS["allocated"]:
        assert len({round(r["sparsity_wanted"], 6) for r in controller.report().values()}) > 2


@pytest.mark.parametrize("part", ["first", "last"])
def test_allocation_where_the_first_layer_is_not_compiled(part):
    """One that is not used at all, and one outside of what is compiled."""

    class Some(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused, self.first, self.last = (nn.Linear(32, 32) for _ in range(3))

        def forward(self, x):
            return self.last(torch.relu(self.first(x)) ** 3)

    def run(compiled):
        torch.manual_seed(0)
        model = Some()
        controller = sg.compress(
            model, sg.Prune(0.8, allocation="min_cosine"), min_elements=1, seed=1
        )
        if compiled:
            (model if part == "first" else model.last).compile(backend="aot_eager")
        for _ in range(3):
            model(torch.randn(64, 32, requires_grad=True)).square().sum().backward()
        return [row["sparsity_wanted"] for row in controller.report().values()]

    assert run(True) == pytest.approx(run(False), abs=1e-4)
    assert run(False)[1] != pytest.approx(run(False)[2], abs=1e-3)


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


class Turns(nn.Module):
    """Layers that take turns, behind one that is used only at first."""

    def __init__(self):
        super().__init__()
        self.extra, self.a, self.b = (nn.Linear(32, 32) for _ in range(3))
        self.end = nn.Linear(32, 32)

    def forward(self, x, extra=False, turn="a"):
        x = self.extra(x) if extra else x
        return self.end(torch.relu(self.a(x) if turn == "a" else self.b(x)) ** 3)


def turn(forward, number):
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(number)).requires_grad_()
    forward(x, extra=number == 0, turn="ab"[number % 2]).square().sum().backward()


TURNING = {
    "allocated": sg.Prune(0.8, allocation="min_cosine"),
    "dynamic": sg.Quantize(6, scale=sg.LossScale(2.0**9, dynamic=True, growth_interval=2)),
}
each_turning = pytest.mark.parametrize("gradients", TURNING.values(), ids=TURNING)


def turning(gradients, seed=1):
    torch.manual_seed(0)
    model = Turns()
    return model, sg.compress(model, gradients, min_elements=1, seed=seed)


@each_turning
def test_layers_that_take_turns(gradients):
    """Whichever graph runs first in a pass looks at all layers."""
    plans = []
    for forward in (lambda m: m, compiled):
        model, controller = turning(gradients)
        run = forward(model)
        for number in range(8):
            turn(run, number)
        plans.append([gate.fields() for gate in controller.gates.values()])
    for eager, graph in zip(*plans, strict=True):
        for name in ("sparsity", "fixed_scale", "calls"):
            assert graph[name] == pytest.approx(eager[name], rel=1e-3)
    start = turning(gradients)[1].gates["a"].fields()
    assert any(plan[k] != start[k] for plan in plans[0] for k in ("sparsity", "fixed_scale"))


@each_turning
@pytest.mark.parametrize("at", range(1, 6))
def test_layers_that_take_turns_resume(gradients, at):
    """When all layers are looked at follows from the state."""
    straight, _ = turning(gradients)
    for number in range(6):
        turn(straight, number)
    first, saved = turning(gradients)
    for number in range(at):
        turn(first, number)
    second, controller = turning(gradients, seed=7)
    controller.load_state_dict(saved.state_dict())
    for p, q in zip(first.parameters(), second.parameters(), strict=True):
        q.grad = None if p.grad is None else p.grad.clone()
    for number in range(at, 6):
        turn(second, number)
    assert equal_states(straight, second)
    for p, q in zip(straight.parameters(), second.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_two_passes_before_one_backward(backend):
    """Siamese networks: backward of the first pass writes what the second has kept."""
    reports = []
    for forward in (lambda m: m, lambda m: torch.compile(m, backend=backend, fullgraph=True)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
        controller = sg.compress(model, [sg.Prune(0.5), "fp6"], min_elements=1, seed=1)
        run = forward(model)
        for step in range(2):
            xs = torch.randn(2, 64, 32, generator=torch.Generator().manual_seed(step))
            (run(xs[0]) * run(xs[1])).sum().backward()
        reports.append([(r["calls"], r["sparsity"]) for r in controller.report().values()])
    assert [calls for calls, _ in reports[1]] == [4, 4]
    for (_, eager), (_, graph) in zip(*reports, strict=True):
        assert graph == pytest.approx(eager, abs=0.02)


def test_a_compiled_evaluation_first():
    """As Lightning's sanity check: the graph of an evaluation does not lead."""

    class Stem(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.a, self.b = (nn.Linear(32, 32) for _ in range(3))

        def forward(self, x):
            x = self.stem(x) if self.training else x
            x = self.a(x)
            torch._dynamo.graph_break()
            return self.b(x.relu() ** 3)

    torch.manual_seed(0)
    model = Stem()
    prune = sg.Prune(0.8, allocation="min_cosine")
    controller = sg.compress(model, prune, min_elements=1, seed=1)
    forward = compiled(model)
    model.eval()
    with torch.no_grad():
        forward(torch.randn(64, 32))
    model.train()
    for _ in range(3):
        forward(torch.randn(64, 32, requires_grad=True)).square().sum().backward()
    wanted = [row["sparsity_wanted"] for row in controller.report().values()]
    assert len({round(w, 4) for w in wanted}) > 1
