"""saved_tensors(): what is packed, once, and what is not; backward in all its forms."""

import gc
import threading

import pytest
import torch
import torch.nn.functional as F
from saved_samples import Gpt, Left, cnn, cnn_step, error, gpt_step, gradients, same
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")


def kept_gradients(model, step, **how):
    keeping = sg.saved_tensors(seed=1, **how)
    model.zero_grad()
    with keeping:
        loss = step(model, 0)
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()], keeping.tally


@pytest.mark.parametrize(("make", "step"), [(Gpt, gpt_step), (cnn, cnn_step)])
def test_gradients_are_near_and_bytes_few(make, step):
    torch.manual_seed(0)
    model = make()
    plain = gradients(model, step)
    errors = {}
    for bits, share in ((8, 1 / 3.8), (4, 1 / 7.1), (2, 1 / 11)):
        found, tally = kept_gradients(model, step, bits=bits)
        errors[bits] = error(found, plain)
        assert tally.bytes < share * tally.plain_bytes
        assert tally.packed >= 5
    assert 0 < errors[8] < 0.02 and errors[8] < errors[4] < 0.4 and errors[4] < errors[2]


@pytest.mark.parametrize(("make", "step"), [(Gpt, gpt_step), (cnn, cnn_step)])
def test_exact_changes_no_bit(make, step):
    torch.manual_seed(0)
    model = make()
    found, tally = kept_gradients(model, step, bits="exact")
    assert same(found, gradients(model, step))
    assert tally.left[Left.DENSE][0] > 0
    if make is cnn:
        assert 0 < tally.bytes < 0.7 * tally.plain_bytes


def test_the_same_seed_gives_the_same_bits():
    torch.manual_seed(0)
    model = Gpt()
    first, second = (kept_gradients(model, gpt_step, bits=4)[0] for _ in range(2))
    assert same(first, second)
    torch.manual_seed(5)
    a = sg.saved_tensors(bits=4)
    torch.manual_seed(5)
    b = sg.saved_tensors(bits=4)
    assert torch.equal(a.state_dict()["draws"], b.state_dict()["draws"])


def test_a_piece_of_memory_is_packed_once():
    x = torch.randn(100, 100, requires_grad=True)
    with sg.saved_tensors(bits=8, seed=1) as keeping:
        y = x * 2
        z = y.sin() + y.cos() + y.view(10, 1000).exp().view(100, 100) + y.t().sigmoid().t()
    # y for sin and cos, exp's and sigmoid's results: of y's views there are none.
    assert keeping.tally.packed == 3
    with sg.saved_tensors(bits=8, seed=1) as keeping:
        y = x * 2
        z = y.sin() + y.t().cos().t() + y.view(-1).sin().view(100, 100) + y[:50].cos().repeat(2, 1)
    assert keeping.tally.packed == 2  # y in three shapes, and a half of it
    z.sum().backward()


class _AtOnePlace(torch.autograd.Function):
    """x * w in memory that the test owns: every result is another storage, at the same address."""

    @staticmethod
    def forward(ctx, x, w, memory):
        ctx.w = w
        y = torch.frombuffer(memory, dtype=torch.float32).view(x.shape)
        return torch.mul(x, w, out=y)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.w, None, None


def test_an_address_alone_is_no_identity():
    """Memory that is freed after it was packed is used again, and the version is the same, too."""
    torch.manual_seed(0)
    x = torch.randn(256, 256, requires_grad=True)
    weights = [torch.randn(256, 256) for _ in range(4)]
    expected = [torch.autograd.grad((x * w).square().sum(), x)[0] for w in weights]
    memory = bytearray(256 * 256 * 4)
    seen, losses = set(), []
    with sg.saved_tensors(bits=8, seed=1) as keeping:
        for w in weights:
            y = _AtOnePlace.apply(x, w, memory)
            seen.add((y.data_ptr(), y._version))
            losses.append(y.square().sum())
            del y  # packed by now, and nobody else has it
    assert len(seen) == 1 and keeping.tally.packed == len(weights)
    for loss, right in zip(losses, expected, strict=True):
        (found,) = torch.autograd.grad(loss, x)
        assert error([found], [right]) < 0.02


def test_nothing_is_held_after_backward():
    """What nobody needs any more is packed anew, with the next draws."""
    x = torch.randn(100, 100, requires_grad=True)
    y = x * 2
    keeping = sg.saved_tensors(bits=8, seed=1)
    losses = []
    for save in (torch.sin, torch.cos):
        with keeping:
            losses.append(save(y).sum())
        assert keeping.state_dict()["draws"][1] == 1
    sum(losses).backward()
    losses.clear()
    with keeping:
        y.sin()
    assert keeping.state_dict()["draws"][1] == 2


def test_the_tensors_themselves_are_gone_after_forward():
    """But for what is left alone: the input, and what the caller has."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(100, 100), nn.GELU()) for _ in range(4)))
    storages = []
    for layer in model.modules():
        layer.register_forward_hook(
            lambda _, inputs, y: storages.append(StorageWeakRef(y.untyped_storage()))
        )
    with sg.saved_tensors(bits=4, seed=1) as keeping:
        y = model(torch.randn(100, 100))
    alive = [storage for storage in storages if not storage.expired()]
    assert {storage.cdata for storage in alive} == {y.untyped_storage()._cdata}
    assert keeping.tally.packed == 7  # four inputs of GELU, three of linear layers
    y.sum().backward()


def test_outputs_that_are_left_alone_do_not_live_for_ever():
    """A node that holds its own output would be a cycle that nobody collects."""
    import weakref

    x = torch.randn(10, 10, requires_grad=True)
    with sg.saved_tensors(seed=1):
        y = x.exp()
    alive = weakref.ref(y)
    gc.disable()
    try:
        del y
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("elements", [100, 10_000])
@pytest.mark.parametrize("bits", [8, "exact"])
def test_changes_in_place_raise(bits, elements):
    x = torch.randn(elements, requires_grad=True)
    with sg.saved_tensors(bits=bits, seed=1):
        y = x * 2
        z = y.sin()
    y.add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*expected version 0"):
        z.sum().backward()


def test_changes_through_a_view_and_of_parameters_raise():
    x = torch.randn(100, 100, requires_grad=True)
    with sg.saved_tensors(seed=1):
        base = x * 2
        z = base[:50].sin()  # saves a view that nobody else has
    base[3, 3] = 5.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    layer = nn.Linear(100, 100)
    with sg.saved_tensors(seed=1):
        loss = layer(x).sum()
    with torch.no_grad():
        layer.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_in_place_operations_that_torch_allows():
    torch.manual_seed(0)
    x = torch.randn(100, 100, requires_grad=True)
    w = torch.randn(100, 100, requires_grad=True)

    def loss():
        y = (x @ w).relu_()
        return (y @ w).add_(1).square().sum()

    plain = torch.autograd.grad(loss(), [x, w])
    with sg.saved_tensors(bits="exact", seed=1):
        exact = loss()
    assert same(torch.autograd.grad(exact, [x, w]), plain)
    with sg.saved_tensors(bits=8, seed=1):
        packed = loss()
    assert error(torch.autograd.grad(packed, [x, w]), plain) < 0.02


def test_a_version_is_part_of_what_a_tensor_is():
    x = torch.randn(100, 100, requires_grad=True)
    with sg.saved_tensors(seed=1) as keeping:
        y = x * 1
        with torch.no_grad():
            a = y.detach().requires_grad_()
        (a * 1).sin()
        z = a * 1
        z.exp_()  # saves its result, of version 1
        with torch.no_grad():
            z.mul_(0)
        z2 = z.cos()
    assert keeping.tally.packed == 3
    with pytest.raises(RuntimeError, match="inplace"):
        z2.sum().backward()


def test_retain_graph_and_accumulation():
    torch.manual_seed(0)
    model = Gpt()
    with sg.saved_tensors(bits=4, seed=1):
        loss = gpt_step(model, 0)
    loss.backward(retain_graph=True)
    once = [parameter.grad.clone() for parameter in model.parameters()]
    loss.backward(retain_graph=True)
    assert error([p.grad for p in model.parameters()], [2 * g for g in once]) < 1e-6
    loss.backward()
    assert error([p.grad for p in model.parameters()], [3 * g for g in once]) < 1e-6
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    model.zero_grad()
    keeping = sg.saved_tensors(bits=8, seed=1)
    for number in range(2):
        with keeping:
            loss = gpt_step(model, number)
        loss.backward()
    found = [p.grad.clone() for p in model.parameters()]
    plain = [a + b for a, b in zip(*(gradients(model, gpt_step, n) for n in range(2)), strict=True)]
    assert error(found, plain) < 0.02


def test_second_derivatives_are_exact_or_refused():
    torch.manual_seed(0)
    x = torch.randn(5000, requires_grad=True)
    with sg.saved_tensors(bits=8, seed=1):
        y = (x * 1).sin().sum()
    with pytest.raises(
        RuntimeError, match=r"\[saved_tensors\] expected backward without create_gr"
    ):
        torch.autograd.grad(y, x, create_graph=True)
    z = torch.randn(5000).relu().requires_grad_()
    with sg.saved_tensors(bits="exact", seed=1) as keeping:
        y = (z * 1).sin().sum()
    (first,) = torch.autograd.grad(y, z, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), z)
    assert keeping.tally.packed == 1 and torch.equal(second, -z.sin())
    with sg.saved_tensors(bits=8, seed=1):
        y = F.log_softmax((x * 1).view(50, 100), 1).sum()
    with pytest.raises(
        RuntimeError, match=r"\[saved_tensors\] expected backward without create_gr"
    ):
        torch.autograd.grad(y, x, create_graph=True)  # kept as bfloat16


@pytest.mark.parametrize("is_first", [False, True])
def test_what_is_detached_is_exact_beside_what_is_not(is_first):
    """x.detach() has the memory of x. No gradient goes through it, so it is left alone."""
    torch.manual_seed(0)
    x = torch.randn(5000, requires_grad=True)

    def loss():
        y = x * 1
        one, other = (lambda: y * y.detach(), lambda: y.sin())
        return (one() if is_first else other()).sum(), (other() if is_first else one()).sum()

    which = 0 if is_first else 1
    (plain,) = torch.autograd.grad(loss()[which], x)
    with sg.saved_tensors(bits=2, seed=1):
        packed = loss()[which]
    assert torch.equal(torch.autograd.grad(packed, x)[0], plain)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_masks_in_any_order_of_dimensions_take_a_bit(order):
    """That of the dropout behind an attention with batch_first has its first two exchanged."""
    torch.manual_seed(0)
    x = torch.randn(16, 32, 64, requires_grad=True)

    def loss():
        torch.manual_seed(1)
        return F.dropout((x * 1).permute(order), 0.3).sum()

    plain = torch.autograd.grad(loss(), x)
    with sg.saved_tensors(bits=8, seed=1) as keeping:
        packed = loss()
    assert (keeping.tally.packed, keeping.tally.plain_bytes) == (1, 4 * 16 * 32 * 64)
    assert keeping.tally.bytes < 16 * 32 * 64 / 8 + 64
    assert torch.equal(torch.autograd.grad(packed, x)[0], plain[0])


def test_indices_are_kept_in_as_few_bytes_as_they_need():
    x = torch.randn(4, 8, 40, 40, requires_grad=True)
    plain = torch.autograd.grad(F.max_pool2d(x * 1, 2).sum(), x)
    for bits in (4, "exact"):
        with sg.saved_tensors(bits=bits, seed=1) as keeping:
            y = F.max_pool2d(x * 1, 2)
        indices = y.grad_fn._saved_result1
        assert indices.dtype == torch.int64 and indices.max() < 1600
        assert same(torch.autograd.grad(y.sum(), x), plain)
    # 4 x 8 x 20 x 20 indices below 1600: 2 bytes each. The input has no zeros to leave out.
    assert (keeping.tally.packed, keeping.tally.bytes) == (1, 2 * 12_800)


def test_a_tally_says_what_tensors_became():
    x = torch.randn(100, 100, requires_grad=True)
    with sg.saved_tensors(bits=4, seed=1) as keeping:
        y = x * 1
        results = [y.sin(), F.dropout(y, 0.5), F.log_softmax(y, 1)]
    assert len(results) == 3
    kinds = keeping.tally.kinds
    assert {kind: count[:2] for kind, count in kinds.items()} == dict.fromkeys(
        ["4 bits", "exact", "smaller type"], (1, 40_000)
    )
    assert kinds["exact"][2] == 10_000 // 8 + 16 and kinds["smaller type"][2] == 20_000
    assert keeping.tally.bytes == sum(count[2] for count in kinds.values())


def test_the_inner_one_is_at_work():
    x = torch.randn(5000, requires_grad=True)
    outer, inner = sg.saved_tensors(bits=4, seed=1), sg.saved_tensors(bits="exact", seed=1)
    with outer:
        a = (x * 1).sin()
        with inner:
            b = (x * 2).relu().sin()
        c = (x * 3).sin()
        with outer:
            d = (x * 4).sin()
    assert (outer.tally.packed, inner.tally.packed) == (3, 1)
    (a + b + c + d).sum().backward()


def test_what_is_left_alone():
    layer = nn.Linear(100, 100)
    x = torch.randn(64, 100)
    with sg.saved_tensors(seed=1) as keeping:
        hidden = layer(x)
        results = [  # held, because what nobody needs is packed anew for the next
            layer(hidden),
            F.max_pool1d(hidden, 2),
            hidden[:, 0].sin(),  # small, and would hold all of the storage
            hidden[:1].expand(64, 100).sin(),
            F.dropout(hidden, 0.5),
        ]
    assert len(results) == 5
    left = keeping.tally.left
    assert left[Left.NO_GRADIENT] == (1, x.nbytes)
    assert left[Left.EXPANDED][0] == 1
    assert left[Left.SMALL] == (1, 64 * 4)
    assert Left.TYPE in left  # indices, too few to be looked at
    assert keeping.tally.packed == 2  # hidden, and the mask of the dropout
    assert Left.LEAF not in left and Left.OF_LEAF not in left


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_take_a_bit(dtype):
    """Dropout on the CPU saves 0 or 1 / (1 - p) as floats."""
    x = torch.randn(100, 1000, dtype=dtype, requires_grad=True)

    def dropped():
        torch.manual_seed(3)
        return F.dropout(x, 0.1)

    with sg.saved_tensors(bits=4, seed=1) as keeping:
        y = dropped()
    assert (keeping.tally.packed, keeping.tally.bytes) == (1, 100_000 // 8 + 16)
    found = torch.autograd.grad(y.sum(), x)
    assert same(found, torch.autograd.grad(dropped().sum(), x))


def test_a_small_piece_does_not_hold_its_storage():
    x = torch.randn(1000, 100, requires_grad=True)
    with sg.saved_tensors(seed=1):
        y = (x * 1)[:, 0].sin()
    assert y.grad_fn._saved_self.untyped_storage().nbytes() == 4000
    y.sum().backward()
    assert torch.equal(x.grad[:, 0], x[:, 0].cos())


def test_subclasses_and_sparse_tensors_are_left_alone():
    class Tagged(torch.Tensor):
        pass

    x = torch.randn(100, 100, requires_grad=True)
    with sg.saved_tensors(seed=1) as keeping:
        tagged = (x * 1).as_subclass(Tagged)
        loss = tagged.sin().sum()
        sparse = (x * 1).to_sparse()
        other = torch.sparse.mm(sparse, torch.randn(100, 100, requires_grad=True)).sum()
    assert Left.SUBCLASS in keeping.tally.left
    (loss + other).backward()
    assert torch.isfinite(x.grad).all()


def test_other_devices_are_left_alone():
    x = torch.randn(100, 100, device="meta", requires_grad=True)
    with sg.saved_tensors(bits=4, seed=1) as keeping:
        y = F.dropout((x * 2).sin(), 0.5)
    y.sum().backward()
    assert keeping.tally.packed == 0 and list(keeping.tally.left) == [Left.SUBCLASS]


def test_expanded_masks_stay_small():
    mask = torch.zeros(100, 100).bernoulli_(0.5).expand(50, 100, 100)
    x = torch.randn(50, 100, 100, requires_grad=True)
    with sg.saved_tensors(bits=4, seed=1) as keeping:
        y = (x * 1) * mask
    assert keeping.tally.packed == 0
    y.sum().backward()
    assert torch.equal(x.grad, mask)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_exact(value):
    x = torch.randn(100, 100)
    x[3, 4] = value
    x.requires_grad_()
    with sg.saved_tensors(bits=4, seed=1) as keeping:
        loss = (x * 1).square().sum()
    (found,) = torch.autograd.grad(loss, x)
    assert torch.equal(found.nan_to_num(), (2 * x).nan_to_num())
    assert keeping.tally.left[Left.NOT_FINITE][0] == 1


def test_statistics_of_attention_and_norms_stay_exact():
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 4, 512, 8, requires_grad=True) for _ in range(3))
    with sg.saved_tensors(bits=2, seed=1) as keeping:
        y = F.scaled_dot_product_attention(q * 1, k * 1, v * 1)
        F.layer_norm(y.reshape(-1, 8), (8,)).sum()
    count, size = keeping.tally.left[Left.NO_GRADIENT]
    assert count == 3 and size == 3 * 4 * 4 * 512 * 4  # log-sum-exp, mean and 1 / deviation
    found = y.grad_fn._saved_logsumexp
    scores = (q @ k.transpose(-1, -2) / 8**0.5).logsumexp(-1)
    assert torch.allclose(found, scores, atol=1e-5)


@pytest.mark.parametrize("bits", [8, 2])
def test_log_softmax_is_kept_for_its_exponential(bits):
    """Of a model that is nearly sure: what flows back is 1 - p."""
    torch.manual_seed(0)
    logits = torch.randn(64, 1000, requires_grad=True)
    y = torch.randint(1000, (64,))
    peak = 12.0 * F.one_hot(y, 1000)

    def loss():
        return F.cross_entropy(logits * 1 + peak, y)

    plain = torch.autograd.grad(loss(), logits)
    with sg.saved_tensors(bits=bits, seed=1) as keeping:
        packed = loss()
    assert (keeping.tally.plain_bytes, keeping.tally.bytes) == (256_000, 128_000)
    assert error(torch.autograd.grad(packed, logits), plain) < 0.005
    with sg.saved_tensors(bits=bits, seed=1) as keeping:
        z = F.log_softmax((logits * 1).bfloat16(), 1)
    assert keeping.tally.left[Left.LOGARITHM] == (1, 128_000)
    assert torch.equal(z.grad_fn._saved_result, z)


def test_memory_formats_come_back():
    x = torch.randn(8, 16, 12, 12, requires_grad=True)
    conv = nn.Conv2d(16, 16, 3).to(memory_format=torch.channels_last)
    with sg.saved_tensors(seed=1):
        y = conv((x * 1).to(memory_format=torch.channels_last))
    assert y.grad_fn._saved_input.is_contiguous(memory_format=torch.channels_last)


def test_without_gradients_nothing_is_drawn():
    model = Gpt()
    keeping = sg.saved_tensors(seed=1)
    with keeping, torch.no_grad():
        gpt_step(model, 0)
    assert keeping.state_dict()["draws"].tolist() == [1, 0]


def test_threads_share_one():
    torch.manual_seed(0)
    model = Gpt()
    plain = gradients(model, gpt_step)
    keeping = sg.saved_tensors(bits=8, seed=1)
    found = {}

    def work(name):
        for _ in range(3):
            with keeping:
                loss = gpt_step(model, 0)
            found[name] = torch.autograd.grad(loss, list(model.parameters()))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    for gradient in found.values():
        assert error(gradient, plain) < 0.02


def test_a_state_goes_on_to_the_bit():
    torch.manual_seed(0)
    model = Gpt()

    def step(keeping):
        with keeping:
            loss = gpt_step(model, 0)
        return torch.autograd.grad(loss, list(model.parameters()))

    one = sg.saved_tensors(bits=4, seed=3)
    step(one)
    state = one.state_dict()
    expected = step(one)
    other = sg.saved_tensors(bits=4, seed=9)
    other.load_state_dict(state)
    assert same(step(other), expected)
    with pytest.raises(ValueError, match="expected 'draws', an int64 tensor"):
        other.load_state_dict({})
    with pytest.raises(ValueError, match="expected 'draws' alone, got also places, slots"):
        other.load_state_dict(state | {"slots": torch.zeros(0, 8), "places": torch.zeros(0, 3)})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"bits": 3}, r"\[saved_tensors\] expected bits to be 8, 4, 2 or 'exact', got 3"),
        ({"bits": True}, "expected bits"),
        ({"bits": "lossless"}, "expected bits"),
        ({"group": 100}, r"\[saved_tensors\] expected group to be 16, 32, .* or 512, got 100"),
        ({"group": "a"}, r"\[saved_tensors\] expected group to be a whole number, got 'a'"),
        ({"bits": "exact", "group": 64}, "expected no group for values that are stored exactly"),
        ({"rounding": 3}, "expected rounding to be a string, got 3"),
        ({"min_elements": 0.5}, "expected min_elements to be a whole number, got 0.5"),
        ({"rounding": "up"}, "expected rounding to be one of stochastic, nearest, got 'up'"),
        ({"min_elements": -1}, "expected min_elements >= 0, got -1"),
        ({"seed": "one"}, r"\[saved_tensors\] expected seed to be a whole number"),
        ({"stream": -1}, "expected stream to be a whole number"),
    ],
)
def test_bad_arguments(arguments, text):
    with pytest.raises(ValueError, match=text):
        sg.saved_tensors(**arguments)
