"""compress(model, saved=): beside all else that it does, saved, copied, taken back."""

import copy
import io
import pickle

import pytest
import torch
from saved_samples import Gpt, Left, cnn, cnn_step, error, gpt_step, gradients, run, same
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")


def fresh(make=Gpt, **how):
    torch.manual_seed(0)
    model = make()
    return model, sg.compress(model, seed=3, **how)


def draws(packer):
    """Its seed, and how many tensors it has rounded."""
    return packer.tensors_by_name()["draws"].tolist()


def test_packs_what_keep_packs():
    model, controller = fresh(saved=4)
    found = gradients(model, gpt_step)
    controller.remove()
    keeping = sg.saved_tensors(bits=4, seed=sg.derive_seed(3, "saved"))
    model.zero_grad()
    with keeping:
        loss = gpt_step(model, 0)
    loss.backward()
    assert same(found, [p.grad for p in model.parameters()])


@pytest.mark.parametrize("saved", [8, "exact", sg.Saved(bits=4, group=64, rounding="nearest")])
def test_remove_leaves_nothing(saved):
    torch.manual_seed(0)
    model = cnn()
    classes, names = [type(m) for m in model.modules()], [list(vars(m)) for m in model.modules()]
    plain = gradients(model, cnn_step)
    controller = sg.compress(model, saved=saved, seed=3)
    assert isinstance(model, nn.Sequential) and len(model) == len(classes) - 1
    assert not [name for name in model.state_dict() if "slimgrad" in name]
    assert controller.remove() == []
    assert [type(m) for m in model.modules()] == classes
    assert [list(vars(m)) for m in model.modules()] == names
    assert same(gradients(model, cnn_step), plain)


def test_no_gradients_may_be_said():
    """compress(model, args.gradients, saved=8), where the user gave none."""
    model = cnn()
    controller = sg.compress(model, None, saved=8, seed=3)
    assert controller.converted == [""] and controller.layers == {}


def test_a_failure_leaves_the_model_as_it_was(monkeypatch):
    import slimgrad.saved.modules as modules

    model = Gpt()
    classes = [type(m) for m in model.modules()]

    def fail(*_):
        raise RuntimeError("no room")

    calls = []
    attach = modules.attach
    monkeypatch.setattr(
        modules, "attach", lambda *a: calls.append(a) or (fail() if len(calls) > 1 else attach(*a))
    )
    with pytest.raises(RuntimeError, match="no room"):
        sg.compress(
            model, "fp8", saved=8, include=["blocks.0", "blocks.1"], exclude=["blocks.0.act"]
        )
    assert [type(m) for m in model.modules()] == classes
    assert not any("slimgrad_saved" in vars(m) for m in model.modules())


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({}, "expected gradients=, activations= or saved=, got none of them"),
        ({"gradients": None}, "expected gradients=, activations= or saved=, got none of them"),
        ({"saved": 5}, r"\[compress\] expected bits to be 8, 4, 2 or 'exact', got 5"),
        ({"saved": "lossy"}, "expected bits"),
        ({"saved": 8, "include": "nothing"}, "expected names of modules in include"),
        ({"saved": 8, "include": lambda *_: False}, "expected include= to leave something"),
    ],
)
def test_refusals(how, text):
    with pytest.raises(ValueError, match=text):
        sg.compress(Gpt(), **how)


def test_a_forward_that_nobody_would_call_is_refused():
    model = Gpt()
    model.forward = model.forward
    with pytest.raises(ValueError, match=r"got \(model\), which has a forward of its own on the"):
        sg.compress(model, saved=8)
    script = torch.jit.script(nn.Linear(4, 4))
    with pytest.raises(ValueError, match="is TorchScript"):
        sg.compress(script, saved=8)


def test_a_bound_forward_outlives_the_conversion():
    """As accelerate's wrappers hold it."""
    model, controller = fresh(saved=8)
    forward = model.forward
    controller.remove()
    tokens = torch.randint(32, (2, 9))
    assert torch.equal(forward(tokens), model(tokens))


def test_a_model_packs_once():
    model, controller = fresh(saved=8)
    with pytest.raises(ValueError, match=r"no saved tensors yet.*\(model\); call remove\(\)"):
        sg.compress(model, saved=8)
    sg.compress(model, "fp8").remove()
    controller.remove()
    sg.compress(model, saved=8)


def test_include_and_exclude():
    model, controller = fresh(saved=4, include="blocks.1", exclude="blocks.1.act")
    found = sg.saved_bytes(model, (torch.randint(32, (8, 33)),))
    assert list(controller.saved.packing) == ["blocks.1"]
    assert found.by_layer["blocks.0.down"] == found.plain_by_layer["blocks.0.down"]
    assert found.by_layer["blocks.1.act"] == found.plain_by_layer["blocks.1.act"]
    assert found.by_layer["blocks.1.up"] < found.plain_by_layer["blocks.1.up"] / 6
    assert found.left[Left.EXCLUDED] == found.plain_by_layer["blocks.1.act"]
    gradients(model, gpt_step)
    controller.remove()
    assert all(type(m) is nn.GELU for m in model.modules() if isinstance(m, nn.GELU))


@pytest.mark.parametrize(
    "how",
    [
        {"gradients": "fp8"},
        {"gradients": sg.Prune(0.5)},
        {"gradients": sg.Prune(weight=0.8, input=0.5, sparse_backward="always")},
        {"activations": 3},
        {"activations": "exact"},
        {"gradients": sg.Prune(weight=0.8, sparse_backward=True), "activations": 3},
    ],
)
@pytest.mark.parametrize(("make", "step"), [(Gpt, gpt_step), (cnn, cnn_step)])
def test_beside_all_else(make, step, how):
    """Exactly: the same bits as without. With 8 bits: near; where a value that is pruned, or its
    threshold, falls to the other side, by more than the rounding."""
    model, _ = fresh(make, min_elements=1, **how)
    alone = gradients(model, step)
    model, controller = fresh(make, min_elements=1, saved="exact", **how)
    assert same(gradients(model, step), alone)
    assert controller.remove() == []
    model, controller = fresh(make, min_elements=1, saved=8, **how)
    assert error(gradients(model, step), alone) < 0.25
    assert controller.saved.tally.packed > 0
    assert controller.remove() == []


def test_few_bit_codes_stay_as_they_are():
    model, controller = fresh(saved=4, activations=3)
    gradients(model, gpt_step)
    tally = controller.saved.tally
    # Codes of both blocks: 3 bits of 8 x 32 x 256 values; and the tokens, twice.
    assert tally.left[Left.TYPE][1] >= 2 * 8 * 32 * 256 * 3 // 8


def test_bytes_by_layer():
    torch.manual_seed(0)
    model = Gpt()
    tokens = torch.randint(32, (8, 33))
    plain = sg.saved_bytes(model, (tokens,))
    assert plain.plain == plain.total and plain.plain_by_layer == plain.by_layer
    controller = sg.compress(model, saved=4, seed=3)
    found = sg.saved_bytes(model, (tokens,))
    assert found.plain == plain.total and found.plain_by_layer == plain.by_layer
    assert found.total < plain.total / 6.5
    assert sum(found.by_layer.values()) == found.total
    assert draws(controller.saved.packer)[1] == 0  # measuring draws nothing
    lines = str(found).splitlines()
    assert lines[0].split() == ["plain", "saved"]
    assert any(line.endswith("blocks.0.act") for line in lines)
    assert any("left: inputs, buffers and statistics" in line for line in lines)


def test_summary():
    model, controller = fresh(saved=4)
    assert "no forward pass with gradients yet" in controller.summary()
    gradients(model, gpt_step)
    text = controller.summary(width=100)
    assert "saved for backward: 4 bits, groups of 256" in text
    assert "packed, 22 tensors" in text or "tensors:" in text
    assert "left, " in text
    assert all(len(line) <= 60 for line in controller.summary(width=60).splitlines())


@pytest.mark.parametrize(
    "how",
    [
        {"saved": 4, "gradients": "fp8"},
        {"saved": 2, "activations": 3},
    ],
)
def test_a_resumed_run_goes_on_to_the_bit(how):
    whole = run(Gpt, gpt_step, 6, **how)[0]
    losses, model, optimizer, controller = run(Gpt, gpt_step, 3, **how)
    saved = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict(), controller.state_dict()), saved)
    saved.seek(0)
    states = torch.load(saved, weights_only=True)
    torch.manual_seed(99)
    model = Gpt()
    controller = sg.compress(model, **how)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for part, state in zip((model, optimizer, controller), states, strict=True):
        part.load_state_dict(state)
    rest = run(None, gpt_step, 3, 3, model, optimizer, controller)[0]
    assert losses + rest == whole


def test_a_state_of_bits_by_tensor_warns():
    """Version 0.1 wrote such states; the draws go on, and the bits are those that are set."""
    model, controller = fresh(saved=4)
    gradients(model, gpt_step)
    state = controller.state_dict()
    number = draws(controller.saved.packer)[1]
    del state["setting:saved bits"]
    state["setting:saved budget"] = torch.tensor(0.15, dtype=torch.float64)
    state["slimgrad_saved.slots"] = torch.zeros(1, 8, dtype=torch.float64)
    state["slimgrad_saved.places"] = torch.zeros(1, 3, dtype=torch.int64)
    controller.remove()
    other = sg.compress(model, saved=4)
    with pytest.warns(sg.StateWarning, match="saved budget none, the state has 0.15"):
        other.load_state_dict(state)
    assert draws(other.saved.packer)[1] == number > 0


def test_a_state_of_other_settings_warns():
    model, controller = fresh(saved=4)
    gradients(model, gpt_step)
    state = controller.state_dict()
    assert (
        sg.state_dict(model)["slimgrad_saved.draws"].tolist()
        == state["slimgrad_saved.draws"].tolist()
    )
    controller.remove()
    other = sg.compress(model, saved=8)
    with pytest.warns(sg.StateWarning, match="saved bits 8, the state has 4"):
        other.load_state_dict(state)
    assert draws(other.saved.packer)[0] == sg.derive_seed(3, "saved")
    with pytest.raises(ValueError, match="an int64 tensor of seed and number"):
        other.load_state_dict(state | {"slimgrad_saved.draws": torch.zeros(3)})


def test_copies_and_pickles():
    model, _ = fresh(saved=4)
    gradients(model, gpt_step)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.slimgrad_saved is not model.slimgrad_saved
        assert draws(twin.slimgrad_saved) == draws(model.slimgrad_saved)
        assert draws(twin.slimgrad_saved)[1] > 0
        assert same(gradients(twin, gpt_step), gradients(copy.deepcopy(model), gpt_step))


def test_errors_in_backward_name_compress():
    layer = nn.Linear(64, 64)
    sg.compress(layer, saved=8, seed=1)
    x = torch.randn(128, 64, requires_grad=True)
    loss = layer(x * 1).sum()
    with pytest.raises(RuntimeError, match=r"\[compress\] expected backward without create_graph"):
        torch.autograd.grad(loss, layer.weight, create_graph=True)


def test_evaluation_draws_nothing():
    model, controller = fresh(saved=4)
    with torch.no_grad():
        gpt_step(model, 0)
    assert draws(controller.saved.packer)[1] == 0


class _WithTrainingStep(nn.Module):
    """As a LightningModule has it: nobody calls its forward."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))

    def training_step(self, x):
        return self.layers(x).square().mean()


def test_a_training_step_packs_what_it_saves():
    model = _WithTrainingStep()
    x = torch.randn(128, 64)
    plain = torch.autograd.grad(model.training_step(x), list(model.parameters()))
    controller = sg.compress(model, saved=8, seed=1)
    found = torch.autograd.grad(model.training_step(x), list(model.parameters()))
    assert controller.saved.tally.packed == 2  # tanh's result; what is squared
    assert 0 < error(found, plain) < 0.02
    twin = copy.deepcopy(model)
    assert twin.training_step(x).item() == model.training_step(x).item()
    assert controller.remove() == [] and type(model) is _WithTrainingStep


def test_a_layer_alone():
    layer = nn.Linear(64, 64)
    controller = sg.compress(layer, "fp8", saved=8, seed=1, min_elements=1)
    x = torch.randn(128, 64, requires_grad=True)
    layer(x * 1).sum().backward()
    assert controller.saved.tally.packed == 1
    state = controller.state_dict()
    controller.load_state_dict(state)
    assert controller.remove() == [] and type(layer) is nn.Linear
