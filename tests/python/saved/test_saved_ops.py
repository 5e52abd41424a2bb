"""The ops that pack and unpack, below the hooks."""

import numpy as np
import pytest
import torch

import slimgrad as sg

ops = torch.ops.slimgrad
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def packed(x, bits=8, group=0, rounding="stochastic", seed=1, number=0):
    return ops.pack_saved(x, bits, group, rounding, seed, number)


def restored(words, x, bits=8, group=0):
    return ops.unpack_saved(words, x.shape, torch.empty_like(x).stride(), x.dtype, bits, group)


def layouts():
    x = torch.randn(4, 6, 10, 7)
    return {
        "contiguous": x,
        "channels last": x.to(memory_format=torch.channels_last),
        "transposed": x.transpose(1, 3),
        "empty": x[:0],
        "with holes": x[:, :, ::2],
        "one value": x[:1, :1, :1, :1],
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("layout", layouts())
def test_comes_back_in_its_layout(layout, bits, dtype):
    x = layouts()[layout].to(dtype)
    if layout == "with holes":
        x = layouts()["contiguous"].to(dtype)[:, :, ::2]
    back = restored(packed(x, bits), x, bits)
    assert back.shape == x.shape and back.dtype == dtype
    if layout != "with holes":
        assert back.stride() == x.stride()
    if x.numel():
        # A step of the largest group, rounded up, and the rounding of the type.
        spread = (x.max() - x.min()).item()
        assert (back.float() - x.float()).abs().max() <= 1.05 * spread / (2**bits - 1) + 0.05


def test_values_are_packed_in_the_order_of_memory():
    x = torch.randn(4, 6, 10, 7).to(memory_format=torch.channels_last)
    assert torch.equal(packed(x), packed(x.permute(0, 2, 3, 1)))
    assert not torch.equal(packed(x), packed(x.contiguous()))


def test_bytes_are_as_promised():
    for n in (4096, 5000, 100_000):
        for bits in (8, 4, 2):
            for group in (16, 64, 512):
                blocks, groups = -(-n // 512), -(-n // group)
                words = packed(torch.randn(n), bits, group)
                assert words.nbytes == blocks * 64 * bits + 4 * groups + 4


def test_threads_change_nothing():
    x = torch.randn(1_000_003)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = packed(x, 4)
        torch.set_num_threads(2)
        assert torch.equal(one, packed(x, 4))
    finally:
        torch.set_num_threads(threads)


def test_draws_depend_on_seed_and_number_alone():
    x = torch.randn(10_000)
    assert torch.equal(packed(x, seed=1, number=2), packed(x, seed=1, number=2))
    assert not torch.equal(packed(x, seed=1, number=2), packed(x, seed=1, number=3))
    assert not torch.equal(packed(x, seed=1, number=2), packed(x, seed=2, number=2))
    nearest = [packed(x, rounding="nearest", seed=seed) for seed in (1, 2)]
    assert torch.equal(*nearest)


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_rounding_is_unbiased(bits):
    """The mean of 2,000 draws of 512 values; their errors have a standard deviation of at most half
    a step each. Five standard errors of a value are missed once in a million."""
    torch.manual_seed(0)
    x = torch.randn(512)
    draws = torch.stack(
        [restored(packed(x, bits, 256, number=i), x, bits, 256) for i in range(2000)]
    )
    step = (x.max() - x.min()).item() * 1.02 / (2**bits - 1)
    assert ((draws.mean(0) - x).abs() <= 5 * step / 2 / 2000**0.5).all()
    # Values are rounded by themselves, but for pairs 128 apart, whose draws are half a turn from
    # each other: on average over their fractions that is a correlation of -1/4. The estimate of a
    # variance from 2,000 draws is off by 3 %, five of which are 16 %.
    errors = draws - x
    for part, expected in ((errors[:, :128], 1.0), (errors, 0.75)):
        assert 0.84 * expected < part.sum(1).var() / part.var(0).sum() < 1.16 * expected


def test_relu_outputs_keep_their_zeros():
    x = torch.randn(50_000).relu()
    for bits in (8, 4, 2):
        back = restored(packed(x, bits), x, bits)
        assert torch.equal(back > 0, x > 0)


def test_what_is_not_finite_is_counted_and_comes_back_as_nan():
    x = torch.randn(10_000)
    x[300], x[5000] = torch.inf, torch.nan
    words = packed(x, 8, 256)
    assert words[-1] == 2
    back = restored(words, x, 8, 256)
    assert back.isnan().sum() == 512 and back[256:512].isnan().all()
    assert packed(x[:256])[-1] == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_is_exact(dtype):
    x = torch.randn(300, 77).relu().to(dtype)
    x[0, :5] = torch.tensor([-0.0, torch.inf, -torch.inf, torch.nan, 1e-40])
    words = ops.pack_exact(x)
    back = ops.unpack_exact(words, x.shape, x.stride(), dtype)
    integers = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(back.view(integers), x.view(integers))
    assert words.nbytes < 0.62 * x.nbytes
    assert ops.pack_exact(torch.randn(300, 77).to(dtype)).numel() == 0


def test_opcheck():
    x = torch.randn(5, 1000)
    words = packed(x, 4)
    torch.library.opcheck(ops.pack_saved, (x, 4, 0, "stochastic", 1, 2))
    arguments = (words, list(x.shape), list(x.stride()), torch.float32, 4, 0)
    torch.library.opcheck(ops.unpack_saved, arguments)
    exact = ops.pack_exact(x.relu())
    draws = torch.tensor([1, 2])
    torch.library.opcheck(ops.begin_saved_, (draws, 0, "packed\t4 bits\t1\t8\t1"))
    torch.library.opcheck(ops.pack_saved_in_graph, (x, draws[:1], 3, 4, 0, "stochastic"))
    torch.library.opcheck(ops.unpack_exact, (exact, [5, 1000], [1000, 1], torch.float32))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: packed(x.int()), r"\[pack_saved\] expected x of type float32"),
        (lambda x: packed(x, 3), "expected bits to be 8, 4 or 2, got 3"),
        (lambda x: packed(x, 8, 48), "expected group to be 16, 32, 64, 128, 256 or 512, got 48"),
        (lambda x: packed(x, rounding="up"), "expected rounding to be one of stochastic, nearest"),
        (lambda x: packed(x.requires_grad_()), "does not require a gradient"),
        (
            lambda x: restored(packed(x), x, 4),
            r"\[unpack_saved\] expected the size, bits and group",
        ),
        (lambda x: restored(packed(x).long(), x), "one-dimensional Int tensor"),
        (
            lambda x: ops.unpack_saved(packed(x), [100], [2], torch.float32, 8, 0),
            "strides of a dense tensor",
        ),
        (
            lambda x: ops.unpack_saved(packed(x), [100], [1], torch.float64, 8, 0),
            "dtype to be float32",
        ),
        (
            lambda x: ops.unpack_exact(torch.zeros(7, dtype=torch.uint8), [9], [1], torch.float32),
            "the bytes that pack_exact gave",
        ),
    ],
)
def test_errors_say_what_was_expected(call, text):
    with pytest.raises(ValueError, match=text):
        call(torch.randn(100))


def test_graphs_draw_from_the_state():
    draws = torch.tensor([5, 7])
    seeds = [ops.begin_saved_(draws, stream).item() for stream in (0, 0, 1)]
    assert draws.tolist() == [5, 10] and len(set(seeds)) == 3
    assert seeds[0] == sg.derive_seed(5, 0, "graph", 7)
    assert seeds[2] == sg.derive_seed(5, 1, "graph", 9)
    x = torch.randn(1000)
    packed = ops.pack_saved_in_graph(x, torch.tensor([seeds[0]]), 3, 4, 0, "stochastic")
    assert torch.equal(packed, ops.pack_saved(x, 4, 0, "stochastic", seeds[0], 3))


def test_what_graphs_cannot_pack_comes_back(request):
    if request.config.getoption("--device"):
        pytest.skip("a copy of the words on the device is without what is held beside them")
    x = torch.randn(40, 50).t()
    x[3, 4], x[5, 6] = float("inf"), float("nan")
    packed = ops.pack_saved_in_graph(x, torch.tensor([1]), 0, 4, 0, "stochastic")
    arguments = ([50, 40], [1, 50], torch.float32, 4, 0)
    back = ops.unpack_saved(packed, *arguments)
    assert torch.equal(back.nan_to_num(9), x.nan_to_num(9)) and back.stride() == (1, 50)
    back.zero_()  # not the memory that is held
    assert torch.equal(ops.unpack_saved(packed, *arguments).nan_to_num(9), x.nan_to_num(9))
    with pytest.raises(ValueError, match="holds NaN and Inf beside them, got a copy of it"):
        ops.unpack_saved(packed.clone(), *arguments)


@pytest.mark.parametrize("text", ["packed\t4 bits\t1", "other\tx\t1\t2\t3", "left\tx\t1\t-2\t3"])
def test_what_a_graph_says_is_checked(text):
    with pytest.raises(ValueError, match=r"\[begin_saved_\] expected .* saved, got"):
        ops.begin_saved_(torch.tensor([1, 2]), 0, text)


@pytest.mark.parametrize("size", [(0,), (1,), (7,), (8,), (9, 3), (300, 1000)])
def test_bools_as_bits(size):
    x = torch.rand(size, generator=torch.Generator().manual_seed(0)) < 0.3
    bits = ops.pack_bools(x)
    assert bits.dtype == torch.uint8 and bits.numel() == (x.numel() + 7) // 8
    expected = np.packbits(x.flatten().numpy(), bitorder="little")
    assert np.array_equal(bits.numpy(), expected)
    back = ops.unpack_bools(bits, x.shape, x.stride())
    assert back.dtype == torch.bool and torch.equal(back, x)
    if x.dim() == 2:
        back = ops.unpack_bools(ops.pack_bools(x.t()), x.t().shape, x.t().stride())
        assert torch.equal(back, x.t())
        # Without holes what was a part of more columns.
        part = x[:, :2]
        dense = torch.empty_like(part)
        back = ops.unpack_bools(ops.pack_bools(part), part.shape, dense.stride())
        assert torch.equal(back, part)


def test_any_byte_but_zero_is_true():
    x = torch.arange(256, dtype=torch.uint8).view(torch.bool)
    back = ops.unpack_bools(ops.pack_bools(x), x.shape, x.stride())
    assert torch.equal(back.view(torch.uint8), (torch.arange(256) > 0).to(torch.uint8))


def test_ops_of_bools_compile_and_refuse():
    x = torch.rand(5, 13) < 0.5
    torch.library.opcheck(ops.pack_bools, (x,))
    torch.library.opcheck(ops.unpack_bools, (ops.pack_bools(x), x.shape, x.stride()))
    with pytest.raises(ValueError, match=r"\[pack_bools\] expected a bool tensor"):
        ops.pack_bools(x.float())
    with pytest.raises(ValueError, match=r"\[unpack_bools\] expected the size"):
        ops.unpack_bools(ops.pack_bools(x), (73,), (1,))
    with pytest.raises(ValueError, match=r"\[unpack_bools\] expected bits"):
        ops.unpack_bools(x, (65,), (1,))
