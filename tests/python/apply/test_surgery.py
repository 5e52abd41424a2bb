"""Models as people have them: refused half way, operated on, parametrized, copied, traced."""

import copy

import pytest
import torch
from controller_samples import GATED, Net, batch, make, train
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.optim.swa_utils import AveragedModel

import slimgrad as sg
from slimgrad.compression.handles import LayerHandle

pytestmark = pytest.mark.usefixtures("one_thread")

SPARSE = sg.Prune(weight=0.9, input=0.5, sparse_backward="always")
each_kind = pytest.mark.parametrize("gradients", ["fp6", SPARSE], ids=["gates", "sparse"])


class WithActivations(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.SiLU())


def is_plain(model, like):
    """Whether nothing of ours is left in it."""
    return all(
        type(a) is type(b) and vars(a).keys() == vars(b).keys()
        for a, b in zip(model.modules(), like.modules(), strict=True)
    )


# ---- refused before anything has changed ---------------------------------------------------------

REFUSALS = [
    {"gradients": "fp6", "activations": 3, "exclude": ["0", "2"]},  # nothing left to convert
    {"gradients": sg.Prune(0.8, allocation="targets", targets={"7": 0.9}), "activations": 3},
    {"gradients": "fp6", "activations": 9},
    {"gradients": "fp6", "activations": 3, "inputs": torch.randn(2, 5)},  # does not fit the model
    {"gradients": "fp6", "activations": 3, "stream": -1},
    {"gradients": "fp6", "activations": 3, "stream": "one"},
    {"activations": 3, "inputs": torch.randn(2, 5)},
]


@pytest.mark.parametrize("how", REFUSALS)
def test_a_refusal_changes_nothing(how):
    model = WithActivations()
    with pytest.raises((ValueError, RuntimeError)):
        sg.compress(model, **how)
    assert is_plain(model, WithActivations())


def test_a_failure_half_way_is_undone(monkeypatch):
    model, made = WithActivations(), []

    def fails(*arguments):
        if made:
            raise KeyboardInterrupt
        made.append(1)
        return LayerHandle(*arguments)

    monkeypatch.setattr("slimgrad.compression.compress.LayerHandle", fails)
    with pytest.raises(KeyboardInterrupt):
        sg.compress(model, "fp6", activations=3)
    assert made and is_plain(model, WithActivations())


# ---- operated on, then removed -------------------------------------------------------------------


@each_kind
def test_a_replaced_head_is_named(gradients):
    model, controller = make(gradients)
    model.head[1] = nn.Linear(16 * 64, 5)
    with pytest.warns(UserWarning, match=r"replaced since, .*: head\.1"):
        gone = controller.remove()
    assert gone == ["head.1"] and is_plain(model, Net())
    assert model.head[1].out_features == 5


def test_a_replaced_activation_is_named():
    model = WithActivations()
    controller = sg.compress(model, activations=3)
    model[1] = nn.ReLU()
    with pytest.warns(UserWarning, match="replaced since, .*: 1 of a WithActivations"):
        controller.remove()
    assert type(model[1]) is nn.ReLU and type(model[3]) is nn.SiLU


def test_a_whole_part_that_is_gone():
    model, controller = make("fp6", activations=3)
    model.head = nn.Flatten()
    with pytest.warns(UserWarning, match=r"head\.1"):
        controller.remove()
    assert type(model.conv1) is nn.Conv2d


PARAMETRIZATIONS = [parametrizations.weight_norm, parametrizations.spectral_norm]


@each_kind
@pytest.mark.parametrize("norm", PARAMETRIZATIONS)
def test_a_parametrization_before(gradients, norm):
    model = Net()
    norm(model.conv2)
    controller = sg.compress(model, gradients, min_elements=1)
    assert controller.converted == GATED
    train(model, 2)
    assert all(row["calls"] for name, row in controller.report().items() if "conv1.i" not in name)
    assert parametrize.is_parametrized(model.conv2, "weight")
    controller.remove()
    assert type(model.conv2).__name__ == "ParametrizedConv2d"
    assert type(model.conv2).__bases__ == (nn.Conv2d,)
    parametrize.remove_parametrizations(model.conv2, "weight")
    assert is_plain(model, Net())


@each_kind
@pytest.mark.parametrize("norm", PARAMETRIZATIONS)
def test_a_parametrization_that_ends_first(gradients, norm):
    model = Net()
    norm(model.conv2)
    controller = sg.compress(model, gradients, min_elements=1)
    parametrize.remove_parametrizations(model.conv2, "weight")
    train(model, 1)
    assert controller.report()["conv2" if gradients == "fp6" else "conv2.weight"]["calls"] == 1
    controller.remove()
    assert is_plain(model, Net())


@each_kind
@pytest.mark.parametrize("norm", PARAMETRIZATIONS)
def test_a_parametrization_afterwards(gradients, norm):
    model, controller = make(gradients)
    norm(model.conv2)
    train(model, 1)
    assert controller.report()["conv2" if gradients == "fp6" else "conv2.weight"]["calls"] == 1
    controller.remove()
    train(model, 1)
    parametrize.remove_parametrizations(model.conv2, "weight")
    assert is_plain(model, Net())


def test_a_copy_of_a_parametrized_model_is_its_own():
    model = Net()
    parametrizations.weight_norm(model.conv2)
    twin = copy.deepcopy(model)
    sg.compress(model, sg.Prune(0.8), min_elements=1)
    train(twin, 1)
    converted = copy.deepcopy(model)
    train(converted, 1)
    assert converted.conv2.slimgrad_gate.report()["calls"] == 1
    assert model.conv2.slimgrad_gate.report()["calls"] == 0
    assert not hasattr(twin.conv2, "slimgrad_gate")


@each_kind
def test_a_forward_on_the_object_is_reported(gradients):
    """As accelerate hooks layers: what it calls is the old forward."""
    model = Net()
    old = model.conv2.forward
    model.conv2.forward = lambda x: old(x)
    controller = sg.compress(model, gradients)
    assert "conv2" not in controller.converted
    assert "forward was replaced on the object" in controller.left["conv2"]


# ---- copies, traces, devices ---------------------------------------------------------------------


@each_kind
def test_an_averaged_copy(gradients):
    """Averaging takes buffers along if it is asked to: ours must not be among them."""
    model, controller = make(gradients)
    average = AveragedModel(model, use_buffers=True)
    before = sg.state_dict(average)
    for step in range(3):
        train(model, 1, first=step)
        average.update_parameters(model)
    assert all(torch.equal(v, before[k]) for k, v in sg.state_dict(average).items())
    train(average, 2)
    assert max(row["calls"] for row in controller.report().values()) == 3


@each_kind
def test_data_parallel_is_refused(gradients):
    """Replicas are made on GPUs alone; this is the step in which they are."""
    model, _ = make(gradients)
    with pytest.raises(RuntimeError, match="expected one process for each device"):
        for module in model.modules():
            module._replicate_for_data_parallel()


@each_kind
def test_functional_call(gradients):
    model, controller = make(gradients)
    x, y = batch(0)
    out = torch.func.functional_call(model, dict(model.named_parameters()), (x,))
    nn.functional.cross_entropy(out, y).backward()
    assert max(row["calls"] for row in controller.report().values()) == 1


@each_kind
@pytest.mark.parametrize("transform", ["grad", "vmap"])
def test_transforms_are_refused(gradients, transform):
    """vmap would leave the gates out in silence."""
    layer = nn.Linear(8, 8)
    sg.compress(layer, gradients, min_elements=1)
    function = {
        "grad": torch.func.grad(lambda x: layer(x).sum()),
        "vmap": torch.func.vmap(layer),
    }[transform]
    with pytest.raises(RuntimeError, match=r"got a transform of torch\.func"):
        function(torch.randn(4, 8))
    with torch.no_grad():
        assert torch.func.vmap(layer)(torch.randn(4, 8)).shape == (4, 8)


@each_kind
@pytest.mark.parametrize("how", ["jit.trace", "export"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_trace_is_of_the_plain_model(gradients, how):
    model = WithActivations()
    controller = sg.compress(model, gradients, activations=3, min_elements=1)
    x = torch.randn(4, 32)
    with pytest.warns(UserWarning, match="is the plain one"):
        if how == "jit.trace":
            traced = torch.jit.trace(model, x)
            graph = str(traced.inlined_graph)
        else:
            program = torch.export.export(model, (x,))
            traced, graph = program.module(), str(program.graph)
    assert "slimgrad::" not in graph and "ops.slimgrad" not in graph and "aten" in graph
    assert torch.allclose(traced(x), model(x), atol=1e-6)
    assert max(row["calls"] for row in controller.report().values()) == 0


def test_a_meta_model_is_converted_before_it_has_values():
    with torch.device("meta"):
        model = Net()
    controller = sg.compress(model, sg.Prune(0.8), min_elements=1)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.05)
    model.norm.reset_running_stats()
    train(model, 1)
    assert all(row["calls"] == 1 for row in controller.report().values())


# ---- what is left is named, with the reason ------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, with_head=True):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.lstm = nn.LSTM(32, 32)
        if with_head:
            self.head = nn.Linear(32, 50)


def test_what_we_do_not_know_is_in_the_report():
    controller = sg.compress(Recurrent(), "fp6")
    assert controller.converted == ["head"]
    assert "products are inside one call of torch" in controller.left["lstm"]
    assert "no product" in controller.left["embedding"]
    for name in ("lstm", "embedding"):
        assert name in controller.summary()


def test_a_model_of_nothing_that_we_know_is_refused_in_words():
    with pytest.raises(
        ValueError, match=r"left alone: embedding: .*; lstm: nn\.LSTM: its products"
    ):
        sg.compress(Recurrent(with_head=False), "fp6")


def test_a_layer_that_returns_no_tensor_is_named():
    class Both(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    model = nn.ModuleList([Both(8, 8)])
    sg.compress(model, "fp6")
    with pytest.raises(TypeError, match="expected Both to return a tensor, got tuple"):
        model[0](torch.randn(4, 8))


@each_kind
def test_another_layer_of_a_converted_class_is_plain(gradients):
    model, controller = make(gradients)
    model.head[1] = type(model.head[1])(16 * 64, 10)
    shallow = copy.copy(model.conv1)
    train(model, 1)
    with pytest.warns(UserWarning, match=r"head\.1"):
        controller.remove()
    shallow(batch(0)[0]).sum().backward()
    train(model, 1)


@each_kind
def test_gates_follow_the_mode_of_the_layer(gradients):
    model = Net().eval()
    sg.compress(model, gradients)
    assert not any(module.training for module in model.modules())


@each_kind
def test_on_a_default_device_without_values(gradients):
    with torch.device("meta"):
        model = Net()
        controller = sg.compress(model, gradients)
        state = controller.state_dict()
    assert {tensor.device.type for tensor in state.values()} == {"cpu"}
    controller.load_state_dict(state)


def test_compress_in_inference_mode():
    model = Net()
    with torch.inference_mode():
        controller = sg.compress(model, "fp6", min_elements=1)
    train(model, 1)
    assert controller.report()["conv1"]["calls"] == 1


@each_kind
def test_a_class_on_top_stays(gradients):
    """Whatever else changed the class of a layer since."""
    model, controller = make(gradients)
    plain = nn.Conv2d
    top = type("OnTop", (type(model.conv2),), {})
    model.conv2.__class__ = top
    controller.remove()
    assert type(model.conv2).__name__ == "OnTop" and type(model.conv2).__bases__ == (plain,)
    train(model, 1)


BAD = [
    {"schedule": [1]},
    {"schedule": {"a": 0.5}},
    {"schedule": {0: "x"}},
    {"include": 3},
    {"seed": "a"},
    {"seed": 1.5},
    {"refresh": True},
]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_nonsense_is_refused_in_words(bad):
    with pytest.raises(ValueError, match=r"\[compress\] expected"):
        sg.compress(Net(), sg.Prune(0.5), **bad)


def test_what_is_no_model_is_refused_in_words():
    with pytest.raises(TypeError, match="expected model to be a module, got NoneType"):
        sg.compress(None, "fp6")
