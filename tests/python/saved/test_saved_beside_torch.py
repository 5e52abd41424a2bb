"""Beside what torch itself does around a forward pass: checkpointing, autocast, torch.compile."""

import pytest
import torch
import torch.nn.functional as F
from saved_samples import Block, Gpt, Left, cnn, cnn_step, error, gpt_step, gradients, same, texts
from torch import nn
from torch.utils.checkpoint import checkpoint

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.reentrant = reentrant
        self.first = nn.Linear(64, 64)
        self.target = torch.randn(8, 32, 64)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return (x * self.target).mean()  # saves no output


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("backward_inside", [False, True])
def test_checkpointed_parts_are_recomputed_from_every_bit(reentrant, backward_inside):
    torch.manual_seed(0)
    model = Checkpointed(reentrant)
    x = torch.randn(8, 32, 64)

    def step(model, _):
        return model(x)

    plain = gradients(model, step)
    model.zero_grad()
    keeping = sg.saved_tensors(bits=2, seed=1)
    with keeping:
        loss = model(x)
        if backward_inside:
            loss.backward()
    if not backward_inside:
        loss.backward()
    assert same([p.grad for p in model.parameters()], plain)
    assert keeping.tally.left[Left.CHECKPOINT][0] == 3


def test_keep_inside_a_checkpointed_part():
    """Recomputing saves what backward needs at once: packing it would be in vain."""
    torch.manual_seed(0)
    block = Block()
    x = torch.randn(8, 32, 64, requires_grad=True)
    keeping = sg.saved_tensors(bits=4, seed=1)

    def part(x):
        with keeping:
            return block(x)

    for reentrant in (False, True):
        plain = torch.autograd.grad(block(x).sum(), [x, *block.parameters()])
        loss = checkpoint(part, x, use_reentrant=reentrant).sum()
        block.zero_grad()
        x.grad = None
        loss.backward()
        assert error([x.grad, *(p.grad for p in block.parameters())], plain) < 0.3


@pytest.mark.parametrize(("make", "step"), [(Gpt, gpt_step), (cnn, cnn_step)])
def test_autocast(make, step):
    torch.manual_seed(0)
    model = make()

    def cast(model, number):
        with torch.autocast("cpu", torch.bfloat16):
            return step(model, number)

    plain = gradients(model, cast)
    sg.compress(model, saved="exact", seed=1).remove()
    controller = sg.compress(model, saved=8, seed=1)
    assert error(gradients(model, cast), plain) < 0.05
    tally = controller.saved.tally
    assert tally.packed > 0 and tally.bytes < 0.55 * tally.plain_bytes
    controller.remove()
    controller = sg.compress(model, saved="exact", seed=1)
    assert same(gradients(model, cast), plain)


def test_autocast_copies_of_weights_stay_exact():
    """They are not leaves, but what a gradient of an input is computed with."""
    layers = nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128))
    x = torch.randn(64, 128, requires_grad=True)

    def input_gradient():
        with torch.autocast("cpu", torch.bfloat16):
            y = layers(x)
        return torch.autograd.grad(y.sum(), x)[0]

    plain = input_gradient()
    controller = sg.compress(layers, saved=2, seed=1)
    assert torch.equal(input_gradient(), plain)
    assert controller.saved.tally.packed == 1


def test_loss_scaling_sees_overflow():
    x = torch.full((100, 100), 3e38, requires_grad=True)
    with sg.saved_tensors(bits=8, seed=1):
        loss = ((x * 1) * (x * 10)).sum()
    loss.backward()
    assert not torch.isfinite(x.grad).all()


@pytest.mark.parametrize("converted_first", [True, False])
def test_compiled_models_are_right_and_say_what_they_leave(converted_first):
    """Another backend than inductor; test_saved_compiled.py has that."""
    torch.manual_seed(0)
    model = Gpt(depth=1)
    plain = gradients(model, gpt_step)
    if converted_first:
        controller = sg.compress(model, saved=2, seed=1)
        compiled = torch.compile(model, backend="aot_eager")
    else:
        compiled = torch.compile(model, backend="aot_eager")
        controller = sg.compress(compiled, saved=2, seed=1)
    for _ in range(2):
        model.zero_grad()
        compiled(texts(0)).backward()
        assert error([p.grad for p in model.parameters()], plain) < 1e-4
    assert controller.saved.tally.packed == 0
    assert "another backend than inductor none is packed" in " ".join(controller.summary().split())


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_a_model_that_was_compiled_and_run_before(backend):
    torch.manual_seed(0)
    model = Gpt(depth=1)
    compiled = torch.compile(model, backend=backend)
    plain = gradients(model, gpt_step)
    compiled(texts(0)).backward()
    controller = sg.compress(model, saved=8, seed=1)
    for _ in range(2):
        model.zero_grad()
        compiled(texts(0)).backward()
        assert error([p.grad for p in model.parameters()], plain) < 0.03
    controller.remove()
    model.zero_grad()
    compiled(texts(0)).backward()
    assert error([p.grad for p in model.parameters()], plain) < 1e-4


def test_under_a_dispatch_mode_nothing_is_packed():
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.randn(100, 100, requires_grad=True)
    with FlopCounterMode(display=False), sg.saved_tensors(seed=1) as keeping:
        loss = (x * 1).sin().sum()
    loss.backward()
    assert list(keeping.tally.left) == [Left.TRACED] and torch.equal(x.grad, x.cos())


def test_keep_around_a_compiled_model():
    torch.manual_seed(0)
    model = Gpt(depth=1)
    plain = gradients(model, gpt_step)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with sg.saved_tensors(bits=2, seed=1) as keeping:
        loss = compiled(texts(0))
    model.zero_grad()
    loss.backward()
    assert error([p.grad for p in model.parameters()], plain) < 1e-4
    assert keeping.tally.packed == 0


def test_compiled_parts_of_a_model():
    """With another backend than inductor what is compiled is left, and the rest packed."""
    torch.manual_seed(0)
    model = Gpt(depth=2)
    plain = gradients(model, gpt_step)
    model.blocks[0].compile(backend="aot_eager")
    controller = sg.compress(model, saved=8, seed=1)
    for _ in range(2):  # The first pass compiles.
        assert error(gradients(model, gpt_step), plain) < 0.03
    assert controller.saved.tally.packed >= 8


def test_transforms_of_torch_func_refuse():
    model = nn.Linear(64, 64)
    with sg.saved_tensors(seed=1), pytest.raises(RuntimeError, match="saved tensor hooks"):
        torch.func.grad(lambda x: model(x).square().sum())(torch.randn(64, 64))
    controller = sg.compress(model, saved=8, seed=1)
    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        torch.func.grad(lambda x: model(x).square().sum())(torch.randn(64, 64))
    x = torch.randn(128, 64, requires_grad=True)
    model(x * 1).sum().backward()
    assert controller.saved.tally.packed == 1


def test_traced_models_are_plain():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    sg.compress(model, saved=8, seed=1)
    x = torch.randn(2, 64)
    with pytest.warns(UserWarning, match="the plain one"):
        traced = torch.jit.trace(model, x)
    assert torch.equal(traced(x), model(x))
    with pytest.warns(UserWarning, match="the plain one"):
        exported = torch.export.export(model, (x,))
    assert torch.equal(exported.module()(x), model(x))


def test_embedding_and_loss_functions():
    torch.manual_seed(0)
    table = nn.Embedding(1000, 64, sparse=True)
    tokens = torch.randint(1000, (4, 64))
    with sg.saved_tensors(bits=8, seed=1):
        loss = F.smooth_l1_loss(table(tokens), torch.zeros(4, 64, 64))
    loss.backward()
    assert table.weight.grad.is_sparse
