"""A budget of bytes: kept to, better than the same bits for all, saved, and beside all else."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from kept_samples import Gpt, cnn, cnn_step, error, gpt_step, gradients, same, texts
from torch import nn
from torch.utils.checkpoint import checkpoint

import slimgrad as sg
from slimgrad.kept.budget import AS_IS, packed_bytes

pytestmark = pytest.mark.usefixtures("one_thread")


def fresh(make=Gpt, steps=0, step=gpt_step, **how):
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for number in range(steps):
        optimizer.zero_grad()
        step(model, number).backward()
        optimizer.step()
    return model, sg.compress(model, seed=3, **how)


def all_bits(controller):
    return [bits for own in controller.kept.bits().values() for bits in own]


def share(controller):
    return controller.kept.tally.bytes / controller.kept.tally.plain_bytes


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("size", [1, 512, 4096, 10_001])
def test_bytes_are_those_of_the_format(size, bits):
    group = torch.ops.slimgrad.default_kept_group(bits)
    words = torch.ops.slimgrad.keep_values(torch.randn(size), bits, group, "nearest", 0, 0)
    assert packed_bytes(size, bits, group) == words.nbytes


@pytest.mark.parametrize("budget", [0.09, 0.13, 0.15, 0.2, 0.4, 1])
@pytest.mark.parametrize(("make", "step"), [(Gpt, gpt_step), (cnn, cnn_step)])
def test_bytes_are_within_the_budget(make, step, budget):
    model, controller = fresh(make, kept=sg.Keep(budget=budget))
    gradients(model, step)
    gradients(model, step)
    assert share(controller) <= budget
    if budget == 1:
        assert set(all_bits(controller)) <= {AS_IS, 2}  # 2: a ReLU alone
    elif budget < 0.25:
        assert share(controller) > 0.8 * budget
    inputs = (texts(0),) if make is Gpt else (torch.randn(16, 3, 16, 16),)
    found = sg.saved_bytes(model, inputs)
    left = sum(found.left.values())
    # Gpt has its loss inside: all that a step packs is saved.
    assert found.total - left <= budget * (found.plain - left)


@pytest.mark.parametrize(("make", "step", "better"), [(Gpt, gpt_step, 0.95), (cnn, cnn_step, 0.6)])
def test_better_than_the_same_bits_for_all(make, step, better):
    """With as many bytes as 4 bits take, the error of the gradients is 0.91 and 0.41 of theirs."""
    model, controller = fresh(make, 20, step, kept=4)
    controller.remove()
    plain = gradients(model, step)
    errors, budget = {}, None
    for name in ("uniform", "budget"):
        kept = 4 if budget is None else sg.Keep(budget=budget)
        controller = sg.compress(model, kept=kept, seed=3)
        gradients(model, step)  # measured
        found = [error(gradients(model, step), plain) for _ in range(8)]
        errors[name] = sum(found) / len(found)
        budget = budget or share(controller)
        assert share(controller) <= budget
        controller.remove()
    assert errors["budget"] < better * errors["uniform"]


def test_still_unbiased():
    """The weight gradient of a linear layer behind one that shares its bytes: the mean of 300 draws
    is within 5.5 standard errors everywhere, and their mean square is 1 but for noise."""
    torch.manual_seed(0)
    first, second = nn.Linear(64, 64), nn.Linear(64, 16)
    x = torch.randn(128, 64)

    def step():
        y = second(first(x).sin())
        return (y * torch.linspace(-1, 1, 16)).sin().sum()

    step().backward()
    right = second.weight.grad.clone()
    keeping = sg.keep(budget=0.11, measure_every=50, seed=1, min_elements=1024)
    found = []
    for _ in range(300):
        second.zero_grad()
        with keeping:
            loss = step()
        loss.backward()
        found.append(second.weight.grad.clone())
    bits = {slot.bits for slot in keeping._keeper.budget.slots.values()}
    assert len(bits) > 1
    draws = torch.stack(found).double()
    # What is kept of the last sine bends its gradient by a cosine: linear in it is only the rest.
    errors = (draws.mean(0) - right) / (draws.std(0) / 300**0.5)
    assert errors.abs().max() < 5.5 and 0.5 < errors.square().mean() < 1.5


def test_measured_at_first_and_seldom():
    model, controller = fresh(kept=sg.Keep(budget=0.15, measure_every=3))
    budget = controller.kept.keeper.budget
    measured = []
    for number in range(7):
        loss = gpt_step(model, number)
        measured.append(budget.measurement is not None)
        loss.backward()
        assert budget.measurement is None
    assert measured == [True, False, False, True, False, False, True]
    assert controller.state_dict()["slimgrad_kept.places"][0, 0] == 7


def test_a_pass_without_backward_is_not_the_one():
    model, controller = fresh(kept=sg.Keep(budget=0.15, measure_every=0))
    gpt_step(model, 0)
    gpt_step(model, 0)
    assert controller.kept.bits() == {}
    gradients(model, gpt_step)
    assert len(controller.kept.bits()["blocks.0"]) == 4
    controller.remove()
    controller = sg.compress(model, kept=sg.Keep(budget=0.15, measure_every=1), seed=3)
    gradients(model, gpt_step)
    before = controller.kept.bits()
    model(texts(0, count=64))  # measured, but nothing follows
    assert controller.kept.bits() == before
    state = controller.state_dict()
    controller.load_state_dict(state)
    assert controller.kept.bits() == before


def test_passes_that_run_ahead_of_backward():
    """Two forward passes, then their backward passes: that of the second is the measured one."""
    model, controller = fresh(kept=sg.Keep(budget=0.15, measure_every=0))
    losses = [gpt_step(model, number) for number in range(2)]
    losses[0].backward()
    assert controller.kept.bits() == {}
    losses[1].backward()
    assert len(controller.kept.bits()["blocks.0"]) == 4
    assert controller.kept.keeper.budget.measurement is None


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
        self.b = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))

    def forward(self, x):
        x = x * 1
        return self.a(x).square().mean(), self.b(x).square().mean()


def test_what_a_first_backward_pass_does_not_meet_is_not_taken_for_unneeded():
    torch.manual_seed(0)
    model = TwoHeads()
    controller = sg.compress(model, kept=sg.Keep(budget=0.25), seed=3)
    x = torch.randn(256, 64, requires_grad=True)
    for _ in range(2):
        a, b = model(x)
        a.backward(retain_graph=True)
        b.backward()
    assert 2 not in all_bits(controller)
    assert share(controller) <= 0.25


@pytest.mark.parametrize("way", [lambda y: y.double().cumsum(0), lambda y: torch.fft.fft(y).abs()])
def test_gradients_of_other_types_are_measured_as_well(way):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x):
            return way(self.linear(x * 1)).sum()

    torch.manual_seed(0)
    model = Odd()
    controller = sg.compress(model, kept=sg.Keep(budget=0.3), seed=3)
    model(torch.randn(256, 64, requires_grad=True)).backward()
    assert all_bits(controller)


def test_what_stays_as_it_is_costs_no_packing():
    model, controller = fresh(kept=sg.Keep(budget=1))
    gradients(model, gpt_step)
    work = controller.kept.tally.work
    # But for its log-softmax, which is bfloat16 at any setting.
    assert sum(packed for packed, _ in work.values()) < controller.kept.tally.plain_bytes / 4 / 4


def test_gradients_that_are_not_finite_teach_nothing():
    model, controller = fresh(kept=sg.Keep(budget=0.15))
    (gpt_step(model, 0) * torch.inf).backward()
    assert controller.kept.bits() == {}
    gradients(model, gpt_step)
    before = controller.kept.bits()
    assert before
    assert gradients(model, gpt_step)


def test_batches_of_other_sizes_have_the_same_bits():
    model, controller = fresh(kept=sg.Keep(budget=0.15))
    model(texts(0)).backward()
    used = []
    keeper = controller.kept.keeper
    make = keeper._make_of_bits

    def spy(plain):
        words, why = make(plain)
        used.append(words.bits)
        return words, why

    keeper._make_of_bits = spy
    model(texts(0, count=12)).backward()
    assert used == [slot.bits for slot in keeper.budget.slots.values()]
    used.clear()
    model(texts(0, length=49)).backward()  # so that attention alone is as large as all else
    assert used == [slot.bits for slot in keeper.budget.slots.values()]


def test_what_is_not_known_gets_the_bits_that_fit():
    def sizes(*own):
        with keeping:
            kept = [(x[:size] * 1).sin() for size in own]
        sum(y.sum() for y in kept).backward()
        return keeping.tally.bytes / keeping.tally.plain_bytes

    x = torch.randn(100_000, requires_grad=True)
    keeping = sg.keep(budget=0.26, seed=1, measure_every=0)
    sizes(50_000, 100_000)
    slots = keeping._keeper.budget.slots
    for slot in slots.values():
        slot.bits = 2
    assert sizes(50_000, 100_000) < 0.08 and sizes(25_000, 50_000) < 0.08
    assert 0.13 < sizes(50_000, 25_000) < 0.26  # the first is as it was
    assert 0.19 < sizes(25_000, 25_000, 25_000) < 0.2  # the first at 2 bits, the others at 8
    assert len(slots) == 2


def test_states_that_cannot_be_are_refused():
    model, controller = fresh(kept=sg.Keep(budget=0.15))
    gradients(model, gpt_step)
    state = controller.state_dict()
    slots, places = state["slimgrad_kept.slots"], state["slimgrad_kept.places"]
    bits = controller.kept.bits()
    negative, width, twice = slots.clone(), slots.clone(), slots.clone()
    negative[0, 6], width[0, 4], twice[1] = -1, 3, twice[0]
    for key, value, text in [
        ("slots", slots[:, :3], "expected 'slots', a float64 tensor with 8 columns, got"),
        ("slots", slots.float(), "expected 'slots', a float64 tensor"),
        ("slots", negative, "got numbers that no budget has"),
        ("slots", width, "got numbers that no budget has"),
        ("slots", twice, "got numbers that no budget has"),
        ("slots", slots * torch.nan, "got numbers that no budget has"),
        ("places", places[:0], "got numbers that no budget has"),
        ("places", places.double(), "expected 'places', an int64 tensor with three columns, got"),
    ]:
        with pytest.raises(ValueError, match=text):
            controller.load_state_dict(state | {f"slimgrad_kept.{key}": value})
    assert controller.kept.bits() == bits
    other = fresh(kept=sg.Keep(budget=0.09))[1]
    with pytest.warns(sg.StateWarning, match=r"kept budget 0\.09, the state has 0\.15"):
        other.load_state_dict(state)
    found = all_bits(other)
    assert sum(found) < sum(map(sum, bits.values()))  # what was measured, for the other budget
    plain = fresh(kept=4)[1]
    with pytest.warns(sg.StateWarning, match="kept budget none, the state has 0.15"):
        plain.load_state_dict(state)
    with pytest.warns(sg.StateWarning, match="kept bits none, the state has 4"):
        controller.load_state_dict(plain.state_dict())


def test_measuring_bytes_changes_nothing():
    model, controller = fresh(kept=sg.Keep(budget=0.15, measure_every=2))
    gradients(model, gpt_step)
    before = controller.state_dict()
    sg.saved_bytes(model, (texts(0),))
    after = controller.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_copies_and_pickles():
    model, controller = fresh(kept=sg.Keep(budget=0.15))
    gradients(model, gpt_step)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        own = twin.slimgrad_kept.budget.slots
        assert own == controller.kept.keeper.budget.slots
        assert own is not controller.kept.keeper.budget.slots
        assert same(gradients(twin, gpt_step), gradients(copy.deepcopy(model), gpt_step))


def test_modules_share_one_budget():
    """Each that include= names is entered for itself; the bytes are those of all."""
    keep = sg.Keep(budget=0.15)
    model, controller = fresh(kept=keep, include=["blocks.0", "blocks.1"])
    gradients(model, gpt_step)
    slots = controller.kept.keeper.budget.slots
    assert {place[0] for place in slots} == {0, 1}
    packed = sum(packed_bytes(s.size, s.bits, 64 if s.bits == 2 else 256) for s in slots.values())
    assert packed <= 0.15 * sum(4 * slot.size for slot in slots.values())
    assert {name.split(".")[1] for name in controller.kept.bits()} == {"0", "1"}
    found = sg.saved_bytes(model, (texts(0),))
    assert found.by_layer["blocks.0.down"] < found.plain_by_layer["blocks.0.down"] / 3


@pytest.mark.parametrize(
    "how",
    [
        {"gradients": "fp8"},
        {"gradients": sg.Prune(weight=0.8, input=0.5, sparse_backward="always")},
        {"activations": 3},
    ],
)
@pytest.mark.parametrize(("make", "step"), [(Gpt, gpt_step), (cnn, cnn_step)])
def test_beside_all_else(make, step, how):
    model, _ = fresh(make, min_elements=1, **how)
    alone = [gradients(model, step) for _ in range(2)][1]
    model, controller = fresh(make, min_elements=1, kept=sg.Keep(budget=0.3), **how)
    found = [gradients(model, step) for _ in range(2)][1]
    assert controller.kept.bits()
    assert error(found, alone) < 0.3
    assert controller.remove() == []


@pytest.mark.parametrize(("make", "step"), [(Gpt, gpt_step), (cnn, cnn_step)])
def test_under_autocast(make, step):
    """Tensors of 16 and of 32 bits share one budget, counted in bytes."""

    def cast_step(model, number):
        with torch.autocast("cpu", torch.bfloat16):
            return step(model, number).float()

    model, controller = fresh(make, kept=sg.Keep(budget=0.3))
    gradients(model, cast_step)
    found = gradients(model, cast_step)
    assert share(controller) <= 0.3
    assert len(set(all_bits(controller))) > 1
    controller.remove()
    assert error(found, gradients(model, cast_step)) < 0.1


@pytest.mark.parametrize("reentrant", [False, True])
def test_with_checkpointing_and_accumulation(reentrant):
    class Checkpointed(Gpt):
        def forward(self, tokens):
            x = self.embedding(tokens[:, :-1])
            for block in self.blocks:
                x = checkpoint(block, block.norm1(x), use_reentrant=reentrant)
            return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens[:, 1:].flatten())

    model, controller = fresh(Checkpointed, kept=sg.Keep(budget=0.2, measure_every=2))
    for number in range(4):
        gpt_step(model, number).backward()
    names = set(controller.kept.bits())
    assert {"norm", "head"} <= names and not any("up" in name for name in names)
    found = [p.grad.clone() for p in model.parameters()]
    controller.remove()
    plain = [sum(g) for g in zip(*(gradients(model, gpt_step, n) for n in range(4)), strict=True)]
    assert error(found, plain) < 0.1


def test_computed_weights_are_met_once_by_each_node():
    """A convolution is asked for its weight, which is packed here, and unpacks it for that."""
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.weight_norm(nn.Conv2d(32, 32, 3))
    x = torch.randn(4, 32, 12, 12, requires_grad=True)
    keeping = sg.keep(budget=0.2, seed=1)
    for _ in range(2):
        with keeping:
            loss = layer(x * 1).sin().sum()
        loss.backward()
    sizes = [slot.size for slot in keeping._keeper.budget.slots.values()]
    assert 32 * 32 * 9 in sizes and x.numel() in sizes
    assert keeping.tally.bytes <= 0.2 * keeping.tally.plain_bytes


def test_graphs_are_freed():
    """The hooks of a measurement hold no node."""
    import gc
    import weakref

    x = torch.randn(100, 100, requires_grad=True)
    keeping = sg.keep(budget=0.15, seed=1)
    gc.disable()
    try:
        with keeping:
            y = (x * 2).exp().tanh()
            loss = y.sin().sum()
        alive = weakref.ref(y)
        loss.backward()
        del y, loss
        assert alive() is None and not keeping._keeper._known
    finally:
        gc.enable()
    assert (
        len(keeping._keeper.budget.slots) == 2
    )  # of the exponential, and of the tangent for it and the sine


def test_summary():
    model, controller = fresh(kept=sg.Keep(budget=0.15))
    assert "0.15 of the bytes, bits by what gradients lose" in controller.summary(width=100)
    gradients(model, gpt_step)
    gradients(model, gpt_step)
    text = controller.summary(width=100)
    assert "  4 bits, " in text and "  8 bits, " in text and "head" in text
    assert "above the budget" not in text
    assert "by the speed of the kernels alone" in text
    assert all(len(line) <= 60 for line in controller.summary(width=60).splitlines())
    controller.remove()
    controller = sg.compress(model, kept=sg.Keep(budget=0.01), seed=3)
    gradients(model, gpt_step)
    assert set(all_bits(controller)) == {2}
    assert "above the budget: 0.0" in controller.summary(width=100)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"bits": 4, "budget": 0.2},
            r"\[keep\] expected bits or budget, got bits=4 and budget=0.2",
        ),
        ({"budget": 0}, r"\[keep\] expected 0 < budget <= 1, got 0"),
        ({"budget": 1.5}, "expected 0 < budget <= 1, got 1.5"),
        ({"budget": True}, "expected 0 < budget <= 1, got True"),
        ({"budget": "small"}, "expected 0 < budget <= 1, got 'small'"),
        ({"budget": 0.2, "measure_every": -1}, "expected measure_every >= 0, got -1"),
    ],
)
def test_bad_arguments(arguments, text):
    for make in (sg.Keep, sg.keep):
        with pytest.raises(ValueError, match=text.replace("keep", make.__name__)):
            make(**arguments)
