"""Settings and arguments that compress() refuses."""

import pytest
from controller_samples import Net, batch, equal_keys, make
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "make_settings",
    [
        lambda: sg.Prune(1.0),
        lambda: sg.Prune(-0.1),
        lambda: sg.Prune(float("nan")),
        lambda: sg.Prune(0.5, method="guess"),
        lambda: sg.Prune(0.5, allocation="best"),
        lambda: sg.Prune(0.5, kind="none"),
        lambda: sg.Prune(0.5, cap=0),
        lambda: sg.Prune(0.5, cap=float("nan")),
        lambda: sg.Quantize(),
        lambda: sg.Quantize(6, format="1-3-2"),
        lambda: sg.Quantize(1),
        lambda: sg.Quantize(9),
        lambda: sg.Quantize(6.5),
        lambda: sg.Quantize(format="1-8-2"),
        lambda: sg.Quantize(format="fp6"),
        lambda: sg.Quantize(6, scale="best"),
        lambda: sg.Quantize(6, rounding="up"),
        lambda: sg.Quantize(6, underflow="up"),
        lambda: sg.LossScale(0),
        lambda: sg.LossScale(float("nan")),
        lambda: sg.LossScale(float("inf")),
        lambda: sg.LossScale(growth_interval=0),
    ],
)
def test_bad_settings(make_settings):
    with pytest.raises(ValueError):
        make_settings()


@pytest.mark.parametrize(
    ("gradients", "options"),
    [
        ("fp9", {}),
        ("fp1", {}),
        ("int8", {}),
        (None, {}),
        (6, {}),
        (["fp6", "fp4"], {}),
        ([sg.Prune(0.5), sg.Prune(0.6)], {}),
        ("fp6", {"refresh": -1}),
        ("fp6", {"refresh": 1.5}),
        ("fp6", {"warmup": -1}),
        ("fp6", {"sample": 0}),
        ("fp6", {"min_elements": -1}),
        ("fp6", {"schedule": {0: 0.5}}),
        (sg.Prune(0.5, allocation="min_cosine"), {"schedule": {0: 0.5}}),
        (sg.Prune(0.5), {"schedule": {0: 1.0}}),
        (sg.Prune(0.5), {"schedule": {-1: 0.5}}),
        (sg.Prune(0.5), {"schedule": {float("nan"): 0.5}}),
        (sg.Prune(0.5), {"schedule": {i: 0.5 for i in range(9)}}),
        ("fp6", {"include": "conv3"}),
        ("fp6", {"include": ["conv1", "conv3"]}),
        ("fp6", {"exclude": "conv3"}),  # a misspelt name must not be ignored
        ("fp6", {"exclude": "conv"}),  # names are whole
    ],
    ids=str,
)
def test_bad_arguments(gradients, options):
    model = Net()
    with pytest.raises(ValueError):
        sg.compress(model, gradients, **options)
    assert equal_keys(model) and not model.conv1._forward_hooks


def test_nothing_to_convert():
    with pytest.raises(ValueError, match="at least one"):
        sg.compress(nn.ReLU(), "fp6")


def test_nothing_to_do():
    """compress(model) without saying what is a mistake or at least does nothing."""
    model = Net()
    try:
        controller = sg.compress(model)
    except ValueError:
        return
    assert controller.converted == [] and equal_keys(model)


def test_set_sparsity_errors():
    with pytest.raises(ValueError, match="Prune"):
        make("fp6")[1].set_sparsity(0.5)
    _, controller = make(sg.Prune(0.5))
    for wrong in (1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="sparsity"):
            controller.set_sparsity(wrong)


def test_float64_is_refused_before_training():
    model = Net().double()
    with pytest.raises(ValueError, match="float32, bfloat16 or float16"):
        sg.compress(model, "fp6")
        model(batch(0)[0].double())
