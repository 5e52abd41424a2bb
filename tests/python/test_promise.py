"""Required against achieved sparsity, on gradients of a network that is trained here from scratch
and on generated ones.

One draw of n values misses its expectation by about 0.35 / sqrt(n): 0.0014 at the 64 Ki values of
the smallest layer here, which the sample takes all. The sample of 64 Ki values adds at most as much
in larger tensors, so the promise of 0.005 is one of about 3.5 standard deviations at the least.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from gate_samples import lognormal, state
from plan_fields import layer_report
from torch import nn

import slimgrad as sg

SPARSITIES = [0.7, 0.8, 0.85, 0.9, 0.95]
PROMISE = 0.005
STEPS_AN_EPOCH, EPOCHS = 10, 3

pytestmark = pytest.mark.usefixtures("one_thread")


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),  # 32 * 16 * 256 = 128 Ki gradient values
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),  # 128 Ki; half of its gradient is zero
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),  # 64 Ki
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),  # 320: left alone
    )


def images(step):
    """Ten patterns under strong noise."""
    patterns = torch.randn(10, 3, 16, 16, generator=torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(100 + step)
    y = torch.randint(10, (32,), generator=generator)
    return patterns[y] + 2 * torch.randn(32, 3, 16, 16, generator=generator), y


def train(prune, once_an_epoch=False):
    """Deviation of every compressed layer at every step, and the losses. SGD with momentum at a
    learning rate of 0.2, without warm-up."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    controller = None
    if prune is not None:
        controller = sg.compress(model, prune, refresh=0 if once_an_epoch else 1, seed=1)
    deviations, losses = [], []
    for step in range(STEPS_AN_EPOCH * EPOCHS):
        if once_an_epoch and step % STEPS_AN_EPOCH == 0:
            controller.refresh()
        x, y = images(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if controller is None:
            continue
        for name, row in controller.report().items():
            if not row["compressed"]:
                continue
            zeros = controller.gates[name].seen().zero_fraction
            assert row["elements"] >= 1 << 16
            # Zeros that were there before cannot be pruned away.
            deviations.append(row["sparsity"] - max(row["sparsity_wanted"], zeros))
    return torch.tensor(deviations), losses


def describe(deviations, losses):
    return (
        f"median {deviations.abs().median():.4f}, largest {deviations.abs().max():.4f}, "
        f"loss {losses[0]:.2f} -> {losses[-1]:.2f}, highest {max(losses):.2f}"
    )


def assert_no_explosion(losses):
    assert all(map(math.isfinite, losses)) and max(losses) <= 2 * max(losses[0], math.log(10))


@pytest.mark.parametrize("sparsity", SPARSITIES)
def test_default_keeps_the_promise_in_every_layer_at_every_step(sparsity, record_property):
    deviations, losses = train(sg.Prune(sparsity))
    record_property("deviation", describe(deviations, losses))
    print(f"empirical, every step, {sparsity}: {describe(deviations, losses)}")
    assert len(deviations) == 3 * STEPS_AN_EPOCH * EPOCHS
    assert float(deviations.abs().max()) <= PROMISE
    assert abs(float(deviations.mean())) < 0.001  # no systematic error
    assert_no_explosion(losses)


OTHERS = [
    ("empirical", True),
    ("lognormal", False),
    ("lognormal", True),
    ("gennorm", False),
    ("gennorm", True),
    ("normal", False),
    ("normal", True),
]


@pytest.mark.parametrize(("method", "once_an_epoch"), OTHERS)
@pytest.mark.parametrize("sparsity", [0.85, 0.95])
def test_other_methods_do_not_explode(method, once_an_epoch, sparsity, record_property):
    deviations, losses = train(sg.Prune(sparsity, method=method), once_an_epoch)
    record_property("deviation", describe(deviations, losses))
    when = "once an epoch" if once_an_epoch else "every step"
    print(f"{method}, {when}, {sparsity}: {describe(deviations, losses)}")
    assert torch.isfinite(deviations).all()
    assert_no_explosion(losses)
    if sparsity == 0.85:  # at 0.95 nearly all lies below the threshold: any method is exact
        default, _ = train(sg.Prune(sparsity))
        assert float(deviations.abs().mean()) > float(default.abs().mean())


@pytest.mark.parametrize("kind", ["topk", "topk_stochastic"])
def test_baselines_do_not_explode(kind, record_property):
    deviations, losses = train(sg.Prune(0.9, kind=kind))
    record_property("deviation", describe(deviations, losses))
    print(f"{kind}, every step, 0.9: {describe(deviations, losses)}")
    assert_no_explosion(losses)
    if kind == "topk":
        assert float(deviations.abs().max()) <= PROMISE
    else:  # Of what lies below the threshold a part comes back.
        assert float(deviations.max()) < 0


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_quantizing_keeps_what_pruning_promised(bits, record_property):
    """What is left at +-threshold is on the grid: quantizing makes few zeros of its own."""
    model, deviations = network(), []
    controller = sg.compress(model, [sg.Prune(0.85), sg.Quantize(bits)], seed=1)
    for step in range(5):
        x, y = images(step)
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        rows = [row for row in controller.report().values() if row["compressed"]]
        deviations += [row["sparsity"] - 0.85 for row in rows]
    largest = max(map(abs, deviations))
    record_property("deviation", largest)
    print(f"empirical and fp{bits}, 0.85: largest {largest:.4f}")
    assert largest <= PROMISE


# ---- generated gradients -------------------------------------------------------------------------


def laplace(n):
    u = torch.rand(n, generator=torch.Generator().manual_seed(1)) - 0.5
    return -u.sign() * torch.log1p(-2 * u.abs())


GENERATED = {
    **{f"lognormal {s}": lambda n, s=s: lognormal((n,), sigma=s) for s in (0.5, 1, 2, 3, 4.5)},
    "laplace": laplace,
    "normal": lambda n: torch.randn(n, generator=torch.Generator().manual_seed(2)),
    "uniform": lambda n: torch.rand(n, generator=torch.Generator().manual_seed(3)),
    "half zeros": lambda n: lognormal((n,), sigma=2.0, zeros=0.5),
    "two scales": lambda n: torch.cat([laplace(n // 2), 1e-4 * lognormal((n - n // 2,))]),
}
TENSOR_SIZE = 300_000


def deviation(x, prune):
    plan, stats = state(prune, SAMPLE_SIZE=1 << 16)  # the default of compress()
    y = torch.ops.slimgrad.compress_gradient(x, plan, stats, 0)
    achieved = float((y == 0).double().mean())
    assert layer_report(plan, stats)["sparsity"] == pytest.approx(achieved, abs=1e-12)
    return achieved - prune.sparsity


@pytest.mark.parametrize("sparsity", SPARSITIES)
@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_generated(name, sparsity, dtype):
    x = GENERATED[name](TENSOR_SIZE).to(dtype)
    assert abs(deviation(x, sg.Prune(sparsity))) <= PROMISE


@pytest.mark.parametrize("value", [1.0, 0.37, 0.0113])
def test_a_single_value(value):
    """The gradient of sum() or mean(). The histogram knows a value only to a bin of an eighth of an
    octave, which the promise does not cover: up to 4 % of the threshold, 0.012 at 0.7."""
    x = torch.full((TENSOR_SIZE,), value)
    for sparsity in SPARSITIES:
        assert abs(deviation(x, sg.Prune(sparsity))) <= 0.045 * (1 - sparsity) + 0.003


@pytest.mark.parametrize("sparsity", SPARSITIES)
def test_the_right_family_keeps_the_promise_too(sparsity):
    assert abs(deviation(lognormal((TENSOR_SIZE,)), sg.Prune(sparsity, "lognormal"))) <= 2 * PROMISE
    assert abs(deviation(laplace(TENSOR_SIZE), sg.Prune(sparsity, "gennorm"))) <= PROMISE
    x = GENERATED["normal"](TENSOR_SIZE)
    assert abs(deviation(x, sg.Prune(sparsity, "normal"))) <= PROMISE


def test_the_normal_assumption_is_worse_than_the_empirical_one():
    """Summed over the generated gradients; a single one may be normal after all."""
    totals = {}
    for method in ("empirical", "lognormal", "gennorm", "normal"):
        totals[method] = sum(
            abs(deviation(make(TENSOR_SIZE), sg.Prune(0.85, method))) for make in GENERATED.values()
        )
    print({method: round(total / len(GENERATED), 4) for method, total in totals.items()})
    assert totals["empirical"] < totals["gennorm"] < totals["normal"]
    assert totals["empirical"] < totals["lognormal"]


@pytest.mark.parametrize("channels", [16, 64, 256])
@pytest.mark.parametrize("channels_last", [False, True])
def test_channels_of_very_different_size(channels, channels_last):
    """The sample must see all channels alike, whatever divides the number of values."""
    x = lognormal((16, channels, 32, 32), sigma=1.0)
    x *= torch.logspace(-6, 0, channels)[:, None, None]
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    assert abs(deviation(x, sg.Prune(0.9))) <= PROMISE
