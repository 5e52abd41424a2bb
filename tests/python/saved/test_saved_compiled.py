"""Saved tensors in graphs of torch.compile: what is packed, what stays, and how draws go on."""

import copy
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch._inductor.custom_graph_pass
from saved_samples import Block, Gpt, Left
from torch import nn

import slimgrad as sg

SMALL = sg.Saved(bits=8, min_elements=64)
NEAREST = sg.Saved(bits=8, rounding="nearest", min_elements=64)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield
    torch._dynamo.reset()


def chain(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)
    )


def block(seed=0):
    torch.manual_seed(seed)
    return Block()


def step(model, forward, x):
    """The gradients of one step."""
    model.zero_grad()
    y = forward(x)
    (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def largest_error(a, b):
    return max(((b[k] - a[k]).norm() / a[k].norm().clamp(min=1e-3)).item() for k in a)


def rows(seed=1):
    return torch.randn(16, 32, generator=torch.Generator().manual_seed(seed))


def tokens(seed=1, batch=4):
    return torch.randn(batch, 16, 64, generator=torch.Generator().manual_seed(seed))


def same(a, b):
    return all(torch.equal(a[k], b[k]) for k in a)


# ---- what is packed ------------------------------------------------------------------------------


def test_gradients_are_those_of_an_eager_pass():
    """Rounded to the nearest, where both save the same: the results of ReLUs."""
    plain, eager, model = chain(), chain(), chain()
    sg.compress(eager, saved=NEAREST)
    controller = sg.compress(model, saved=NEAREST)
    a, b = step(eager, eager, rows()), step(model, torch.compile(model, fullgraph=True), rows())
    assert largest_error(a, b) < 1e-5
    assert 1e-4 < largest_error(step(plain, plain, rows()), b) < 0.05
    tally = controller.saved.tally
    assert tally.kinds["8 bits"][:2] == (2, 2 * 16 * 64 * 4)
    assert set(tally.left) <= {Left.NO_GRADIENT, Left.TYPE}


def test_a_block_is_as_exact_as_in_an_eager_pass():
    plain, eager, model = block(), block(), block()
    sg.compress(eager, saved=SMALL, seed=1)
    controller = sg.compress(model, saved=SMALL, seed=1)
    exact = step(plain, plain, tokens())
    a, b = step(eager, eager, tokens()), step(model, torch.compile(model, fullgraph=True), tokens())
    assert largest_error(exact, b) < 1.5 * largest_error(exact, a) < 0.1
    tally = controller.saved.tally
    assert tally.packed >= 8 and tally.bytes < 0.3 * tally.plain_bytes
    # Log-sum-exp, means and deviations; the input of the model.
    assert tally.left[Left.NO_GRADIENT][0] >= 3


class Attention(nn.Module):
    """Causal, with masked scores. twice: whether the scores are read by more than the softmax."""

    def __init__(self, dropout=0.0, twice=False):
        super().__init__()
        self.qkv, self.mask = nn.Linear(64, 192), torch.ones(16, 16).tril() == 0
        self.dropout, self.twice = nn.Dropout(dropout), twice

    def forward(self, x):
        q, k, v = self.qkv(x).split(64, 2)
        scores = q @ k.transpose(1, 2)
        masked = scores.masked_fill(self.mask, float("-inf"))
        y = self.dropout(masked.softmax(-1)) @ v
        return y + (scores * scores) @ v if self.twice else y


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_of_convolutions(order, dynamic):
    """On the CPU inductor lays them out as channels_last, whatever the graph says: words must have
    the order of memory that backward expects."""
    torch.manual_seed(0)
    parts = nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
    plain = nn.Sequential(*parts, nn.Conv2d(16, 8, 3, padding=1)).to(memory_format=order)
    x = torch.randn(4, 8, 16, 16).to(memory_format=order)
    model = copy.deepcopy(plain)
    controller = sg.compress(model, saved=NEAREST)
    found = step(model, torch.compile(model, fullgraph=True, dynamic=dynamic), x)
    assert controller.saved.tally.kinds["8 bits"][0] >= 2
    assert 1e-4 < largest_error(step(plain, plain, x), found) < 0.05


def test_of_a_softmax_the_result_is_packed():
    """And not what it reads, -inf included."""
    torch.manual_seed(0)
    plain = Attention()
    model = copy.deepcopy(plain)
    controller = sg.compress(model, saved=NEAREST)
    a, b = step(plain, plain, tokens()), step(model, torch.compile(model), tokens())
    assert all(torch.isfinite(gradient).all() for gradient in b.values())
    assert 1e-4 < largest_error(a, b) < 0.02
    assert Left.SOFTMAX not in controller.saved.tally.left


@pytest.mark.parametrize("twice", [False, True])
def test_attention_with_dropout(twice):
    """inductor would save the scores, and the probabilities after dropout. Masks are kept as bits;
    the probabilities are saved, if backward needs the scores for nothing else, and from them and
    the mask their copy is made again."""

    def gradients(saved):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Attention(dropout=0.5, twice=twice)
        controller = sg.compress(model, saved=saved, seed=1) if saved else None
        torch.manual_seed(1)
        with torch._dynamo.config.patch(error_on_recompile=False):
            return step(model, torch.compile(model), tokens()), controller

    exact, _ = gradients(None)
    b, controller = gradients(NEAREST)
    assert 1e-4 < largest_error(exact, b) < 0.02
    tally = controller.saved.tally
    probabilities = 4 * 16 * 16
    assert tally.kinds["bits of masks"] == (1, probabilities, probabilities // 8)
    assert (Left.SOFTMAX in tally.left) == twice
    if not twice:
        assert tally.kinds["not saved"][1] >= 4 * probabilities


def test_log_softmax_is_kept_as_bfloat16():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(32, 64), nn.LogSoftmax(-1))
    model = copy.deepcopy(plain)
    controller = sg.compress(model, saved=sg.Saved(2, min_elements=64), seed=1)
    exact, b = step(plain, plain, rows()), step(model, torch.compile(model), rows())
    assert 1e-6 < largest_error(exact, b) < 0.05
    assert controller.saved.tally.kinds["smaller type"] == (1, 16 * 64 * 4, 16 * 64 * 2)


def test_tensors_with_inf_come_back_as_they_were():
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(32, 64), nn.Linear(64, 8)

        def forward(self, x):
            y = self.a(x)
            y = y.masked_fill(y > 1, float("inf")) * 0.5
            return self.b(y).clamp(-1, 1)

    torch.manual_seed(0)
    plain = Gate()
    model = copy.deepcopy(plain)
    sg.compress(model, saved=NEAREST)
    a, b = step(plain, plain, rows()), step(model, torch.compile(model), rows())
    for name in a:
        assert torch.equal(a[name].isnan(), b[name].isnan())
        torch.testing.assert_close(a[name], b[name], equal_nan=True)


def test_what_amax_reads_stays_exact():
    """Backward asks where it equals the largest value: rounded, nowhere, and divides by that."""

    class Largest(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(32, 64), nn.Linear(1, 8)

        def forward(self, x):
            return self.b(self.a(x).tanh().amax(-1, keepdim=True))

    torch.manual_seed(0)
    plain = Largest()
    model = copy.deepcopy(plain)
    controller = sg.compress(model, saved=NEAREST)
    a, b = step(plain, plain, rows()), step(model, torch.compile(model), rows())
    assert largest_error(a, b) < 1e-5
    assert controller.saved.tally.left[Left.COMPARED] == (1, 16 * 64 * 4)


@torch._inductor.config.patch(fallback_random=True)
def test_exact_packing_has_masks_as_bits():
    def gradients(saved):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 256), nn.Dropout(0.5), nn.Linear(256, 8))
        controller = sg.compress(model, saved=sg.Saved(saved), seed=1) if saved else None
        torch.manual_seed(1)
        return step(model, torch.compile(model), rows()), controller

    exact, _ = gradients(None)
    b, controller = gradients("exact")
    assert largest_error(exact, b) < 1e-6
    tally = controller.saved.tally
    assert tally.kinds == {"bits of masks": (1, 4096, 512)}
    assert Left.EXACT_GRAPH in tally.left
    assert "exact packing" in " ".join(controller.summary().split())


def test_a_leaf_around_a_compiled_function_stays_as_it_is():
    x = torch.randn(16, 64, requires_grad=True)
    f = torch.compile(lambda x: (x * x).sin().sum())
    packing = sg.saved_tensors(2, min_elements=64, seed=1)
    (expected,) = torch.autograd.grad((x * x).sin().sum(), x)
    with packing:
        loss = f(x)
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], expected)
    with packing:
        loss = f(x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    y = (torch.randn(16, 64, requires_grad=True) * 1).clone()
    with packing:
        loss = f(y)
    (rounded,) = torch.autograd.grad(loss, y)
    (expected,) = torch.autograd.grad((y * y).sin().sum(), y)
    assert largest_error({"y": expected}, {"y": rounded}) > 1e-3


def test_included_and_excluded_modules():
    model = nn.Sequential(block(1), block(2))
    plain = copy.deepcopy(model)
    controller = sg.compress(model, saved=SMALL, exclude="0")
    x = tokens()
    exact, b = step(plain, plain, x), step(model, torch.compile(model, fullgraph=True), x)
    assert Left.EXCLUDED in controller.saved.tally.left
    # Nothing of the second block's is exact, and gradients of weights above it are.
    assert ((b["1.up.weight"] - exact["1.up.weight"]).norm() / exact["1.up.weight"].norm()) > 1e-3
    controller.remove()
    torch._dynamo.reset()
    controller = sg.compress(model, saved=SMALL, include="1.up")
    b = step(model, torch.compile(model, fullgraph=True), x)
    assert controller.saved.tally.packed == 1
    wrong = [k for k in b if ((b[k] - exact[k]).norm() / exact[k].norm().clamp(min=1e-3)) > 1e-4]
    assert wrong == ["1.up.weight"]


def test_what_an_excluded_module_reads():
    """Also if others read it. Weights are not counted."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(64, 64) for _ in range(3))

        def forward(self, x):
            y = self.a(x).tanh()
            return self.b(y) + self.c(y)

    torch.manual_seed(0)
    model = Shared()
    controller = sg.compress(model, saved=SMALL, exclude="c")
    step(model, torch.compile(model), torch.randn(16, 64))
    tally = controller.saved.tally
    assert tally.left[Left.EXCLUDED] == (1, 16 * 64 * 4) and tally.packed == 0


# ---- draws ---------------------------------------------------------------------------------------


def test_draws_are_reproducible_and_new_in_every_step():
    results = []
    for _ in range(2):
        torch._dynamo.reset()
        model = block()
        controller = sg.compress(model, saved=SMALL, seed=7)
        forward = torch.compile(model)
        results.append([step(model, forward, tokens()) for _ in range(3)])
    assert all(same(a, b) for a, b in zip(*results, strict=True))
    assert not same(results[0][0], results[0][1])
    state = controller.state_dict()
    after = step(model, forward, tokens())
    controller.load_state_dict(state)
    assert same(after, step(model, forward, tokens()))


def test_a_resumed_run_gives_the_same_bits():
    """With gates, and an evaluation in between, which draws nothing."""

    def make(seed):
        torch._dynamo.reset()
        model = block(seed)
        controller = sg.compress(
            model, saved=SMALL, gradients=sg.Prune(0.8), seed=seed, min_elements=0
        )
        return model, controller, torch.compile(model)

    def train(model, forward, numbers):
        for number in numbers:
            gradients = step(model, forward, tokens(number))
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter -= 1e-4 * gradients[name]

    model, controller, forward = make(1)
    train(model, forward, [0, 1])
    state = copy.deepcopy((model.state_dict(), controller.state_dict()))
    model.eval()
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=False):
        torch.testing.assert_close(forward(tokens()), model(tokens()))
    model.train()
    train(model, forward, [2, 3])
    other, controller, forward = make(2)
    other.load_state_dict(state[0])
    controller.load_state_dict(state[1])
    train(other, forward, [2, 3])
    assert controller.saved.tally.packed >= 8
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_two_threads_train_one_model():
    model = block()
    controller = sg.compress(model, saved=SMALL, seed=1)
    forward = torch.compile(model)
    found = {}

    def run(number):
        x = tokens(number).requires_grad_()
        found[number] = [torch.autograd.grad(forward(x).square().sum(), x)[0] for _ in range(5)]

    forward(tokens().requires_grad_())  # compiles
    threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert controller.state_dict()["slimgrad_saved.draws"][1] == 11
    plain = block()
    for number, gradients in found.items():
        x = tokens(number).requires_grad_()
        (exact,) = torch.autograd.grad(plain(x).square().sum(), x)
        for gradient in gradients:
            assert 1e-4 < (gradient - exact).norm() / exact.norm() < 0.1


def test_gradients_are_unbiased():
    plain, model = chain(), chain()
    sg.compress(model, saved=sg.Saved(bits=2, min_elements=64), seed=3)
    forward = torch.compile(model)
    exact = step(plain, plain, rows())
    runs = [step(model, forward, rows()) for _ in range(400)]
    for name in ("2.weight", "4.weight"):
        noise = 1e-5 * exact[name].abs().max()  # of sums in another order
        samples = torch.stack([run[name] for run in runs]).double()
        scores = (samples.mean(0) - exact[name]) / (samples.std(0) / 400**0.5 + noise)
        assert samples.std(0).max() > 0
        # Normal, if unbiased: of mean square 1, where elements of a row go together.
        assert scores.square().mean() < 2 and scores.mean().abs() < 0.25


# ---- ways to compile -----------------------------------------------------------------------------


def test_compiled_before_compress_and_removed_again():
    model, plain = block(), block()
    forward = torch.compile(model)
    with torch._dynamo.config.patch(error_on_recompile=False):
        a = step(model, forward, tokens())
        controller = sg.compress(model, saved=SMALL, seed=1)
        b = step(model, forward, tokens())
        assert controller.saved.tally.packed >= 8
        controller.remove()
        c = step(model, forward, tokens())
    exact = step(plain, plain, tokens())
    assert largest_error(exact, a) < 1e-4 < largest_error(exact, b) and same(a, c)


@pytest.mark.parametrize("first", ["plain", "packed"])
def test_a_plain_model_of_the_class_is_plain(first):
    """Compiled code is kept by the code object, and graphs by what is in them, in caches."""
    plain, packed = block(), block()
    sg.compress(packed, saved=SMALL, seed=1)
    exact = step(plain, plain, tokens())
    order = [plain, packed] if first == "plain" else [packed, plain]
    with torch._dynamo.config.patch(error_on_recompile=False):
        errors = {}
        for model in order:
            errors[model is plain] = largest_error(
                exact, step(model, torch.compile(model), tokens())
            )
    assert errors[True] < 1e-4 < errors[False]


def test_blocks_that_are_compiled_pack_their_inputs():
    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 64), Block(), Block())

    plain, packed = model(), model()
    controller = sg.compress(packed, saved=SMALL, seed=1)
    exact = step(plain, plain, tokens())
    with torch._dynamo.config.patch(error_on_recompile=False):
        for layers in (plain[1:], packed[1:]):
            for layer in layers:
                layer.compile(fullgraph=True)
        assert largest_error(exact, step(plain, plain, tokens())) < 1e-4
        a = step(packed, packed, tokens())
        assert largest_error(exact, step(plain, plain, tokens())) < 1e-4
    with torch._dynamo.config.patch(error_on_recompile=True):
        b = step(packed, packed, tokens())
    assert 1e-3 < largest_error(exact, a) < 0.1 and not same(a, b)
    tally = controller.saved.tally
    assert tally.packed >= 16 and tally.bytes < 0.3 * tally.plain_bytes
    size = tokens().nbytes
    counted = sg.saved_bytes(packed, (tokens(),))
    assert counted.plain > 1.5 * counted.total and counted.left
    assert tally.left.get(Left.NO_GRADIENT, (0, 0))[1] < 3 * size


def test_two_compressed_models_in_one_graph():
    """Each with its own settings; the first counts for both."""
    plain = nn.Sequential(block(1), block(2))
    eager, model = copy.deepcopy(plain), copy.deepcopy(plain)
    for both in (eager, model):
        controllers = [
            sg.compress(both[i], saved=sg.Saved(8 - 4 * i, min_elements=64), seed=i) for i in (0, 1)
        ]
    exact, a = step(plain, plain, tokens()), step(eager, eager, tokens())
    b = step(model, torch.compile(model, fullgraph=True), tokens())
    assert largest_error(exact, b) < 1.5 * largest_error(exact, a)
    assert {"8 bits", "4 bits"} <= set(controllers[0].saved.tally.kinds)
    assert controllers[1].saved.tally.packed == 0


def test_a_graph_break():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Block(), Block()

        def forward(self, x):
            x = self.a(x)
            torch._dynamo.graph_break()
            return self.b(x)

    torch.manual_seed(0)
    plain = Broken()
    model = copy.deepcopy(plain)
    controller = sg.compress(model, saved=SMALL, seed=1)
    forward = torch.compile(model)
    exact, a = step(plain, plain, tokens()), step(model, forward, tokens())
    assert 1e-3 < largest_error(exact, a) < 0.1
    assert controller.saved.tally.packed >= 16
    assert not same(a, step(model, forward, tokens()))


def test_saved_tensors_around_a_compiled_model():
    model, plain = block(), block()
    forward = torch.compile(model)
    packing = sg.saved_tensors(8, min_elements=64, seed=1)
    with packing:
        y = forward(tokens())
    (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum().backward()
    b = {name: p.grad.clone() for name, p in model.named_parameters()}
    assert 1e-3 < largest_error(step(plain, plain, tokens()), b) < 0.1
    assert packing.tally.packed >= 8


def test_dynamic_shapes():
    plain, model = block(), block()
    controller = sg.compress(model, saved=SMALL, seed=1)
    forward = torch.compile(model, dynamic=True, fullgraph=True)
    for batch in (4, 3, 6):
        exact, b = (step(m, f, tokens(batch=batch)) for m, f in ((plain, plain), (model, forward)))
        assert 1e-3 < largest_error(exact, b) < 0.1
    assert controller.saved.tally.packed >= 8


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_sizes_that_follow_from_values():
    class Chosen(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 8)

        def forward(self, x):
            y = self.a(x)
            chosen = (x[:, 0] > 0).nonzero()[:, 0]
            return self.c(y.index_add(0, chosen, self.b(y[chosen].tanh())))

    torch.manual_seed(0)
    plain = Chosen()
    model = copy.deepcopy(plain)
    controller = sg.compress(model, saved=SMALL, seed=1)
    forward = torch.compile(model, fullgraph=True)
    for seed in (1, 2):
        exact, b = step(plain, plain, rows(seed)), step(model, forward, rows(seed))
        assert 1e-4 < largest_error(exact, b) < 0.05
    tally = controller.saved.tally
    assert tally.packed >= 2 and tally.bytes < 0.3 * tally.plain_bytes


def test_nested_regions():
    """The graph of a region packs what it saves: it is not packed again around it."""
    run = torch.compiler.nested_compile_region(lambda layer, x: layer(x))

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Block() for _ in range(3)])  # Two are inlined.

        def forward(self, x):
            for layer in self.layers:
                x = run(layer, x)
            return x

    torch.manual_seed(0)
    plain = Outer()
    model = copy.deepcopy(plain)
    controller = sg.compress(model, saved=SMALL, seed=1)
    forward = torch.compile(model, fullgraph=True)
    exact, b = step(plain, plain, tokens()), step(model, forward, tokens())
    assert 1e-4 < largest_error(exact, b) < 0.05
    assert not same(b, step(model, forward, tokens()))
    tally = controller.saved.tally
    assert tally.packed >= 8 and tally.bytes < 0.3 * tally.plain_bytes
    assert Left.TYPE not in tally.left  # words
    counted = sg.saved_bytes(forward, (tokens(),))
    assert counted.total == tally.bytes + tally.left_bytes


def test_saved_bytes_before_the_first_pass():
    """Layers are not named where torch.compile would trace what names them."""
    model = chain()
    sg.compress(model, saved=SMALL, seed=1)
    counted = sg.saved_bytes(torch.compile(model, fullgraph=True), (rows(),))
    assert list(counted.by_layer) == [""] and counted.total < counted.plain


def test_autocast():
    plain, model = block(), block()
    controller = sg.compress(model, saved=SMALL, seed=1)
    forward = torch.compile(model, fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        exact, b = step(plain, plain, tokens()), step(model, forward, tokens())
    assert largest_error(exact, b) < 0.1
    assert controller.saved.tally.packed >= 8


def test_checkpointing_inside():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Block(), Block()

        def forward(self, x):
            x = self.a(x)
            return torch.utils.checkpoint.checkpoint(self.b, x, use_reentrant=False)

    torch.manual_seed(0)
    plain = Outer()
    model = copy.deepcopy(plain)
    controller = sg.compress(model, saved=SMALL, seed=1)
    exact = step(plain, plain, tokens())
    b = step(model, torch.compile(model, fullgraph=True), tokens())
    inside = {k: v for k, v in b.items() if k.startswith("b.")}
    assert largest_error({k: exact[k] for k in inside}, inside) < 1e-3 < largest_error(exact, b)
    assert Left.CHECKPOINT in controller.saved.tally.left


class Counting(torch._inductor.custom_graph_pass.CustomPartitionerFn):
    """The partitioner of a user."""

    calls = 0

    def __call__(self, gm, joint_inputs, **kwargs):
        from torch._functorch.partitioners import min_cut_rematerialization_partition

        self.calls += 1
        return min_cut_rematerialization_partition(gm, joint_inputs, **kwargs)

    def uuid(self):
        return f"counting {id(self)}"  # so that no cache has it


def test_options_without_a_partitioner():
    """They replace inductor's settings, where ours is."""
    model = block()
    controller = sg.compress(model, saved=SMALL, seed=1)
    step(model, torch.compile(model, options={"custom_partitioner_fn": None}), tokens())
    assert controller.saved.tally.packed >= 8


@pytest.mark.parametrize("how", ["options", "settings"])
def test_a_partitioner_of_the_user_goes_first(how):
    model, own = block(), Counting()
    controller = sg.compress(model, saved=SMALL, seed=1)
    if how == "options":
        forward = torch.compile(model, options={"custom_partitioner_fn": own})
        step(model, forward, tokens())
    else:
        with torch._inductor.config.patch(custom_partitioner_fn=own):
            step(model, torch.compile(model), tokens())
    assert own.calls == 1 and controller.saved.tally.packed >= 8


def test_without_gradients_and_in_evaluation():
    model, plain = block(), block()
    sg.compress(model, saved=SMALL, seed=1)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model)(tokens()), plain(tokens()))


def test_another_backend_says_that_nothing_is_packed():
    plain, model = block(), block()
    sg.compress(model, saved=SMALL, seed=1)
    b = step(model, torch.compile(model, backend="aot_eager"), tokens())
    assert largest_error(step(plain, plain, tokens()), b) < 1e-4


# ---- counting ------------------------------------------------------------------------------------


def test_saved_bytes_of_a_compiled_model():
    torch.manual_seed(0)
    model = Gpt()
    ids = torch.randint(32, (4, 33))
    controller = sg.compress(model, saved=sg.Saved(bits=4, min_elements=64), seed=1)
    forward = torch.compile(model)
    forward(ids).backward()
    counted = sg.saved_bytes(forward, (ids,))
    tally = controller.saved.tally
    assert counted.total == pytest.approx(tally.bytes + tally.left_bytes, rel=0.15)
    assert counted.plain - counted.total == tally.plain_bytes - tally.bytes
    assert Left.NO_GRADIENT in counted.left
    words = " ".join(controller.summary().split())
    assert Left.NO_GRADIENT in words and "4 bits" in words


# ---- caches --------------------------------------------------------------------------------------

_PROCESS = """
import sys, torch
sys.path.insert(0, {tests!r})
from saved_samples import Block
import slimgrad as sg
from torch._dynamo.utils import counters
for how in sys.argv[1:]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Block()
    if how == "packed":
        controller = sg.compress(model, saved=sg.Saved(bits=2, min_elements=64), seed=1)
    x = torch.randn(4, 16, 64, generator=torch.Generator().manual_seed(1))
    torch.compile(model)(x).square().sum().backward()
    packed = controller.saved.tally.packed if how == "packed" else 0
    hits = counters["aot_autograd"]["autograd_cache_hit"]
    print(how, packed, model.up.weight.grad.norm().item(), hits)
"""


def test_a_cache_of_another_process(tmp_path):
    code = _PROCESS.format(tests=str(Path(__file__).parents[1]))

    def run(*hows):
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", code, *hows], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return [line.split() for line in done.stdout.splitlines()]

    plain, packed = run("plain", "packed")
    packed_again, plain_again = run("packed", "plain")
    assert plain[1:3] == plain_again[1:3] and packed[1:3] == packed_again[1:3]
    assert plain[2] != packed[2] and int(packed_again[1]) >= 8
    assert packed[3] == "0" and packed_again[3] == "1"  # hits


def test_a_cache_tells_two_selections_apart(tmp_path, monkeypatch):
    """Graphs that differ in nothing but which module is excluded."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def packed(excluded):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 128), nn.Sigmoid(), nn.Linear(128, 8)
        )
        controller = sg.compress(model, saved=SMALL, exclude=[excluded])
        step(model, torch.compile(model), rows())
        return controller.saved.tally.kinds

    first, second = packed("1"), packed("3")
    assert first != second  # the wider tensor stays exact in the second
    assert (packed("1"), packed("3")) == (first, second)
