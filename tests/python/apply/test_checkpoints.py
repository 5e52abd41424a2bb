"""A model's checkpoint is the plain model's; the state of its compression is apart."""

import io
import warnings

import pytest
import torch
from controller_samples import GATED, Net, batch, equal_states, make, train
from plan_fields import seed_of
from safetensors.torch import load, save
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")

SPARSE = sg.Prune(weight=0.9, input=0.5, sparse_backward="always")
EACH_WAY = [
    {"gradients": "fp6"},
    {"gradients": [sg.Prune(0.8, allocation="min_cosine"), "fp4"]},
    {"gradients": SPARSE},
    {"gradients": "fp6", "activations": 3},
]


@pytest.fixture
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error", sg.StateWarning)
        yield


@pytest.mark.parametrize("how", EACH_WAY, ids=str)
def test_a_checkpoint_holds_nothing_of_ours(how):
    plain = Net()
    model, _ = make(**how)
    train(model, 1)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [n for n, _ in model.named_buffers()] == [n for n, _ in plain.named_buffers()]
    model.load_state_dict(plain.state_dict(), strict=True)
    train(model, 1)
    plain.load_state_dict(model.state_dict(), strict=True)


def by_torch(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize(
    "through", [by_torch, lambda s: load(save(s))], ids=["torch", "safetensors"]
)
@pytest.mark.parametrize("how", EACH_WAY, ids=str)
def test_a_state_travels_as_tensors(how, through, no_warnings):
    model, controller = make(**how)
    train(model, 2)
    state = controller.state_dict()
    assert all(isinstance(t, torch.Tensor) and t.device.type == "cpu" for t in state.values())
    again, other = make(seed=99, **how)
    again.load_state_dict(model.state_dict())
    other.load_state_dict(through(state))
    assert equal_states(model, again)
    train(model, 1, first=2)
    train(again, 1, first=2)
    assert all(
        torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters(), strict=True)
    )


def test_a_state_does_not_change_with_the_run():
    model, controller = make("fp6")
    train(model, 1)
    state = controller.state_dict()
    kept = {name: tensor.clone() for name, tensor in state.items()}
    train(model, 1)
    assert all(torch.equal(state[name], kept[name]) for name in kept)


DIFFERENT = [
    (sg.Prune(0.9), sg.Prune(0.5), {}, {}, "sparsity 0.5, the state has 0.9"),
    ("fp4", "fp6", {}, {}, "bits 6, the state has 4"),
    (sg.Prune(0.8), sg.Prune(0.8, "lognormal"), {}, {}, "'lognormal', the state has 'empirical'"),
    ("fp6", "fp6", {"refresh": 3}, {}, "refresh"),
    ("fp6", "fp6", {"warmup": 3}, {}, "warmup"),
    ("fp6", "fp6", {}, {"sample": 1000}, "sample"),
    ("fp6", sg.Quantize(6, rounding="nearest"), {}, {}, "'nearest', the state has 'stochastic'"),
    (sg.Prune(0.8), sg.Prune(0.8), {"schedule": {0: 0.2, 100: 0.8}}, {}, "schedule"),
    ("fp6", sg.Prune(0.5), {}, {}, "bits"),
]


@pytest.mark.parametrize(("then", "now", "before", "after", "words"), DIFFERENT)
def test_the_setting_wins_and_says_so(then, now, before, after, words):
    model, controller = make(then, **before)
    train(model, 4)
    _, other = make(now, seed=99, **after)
    with pytest.warns(sg.StateWarning, match=words) as caught:
        other.load_state_dict(controller.state_dict())
    assert len([w for w in caught if w.category is sg.StateWarning]) == 1
    for name, gate in other.gates.items():
        assert seed_of(gate) == seed_of(controller.gates[name])
        assert gate.report()["calls"] == controller.gates[name].report()["calls"]
    train(other.model, 1)
    for row in other.report().values():
        if isinstance(now, sg.Prune):
            assert row["sparsity_wanted"] == now.sparsity
            assert row["sparsity"] == pytest.approx(now.sparsity, abs=0.1)  # "lognormal" is a model
            assert row["format"] is None
        else:
            assert row["format"] is not None and row["sparsity_wanted"] == 0


def dynamic(interval):
    return sg.Quantize(6, scale=sg.LossScale(dynamic=True, growth_interval=interval))


def aiming(cosine, cap=0.98):
    return sg.Prune(0.8, allocation="targets", targets={"conv1": cosine}, cap=cap)


TOLD_TOGETHER = [
    (aiming(0.9), aiming(0.95), "target of conv1 0.95, the state has 0.9$"),
    (aiming(0.9), aiming(0.9, 0.9), "cap 0.9, the state has 0.98$"),
    (dynamic(5), dynamic(7), "growth_interval 7, the state has 5$"),
    (aiming(0.9), sg.Prune(0.8), "target of conv1 none, the state has 0.9"),
]


@pytest.mark.parametrize(("then", "now", "words"), TOLD_TOGETHER)
def test_what_layers_are_told_together_is_a_setting(then, now, words):
    model, controller = make(then)
    train(model, 2)
    _, other = make(now)
    with pytest.warns(sg.StateWarning, match=words):
        other.load_state_dict(controller.state_dict())
    assert (
        sg.load_state_dict(model, controller.state_dict()) is None
    )  # they are no state of a layer


def test_many_layers_are_one_sentence():
    models = [nn.Sequential(*(nn.Linear(32, 32) for _ in range(30))) for _ in range(2)]
    first, second = (sg.compress(m, sg.Prune(s)) for m, s in zip(models, (0.9, 0.5), strict=True))
    with pytest.warns(sg.StateWarning, match=r"hold: 0-29: sparsity 0\.5, the state has 0\.9$"):
        second.load_state_dict(first.state_dict())


def test_a_resumed_run_prunes_as_it_is_set():
    """Not as the state was, while the controller says otherwise."""
    model, controller = make(sg.Prune(0.9))
    train(model, 2)
    again, other = make(sg.Prune(0.5))
    with pytest.warns(sg.StateWarning):
        other.load_state_dict(controller.state_dict())
    train(again, 2, first=2)
    assert other.prune.sparsity == 0.5
    for row in other.report().values():
        assert row["sparsity_wanted"] == 0.5
        assert row["sparsity"] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("always", ["always", True])
def test_always_sparse_is_a_setting(always):
    then = sg.Prune(weight=0.9, input=0.5, sparse_backward=True if always == "always" else "always")
    now = sg.Prune(weight=0.9, input=0.5, sparse_backward=always)
    model, controller = make(then)
    train(model, 1)
    again, other = make(now)
    with pytest.warns(sg.StateWarning, match="always"):
        other.load_state_dict(controller.state_dict())
    train(again, 1, first=1)
    ways = {row["setting"] for state in other.sparse.values() for row in state.choices().values()}
    assert ways == {"sparse" if always == "always" else "auto"}


def test_other_layers_are_named():
    model, controller = make("fp6")
    train(model, 1)
    _, fewer = make("fp6", exclude="conv1")
    with pytest.warns(sg.StateWarning, match="missing in the model: conv1"):
        fewer.load_state_dict(controller.state_dict())
    assert fewer.report()["conv2"]["calls"] == 1
    _, more = make("fp6")
    with pytest.warns(sg.StateWarning, match="missing in the state: conv1"):
        more.load_state_dict(fewer.state_dict())
    assert more.report()["conv1"]["calls"] == 0 and more.report()["conv2"]["calls"] == 1


def test_gates_and_sparse_layers_are_other_layers():
    _, gated = make("fp6")
    _, sparse = make(SPARSE)
    with pytest.warns(
        sg.StateWarning,
        match=r"the state: conv1.*input.*missing in the model: .*conv1 \(of another kind\)",
    ):
        sparse.load_state_dict(gated.state_dict())


def damaged(state, name, change):
    return state | {name: change(state[name].clone())}


DAMAGES = {
    "short": lambda t: t[:-1],
    "float32": lambda t: t.float(),
    "NaN": lambda t: t.fill_(float("nan")),
    "negative": lambda t: t.fill_(-1),
    "huge": lambda t: t.fill_(1e300),
}


@pytest.mark.parametrize("change", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("what", ["plan", "stats"])
def test_a_damaged_state_changes_nothing(what, change):
    model, controller = make("fp6")
    train(model, 1)
    state = controller.state_dict()
    again, other = make("fp6", seed=99)
    before = sg.state_dict(again)
    with pytest.raises(ValueError, match=r"\[load_state_dict\] head\.1: .*expected"):
        other.load_state_dict(damaged(state, f"head.1.{what}", change))
    assert all(torch.equal(v, before[k]) for k, v in sg.state_dict(again).items())


@pytest.mark.parametrize("change", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_choice_changes_nothing(change):
    model, controller = make(SPARSE)
    train(model, 1)
    again, other = make(SPARSE, seed=99)
    before = sg.state_dict(again)
    with pytest.raises(ValueError, match=r"\[load_state_dict\] head\.1: .*expected"):
        other.load_state_dict(damaged(controller.state_dict(), "head.1.choice", change))
    assert all(torch.equal(v, before[k]) for k, v in sg.state_dict(again).items())


def test_what_is_no_state_is_refused():
    model, controller = make("fp6")
    with pytest.raises(ValueError, match="expected what state_dict"):
        controller.load_state_dict(model.state_dict())
    with pytest.raises(TypeError, match="from names to tensors"):
        controller.load_state_dict({"version": 1})
    state = controller.state_dict()
    with pytest.raises(ValueError, match="expected version 1, got 2"):
        controller.load_state_dict(state | {"version": torch.tensor([2])})
    del state["conv1.stats"]
    with pytest.raises(ValueError, match=r"expected conv1\.stats in the state"):
        controller.load_state_dict(state)


def test_layers_without_a_controller(no_warnings):
    def run(layer, steps):
        for step in steps:
            layer(
                torch.randn(64, 32, generator=torch.Generator().manual_seed(step))
            ).square().sum().backward()

    def new(seed):
        torch.manual_seed(0)
        linear = sg.nn.Linear(32, 48, gradients=SPARSE, seed=seed)
        return nn.Sequential(linear, nn.ReLU(), nn.Linear(48, 8))

    straight, first, second = new(1), new(1), new(2)
    run(straight, range(4))
    run(first, range(2))
    assert set(sg.state_dict(first)) == {
        "0.weight.plan", "0.weight.stats", "0.input.plan", "0.input.stats", "0.choice", "version"
    }  # fmt: skip
    second.load_state_dict(first.state_dict())
    sg.load_state_dict(second, sg.state_dict(first))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        b.grad = a.grad.clone()
    run(second, range(2, 4))
    for a, b in zip(straight.parameters(), second.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_a_compiled_model_has_the_same_names():
    torch.manual_seed(0)
    compiled = torch.compile(Net(), backend="eager")
    controller = sg.compress(compiled, "fp6", seed=3, min_elements=1)
    model, other = make("fp6", seed=3)
    assert controller.converted == other.converted == GATED
    assert equal_states(compiled._orig_mod, model)
    assert sg.state_dict(compiled).keys() == controller.state_dict().keys()


def test_weights_that_are_loaded_begin_a_run(no_warnings):
    """Counters of a schedule stay at zero, and nobody guesses whether a run was to be resumed."""
    model, controller = make(sg.Prune(0.8), schedule={0: 0.2, 10: 0.8})
    model.load_state_dict(Net().state_dict())
    train(model, 2)
    assert {row["calls"] for row in controller.report().values()} == {2}


def test_state_stays_on_the_cpu_in_float64():
    model, controller = make("fp6")
    train(model, 1)
    before = controller.state_dict()
    model.half().bfloat16().float().to("meta")
    after = controller.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert list(controller.report()) == GATED and batch(0)[0].dtype == torch.float32


def test_names_of_layers_that_look_like_ours(no_warnings):
    def new(seed):
        layers = {"setting": nn.Linear(32, 32), "version": nn.Linear(32, 32)}
        model = nn.ModuleDict(layers)
        prune = sg.Prune(0.5, allocation="min_cosine")
        return model, sg.compress(model, prune, min_elements=1, seed=seed)

    (model, controller), (again, other) = new(1), new(2)
    for layer in model.values():
        layer(torch.randn(64, 32)).square().sum().backward()
    other.load_state_dict(controller.state_dict())
    for name, tensor in sg.state_dict(again).items():
        assert torch.equal(tensor, sg.state_dict(model)[name])


def test_blocks_compiled_before_have_the_same_names(no_warnings):
    def new(compiled):
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Linear(32, 32)) for _ in range(2)]
        blocks = [torch.compile(b, backend="eager") for b in blocks] if compiled else blocks
        return sg.compress(nn.Sequential(*blocks), "fp6")

    assert new(True).state_dict().keys() == new(False).state_dict().keys()
    new(True).load_state_dict(new(False).state_dict())
