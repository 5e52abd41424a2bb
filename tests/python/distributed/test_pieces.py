"""Frames: several pieces of tensors as bytes, and back, and how tensors are cut."""

import dataclasses
import sys
import threading

import pytest
import torch

import slimgrad as sg
from slimgrad._library import classes
from slimgrad.distributed import CODECS, Codec
from slimgrad.tensors.coding import checked

FRAME_VALUES = 1 << 19
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def gradient(num_values, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    spread = torch.exp(torch.randn(num_values, generator=generator))
    return (1e-2 * spread * torch.randn(num_values, generator=generator)).to(dtype)


def encoded(pieces, codec, seed=3, replace=False):
    held = codec._held()
    out = torch.empty(held.frame_bound(pieces), dtype=torch.uint8)
    return held.encode_frame(pieces, list(range(len(pieces))), seed, replace, out).clone()


def coded(values, codec, seed=3, replace=False):
    """(what the pieces are then, their bytes)"""
    pieces = [x.clone() for x in values]
    return pieces, encoded(pieces, codec, seed, replace)


def decode_frame(payload, values, codec, to, add=False):
    checked(codec._held().decode_frame, payload, values, to, add)
    return to


def decoded(payload, values, codec):
    return decode_frame(payload, values, codec, [torch.empty_like(x) for x in values])


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_three_ways_to_the_same_values(name, dtype):
    codec, values = Codec.parse(name), [gradient(70_000, 1, dtype), gradient(5_000, 2, dtype)]
    replaced, payload = coded(values, codec, replace=True)
    back = decoded(payload, values, codec)
    assert all(map(torch.equal, back, replaced))
    sums = [torch.full(x.shape, 0.25) for x in values]
    decode_frame(payload, values, codec, sums, add=True)
    assert all(torch.equal(s, 0.25 + x.float()) for s, x in zip(sums, back, strict=True))
    if name == "lossless":
        assert all(map(torch.equal, back, values))


@pytest.mark.parametrize("name", ["uniform8", "fp8", "pruned"])
def test_memory_that_is_shared_until_it_is_written_to_is_not_replaced(name):
    values = gradient(5000)
    expected = values.clone()
    piece = torch._lazy_clone(values)
    encoded([piece], Codec.parse(name), replace=True)
    assert torch.equal(values, expected)
    if name != "pruned":
        assert not torch.equal(piece, expected)


def test_uniform_codes_against_torch():
    """Every value is one of the two levels around it, and each level as often as it should be."""
    x = gradient(200_000)
    (back,) = decoded(coded([x], Codec.parse("packed6"))[1], [x], Codec.parse("packed6"))
    step = float(x.abs().max()) / 31
    level, below = back.double() / step, torch.floor(x.double() / step)
    assert ((level - below).round().clamp(0, 1) - (level - below)).abs().max() < 1e-4
    # The mean error of n values, each with a variance of at most step^2 / 4: four standard errors.
    assert abs(float((back.double() - x.double()).mean())) < 4 * step / 2 / x.numel() ** 0.5


def test_packed_codes_take_as_many_bits_as_they_have():
    x = gradient(1 << 18)
    for bits in range(4, 9):
        payload = coded([x], Codec.parse(f"packed{bits}"))[1]
        assert x.numel() * bits // 8 < payload.numel() < x.numel() * bits // 8 + 80


def test_draws_differ_by_seed_and_key_and_repeat():
    x, codec = gradient(20_000), Codec.parse("uniform4")
    first, same, other = (coded([x, x], codec, seed=seed)[1] for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    back = decoded(first, [x, x], codec)
    assert not torch.equal(*back)


@pytest.mark.parametrize("name", [name for name in CODECS if name != "pruned"])
def test_nonfinite_values_arrive(name):
    x, codec = gradient(20_000), Codec.parse(name)
    x[7], x[8], x[9] = float("nan"), float("inf"), float("-inf")
    replaced, payload = coded([x, gradient(5000)], codec, replace=True)
    back = decoded(payload, [x, x[:5000]], codec)[0]
    assert torch.equal(back.view(torch.int32), x.view(torch.int32))
    assert torch.equal(replaced[0].view(torch.int32), x.view(torch.int32))


def test_plain_pieces_travel_as_they_are():
    x, codec = gradient(3000), Codec.parse("uniform2")
    payload = coded([x], codec)[1]
    assert torch.equal(decoded(payload, [x], codec)[0], x)
    all_coded = codec.replace(min_elements=0)
    with pytest.raises(sg.PayloadError, match=r"piece 0: expected raw .* got uniform 2 bits"):
        decoded(coded([x], all_coded)[1], [x], codec)


def test_what_is_not_as_agreed_is_refused():
    x, codec = gradient(5000), Codec.parse("uniform4")
    payload = coded([x], codec)[1]
    cases = {
        r"expected uniform 5 bits .* got uniform 4 bits": ([x], Codec.parse("uniform5")),
        r"expected float 1-5-2 .* got uniform": ([x], Codec.parse("fp8")),
        r"of float32 \[4999\], got uniform 4 bits of float32 \[5000\]": ([x[1:]], codec),
        r"of bfloat16 \[5000\], got .* of float32": ([x.bfloat16()], codec),
        r"expected 2 pieces, got 1": ([x, x], codec),
    }
    for message, (values, expected) in cases.items():
        with pytest.raises(sg.PayloadError, match=message):
            decoded(payload, values, expected)


def test_damage_is_found_wherever_it_is():
    x, codec = gradient(5000), Codec.parse("uniform4")
    payload = coded([x, x], codec)[1]
    sums = [torch.zeros(5000), torch.zeros(5000)]
    generator = torch.Generator().manual_seed(1)
    places = torch.randint(payload.numel(), (200,), generator=generator).tolist()
    for place in [*range(12), *places]:
        damaged = payload.clone()
        damaged[place] ^= 1 << (place % 8)
        with pytest.raises(sg.PayloadError):
            decode_frame(damaged, [x, x], codec, sums, add=True)
    for cut in (0, 3, 8, payload.numel() - 1):
        with pytest.raises(sg.PayloadError):
            decoded(payload[:cut].clone(), [x, x], codec)
    with pytest.raises(sg.PayloadError, match=r"expected nothing behind the last piece"):
        decoded(torch.cat([payload, payload[:1]]), [x, x], codec)


def test_misuse_is_refused():
    x, held = gradient(5000), Codec.parse("uniform4")._held()
    room = torch.empty(1 << 20, dtype=torch.uint8)
    kinds = r"expected contiguous pieces of one dimension and one type on the CPU"
    for pieces, out, message in [
        ([x.view(2, -1)], room, kinds),
        ([x[::2]], room, kinds),
        ([x.double()], room, kinds),
        ([x, x.half()], room, kinds),
        ([x], room[:2], r"expected room for the sizes"),
        ([x], room[:50], r"expected room for the payload"),
        ([x[:100]], room[:50], r"expected room for the values"),
        ([x], room.half(), r"expected bytes as a contiguous uint8"),
    ]:
        with pytest.raises(ValueError, match=message):
            held.encode_frame(pieces, [0] * len(pieces), 0, False, out)
    payload = coded([x], Codec.parse("uniform4"))[1]
    with pytest.raises(ValueError, match=r"expected sums of type float32"):
        held.decode_frame(payload, [x], [x.half()], True)
    with pytest.raises(ValueError, match=r"expected a tensor for each piece"):
        held.decode_frame(payload, [x], [], False)


def runs_beside(op):
    """Whether a thread that waits for Python's lock gets it before ``op`` returns. Nothing else
    takes it from this one meanwhile; but a busy machine may not run the thread in time, so that it
    has many tries."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100.0)
    try:
        for _ in range(100):
            go, ran = threading.Event(), []
            thread = threading.Thread(target=lambda go=go, ran=ran: (go.wait(), ran.append(1)))
            thread.start()
            go.set()
            op()
            ran_meanwhile = bool(ran)
            thread.join()
            if ran_meanwhile:
                return True
    finally:
        sys.setswitchinterval(interval)
    return False


def test_python_runs_while_pieces_are_coded():
    x, held = gradient(1 << 20), Codec.parse("uniform8")._held()
    out = torch.empty(held.frame_bound([x]), dtype=torch.uint8)
    payload = held.encode_frame([x], [0], 0, False, out)
    assert runs_beside(lambda: held.encode_frame([x], [0], 0, False, out))
    assert runs_beside(lambda: held.decode_frame(payload, [x], [x], False))
    assert not runs_beside(lambda: sum(range(100_000)))


def test_large_tensors_are_cut_into_frames():
    x = torch.zeros(3 * FRAME_VALUES + 5)
    frames = Codec()._held().frames([x, x[:10]])
    assert [[p.numel() for p in f] for f in frames] == [[FRAME_VALUES]] * 3 + [[5, 10]]


def test_settings_of_a_codec_are_the_librarys():
    """The names and defaults that Python writes out for readers are those of <slimgrad/codec.h>;
    whether errors are fed back follows from the kind where nothing is said."""
    defaults = {field.name: field.default for field in dataclasses.fields(Codec)}
    assert defaults.pop("error_feedback") is None
    defaults["error_feedback"] = False
    assert defaults == dict(classes.Codec.parse("uniform8"))
