"""Seeds, saving, copies, removal, compilation, ranks of a compressed model."""

import copy
import io
import warnings

import distributed_worker
import pytest
import torch
import torch.nn.functional as F
from controller_samples import GATED, Net, batch, equal_states, make, snapshot, train, whole_state
from gate_samples import lognormal
from plan_fields import seed_of
from ranks import run_ranks
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")


def test_seeds():
    def run(seed, manual=0):
        torch.manual_seed(0)
        model = Net()
        torch.manual_seed(manual)
        controller = sg.compress(model, sg.Prune(0.8), min_elements=1, seed=seed)
        x, y = batch(0)
        F.cross_entropy(model(x), y).backward()
        gates = controller.gates.values()
        assert len({seed_of(gate) for gate in gates}) == len(gates)  # every layer its own
        return model.conv1.weight.grad

    assert torch.equal(run(7), run(7, manual=1))
    assert torch.equal(run(None), run(None))
    assert not torch.equal(run(None), run(None, manual=1))
    assert not torch.equal(run(7), run(8))
    assert torch.equal(run(-1), run(2**64 - 1))


def test_seeds_follow_from_names():
    _, controller = make("fp6", seed=3)
    seeds = [sg.derive_seed(3, "gate", name) % 2**64 for name in controller.gates]
    found = [seed_of(gate) for gate in controller.gates.values()]
    assert found == [(seed % 2**32, seed >> 32) for seed in seeds]


RESUMED = [
    [sg.Prune(0.8), "fp4"],
    sg.Prune(0.8, allocation="min_cosine"),
    sg.Quantize(6, scale=sg.LossScale(2.0**14, dynamic=True, growth_interval=3)),
]


@pytest.mark.parametrize("gradients", RESUMED, ids=str)
@pytest.mark.parametrize("refresh", [1, 3])
def test_a_resumed_run_is_the_uninterrupted_one(gradients, refresh):
    options = {"refresh": refresh, "warmup": 1}
    straight, _ = make(gradients, **options)
    train(straight, 8)
    first, controller = make(gradients, **options)
    optimizer = torch.optim.SGD(first.parameters(), lr=0.05, momentum=0.9)
    train(first, 4, optimizer)
    file = io.BytesIO()
    parts = {"model": first, "optimizer": optimizer, "slimgrad": controller}
    torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second, controller = make(gradients, seed=99, **options)
    optimizer = torch.optim.SGD(second.parameters(), lr=0.05, momentum=0.9)
    second.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    controller.load_state_dict(saved["slimgrad"])
    train(second, 4, optimizer, first=4)
    assert equal_states(straight, second)


@pytest.mark.parametrize("allocation", ["uniform", "min_cosine"])
@pytest.mark.parametrize("again", [True, False])
def test_a_late_change_is_a_setting(allocation, again):
    """Made again it is resumed silently, else the sparsity of compress() holds."""
    model, controller = make(sg.Prune(0.7, allocation=allocation))
    train(model, 2)
    controller.set_sparsity(0.9)
    train(model, 2, first=2)
    resumed, other = make(sg.Prune(0.7, allocation=allocation))
    resumed.load_state_dict(model.state_dict())
    with warnings.catch_warnings():
        if again:
            warnings.simplefilter("error")
            other.set_sparsity(0.9)
            other.load_state_dict(controller.state_dict())
            assert equal_states(model, resumed)
        else:
            with pytest.warns(sg.StateWarning, match=r"sparsity 0\.7, the state has 0\.9"):
                other.load_state_dict(controller.state_dict())
    train(resumed, 2, first=4)
    rows = other.report().values()
    total = sum(row["sparsity"] * row["elements"] for row in rows)
    wanted = 0.9 if again else 0.7
    assert total / sum(row["elements"] for row in rows) == pytest.approx(wanted, abs=0.02)


@pytest.mark.parametrize("gradients", RESUMED, ids=str)
@pytest.mark.parametrize("how", ["deepcopy", "save"])
def test_copies_go_their_own_way(gradients, how):
    model, _ = make(gradients)
    train(model, 2)
    if how == "deepcopy":
        twin = copy.deepcopy(model)
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    before = snapshot(model)
    train(twin, 3, first=2)
    assert all(torch.equal(v, before[k]) for k, v in whole_state(model).items())
    train(model, 3, first=2)
    assert equal_states(model, twin)


@pytest.mark.parametrize("gradients", RESUMED, ids=str)
def test_remove_restores_the_model(gradients):
    torch.manual_seed(0)
    plain = Net()
    model = copy.deepcopy(plain)
    controller = sg.compress(model, gradients, min_elements=1)
    x, y = batch(0)
    model.eval()  # no running statistics
    F.cross_entropy(model(x), y).backward()
    model.zero_grad()
    model.train()
    controller.remove()
    for a, b in zip(model.modules(), plain.modules(), strict=True):
        assert a.__dict__.keys() == b.__dict__.keys()
        assert not (a._forward_hooks or a._forward_pre_hooks or a._backward_hooks)
    assert equal_states(model, plain) and controller.converted == []
    for m in (model, plain):
        F.cross_entropy(m(x), y).backward()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    controller.remove()  # a second time is harmless
    assert sg.compress(model, gradients).converted == GATED


@pytest.mark.parametrize("how", [{"gradients": "fp6"}, {"saved": 4}, {"activations": 3}], ids=str)
def test_a_controller_says_that_it_was_removed(tmp_path, how):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU())
    controller = sg.compress(model, **how)
    state = controller.state_dict()
    controller.remove()
    assert controller.summary() == "removed: the model is as it was before compress()"
    assert controller.converted == [] and controller.report() == {} and controller.left == {}
    for op, *arguments in (
        *(("state_dict",), ("load_state_dict", state), ("log", tmp_path / "log", 1), ("refresh",)),
        ("set_sparsity", 0.5),
    ):
        text = rf"\[{op}\] expected a compressed model, got one after remove\(\)"
        with pytest.raises(ValueError, match=text):
            getattr(controller, op)(*arguments)


def test_other_hooks_stay():
    model, calls = Net(), []
    model.conv1.register_forward_hook(lambda *_: calls.append(1))
    controller = sg.compress(model, "fp6")
    model.conv1.register_forward_hook(lambda *_: calls.append(2))
    controller.remove()
    model(batch(0)[0])
    assert calls == [1, 2]


@pytest.mark.parametrize("gradients", RESUMED, ids=str)
def test_compile(gradients):
    """The same gradients to the bit, in one graph. aot_eager: inductor's own kernels round
    differently."""
    models = []
    for compiled in (False, True):
        model, _ = make(gradients)
        forward = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else None
        train(model, 3, forward=forward)
        models.append(model)
    assert equal_states(*models)


def test_compile_with_inductor():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64))
    controller = sg.compress(model, [sg.Prune(0.8), "fp6"], min_elements=1)
    forward = torch.compile(model, fullgraph=True)
    for step in range(3):
        forward(torch.randn(64, 32)).backward(lognormal((64, 64), seed=step))
    for row in controller.report().values():
        assert row["calls"] == 3 and row["sparsity"] == pytest.approx(0.8, abs=0.05)


def test_distributed(tmp_path):
    """Two ranks that see the same data: they draw differently and stay together."""
    gradients = [sg.Prune(0.8, allocation="min_cosine"), "fp4"]
    run_ranks(distributed_worker.train, (str(tmp_path), gradients))
    a, b = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2))
    for p, q in zip(a["parameters"], b["parameters"], strict=True):
        assert torch.equal(p, q)
    assert not torch.equal(a["draw"], b["draw"])
    for rank in (a, b):
        assert rank["losses"][-1] < 0.5 * rank["losses"][0]
        assert rank["report"]["0"]["calls"] == 31


def test_ranks_that_come_after_compress(tmp_path):
    """Trainers convert first and join their group later. Ranks differ, and each is reproducible."""
    run_ranks(distributed_worker.draw_late, (str(tmp_path),))
    a, b = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for name in ("by rank", "sparse", "set"):
        assert torch.equal(a[name], a[f"{name} again"]) and torch.equal(b[name], b[f"{name} again"])
        assert torch.equal(a[name], b[name]) == (name == "set")


def test_distributed_with_a_sparse_backward_pass(tmp_path):
    run_ranks(distributed_worker.train_sparse, (str(tmp_path),))
    a, b = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2))
    for p, q in zip(a["parameters"], b["parameters"], strict=True):
        assert torch.equal(p, q)
    assert not torch.equal(a["own_gradient"], b["own_gradient"])
    for rank in (a, b):
        assert rank["losses"][-1] < 0.5 * rank["losses"][0]
        assert {choice["way"] for choice in rank["choices"].values()} == {"sparse"}
