"""What a budget expects of rounding, against the errors that it makes."""

import pytest
import torch
from kept_samples import Gpt, cnn, cnn_step, gpt_step, gradients
from torch import nn

import slimgrad as sg
from slimgrad.kept.budget import AS_IS

pytestmark = pytest.mark.usefixtures("one_thread")

DRAWS = 4


def squared_error(found, right):
    return sum((a - b).double().square().sum().item() for a, b in zip(found, right, strict=True))


def errors_one_by_one(model, step, bits=2):
    """By module and order: the squared error of all gradients if that tensor alone is rounded, on
    average over draws, and what was expected: a squared step is six variances."""
    plain = gradients(model, step)
    keep = sg.Keep(budget=0.15, measure_every=0, min_elements=1024)
    controller = sg.compress(model, kept=keep, seed=3)
    gradients(model, step)
    budget = controller.kept.keeper.budget
    slots = budget.slots
    for slot in slots.values():
        slot.bits = AS_IS
    rest = squared_error(gradients(model, step), plain)  # of the logarithm of the softmax
    found = {}
    for place, slot in slots.items():
        slot.bits = bits
        made = sum(squared_error(gradients(model, step), plain) for _ in range(DRAWS)) / DRAWS
        slot.bits = AS_IS
        found[budget.names[place], place[1]] = (made - rest, slot.errors[(8, 4, 2).index(bits)] / 6)
    controller.remove()
    return found


def trained(make, step):
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for number in range(10):
        optimizer.zero_grad()
        step(model, number).backward()
        optimizer.step()
    return model


def test_errors_of_products_are_as_expected():
    """Linear layers and convolutions: the closed form itself. Rows with large values may meet large
    gradients, which it does not know: a factor of 2."""
    for make, step, products in [
        (Gpt, gpt_step, ("qkv", "up", "down", "head")),
        (cnn, cnn_step, ("8",)),
    ]:
        found = errors_one_by_one(trained(make, step), step)
        own = {key: pair for key, pair in found.items() if key[0].split(".")[-1] in products}
        assert len(own) >= 1
        for key, (made, expected) in own.items():
            assert 0.5 < made / expected < 2, key


@pytest.mark.parametrize(("make", "step"), [(Gpt, gpt_step), (cnn, cnn_step)])
def test_errors_of_all_else_have_the_right_size(make, step):
    """Norms, GELU and attention, whose constants are rules of thumb: a factor of 25, where the
    errors themselves differ by thousands."""
    found = errors_one_by_one(trained(make, step), step)
    made = [pair[0] for pair in found.values() if pair[1] > 0]
    assert max(made) > 100 * min(made)
    for key, (error, expected) in found.items():
        if expected == 0:
            assert error == 0, key  # what only ReLU and pooling have
        else:
            assert 1 / 25 < error / expected < 25, key


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(8, 16, 3, padding=1), (4, 8, 16, 16)),
        (nn.Conv2d(8, 16, 3, stride=2, groups=2), (4, 8, 32, 32)),
        (nn.ConvTranspose2d(8, 6, 4, stride=2), (4, 8, 16, 16)),
        (nn.Conv1d(8, 6, 5), (4, 8, 300)),
        (nn.Linear(48, 30), (16, 8, 48)),
    ],
)
def test_fans_of_layers(layer, shape):
    """Independent values and gradients: the closed form within the noise of the draws; the border
    of a convolution meets less, by a tenth or so."""
    torch.manual_seed(0)
    x, gradient = torch.randn(shape), None

    def step():
        nonlocal gradient
        y = layer(x.clone().requires_grad_() * 1)
        gradient = torch.randn_like(y) if gradient is None else gradient
        layer.zero_grad()
        # The first node that unpacks anything is not seen itself: a sine comes before it.
        return y.sin() * 0 + y

    out = step()
    out.backward(gradient)
    plain = layer.weight.grad.clone()
    keeping = sg.keep(budget=0.09, measure_every=0, min_elements=1024, seed=1)
    made = []
    for _ in range(1 + 20):
        with keeping:
            out = step()
        out.backward(gradient)
        made.append((layer.weight.grad - plain).double().square().sum().item())
    slot = keeping._keeper.budget.slots[0, 0]
    expected = slot.errors[(8, 4, 2).index(slot.bits)] / 6
    assert sum(made[1:]) / 20 == pytest.approx(expected, rel=0.25)
