"""delta and apply_delta: bits that come back, bases that are refused, dicts of tensors."""

import math
import subprocess
import sys
import textwrap
from collections import Counter

import numpy
import pytest
import torch

import slimgrad as sg

DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
]


def same_bits(a, b):
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(*(x.contiguous().view(-1).view(torch.uint8) for x in (a, b)))
    )


def step(n, size, dtype=torch.bfloat16, seed=0):
    """Weights before and after a step: rounded copies of a float32 master."""
    generator = torch.Generator().manual_seed(seed)
    master = 0.05 * torch.randn(n, generator=generator)
    moved = master + size * torch.randn(n, generator=generator)
    return master.to(dtype), moved.to(dtype)


def entropy_by_exponent(base, new):
    """Bits, by NumPy, of the differences in units of the last place, given the base's exponent."""
    base, new = (x.view(torch.int16).numpy().view(numpy.uint16).astype(int) for x in (base, new))
    place = [numpy.where(x < 0x8000, x, 0x7FFF - x) for x in (base, new)]
    pairs = Counter(zip((base >> 7) & 255, place[1] - place[0], strict=True))
    sums = Counter()
    for (exponent, _), count in pairs.items():
        sums[exponent] += count
    return -sum(count * math.log2(count / sums[e]) for (e, _), count in pairs.items())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 100, 300_000])
def test_every_type_comes_back(dtype, n):
    generator = torch.Generator().manual_seed(n)
    width = torch.empty(0, dtype=dtype).element_size()
    bits = torch.randint(0, 256, (n, width), dtype=torch.uint8, generator=generator)
    if dtype == torch.bool:
        bits &= 1
    base = bits.flatten().view(dtype)
    changed = bits.clone()
    where = torch.rand(n, generator=generator) < 0.02
    changed[where, 0] ^= 1
    new = changed.flatten().view(dtype)
    payload = sg.delta(base, new)
    assert same_bits(sg.apply_delta(base, payload), new)
    in_place = base.clone()
    assert sg.apply_delta(in_place, payload, out=in_place) is in_place
    assert same_bits(in_place, new)


@pytest.mark.parametrize("size", [2e-6, 6e-6, 1e-4])
def test_a_delta_is_close_to_the_entropy_by_exponent(size):
    base, new = step(1_000_000, size)
    payload = sg.delta(base, new)
    assert 8 * payload.numel() < 1.05 * entropy_by_exponent(base, new)
    assert same_bits(sg.apply_delta(base, payload), new)


def test_float32_takes_about_the_bits_of_its_differences():
    base, new = step(500_000, 1e-6, torch.float32)
    differences = new.view(torch.int32).long() - base.view(torch.int32).long()
    ideal = (2 * differences.abs() + 1).double().log2().mean().item()  # a sign and a magnitude
    payload = sg.delta(base, new)
    assert 8 * payload.numel() / base.numel() < ideal + 2
    assert same_bits(sg.apply_delta(base, payload), new)


def test_reshaped_strided_and_requiring_gradients():
    base, new = step(6000, 1e-4)
    payload = sg.delta(base.view(60, 100).t(), new.view(60, 100).t().clone().requires_grad_())
    result = sg.apply_delta(base.view(60, 100).t(), payload)
    assert same_bits(result, new.view(60, 100).t().contiguous()) and not result.requires_grad
    assert sg.apply_delta(base, sg.delta(base, new.view(60, 100))).shape == (60, 100)
    out = base.view(60, 100).t().clone(memory_format=torch.preserve_format)
    sg.apply_delta(out, payload, out=out)
    assert same_bits(out, result)
    parameter = torch.nn.Parameter(base.clone())
    sg.apply_delta(parameter, sg.delta(base, new), out=parameter)
    assert same_bits(parameter.detach(), new)


def test_another_base_is_refused_and_untouched():
    base, new = step(100_000, 1e-5)
    payload = sg.delta(base, new)
    other = base.clone()
    other[77] = 1
    before = other.clone()
    for out in (None, other):
        with pytest.raises(sg.PayloadError, match=r"\[apply_delta\] expected the base with hash"):
            sg.apply_delta(other, payload, out=out)
    assert same_bits(other, before)
    with pytest.raises(sg.PayloadError, match="expected a base of type BF16, got F16"):
        sg.apply_delta(base.view(torch.float16), payload)
    with pytest.raises(sg.PayloadError, match="expected a base of 200000 bytes"):
        sg.apply_delta(base[:-1], payload)


def test_damage_is_a_payload_error():
    base, new = step(20_000, 1e-5)
    payload = sg.delta(base, new)
    for size in (0, 3, 40, len(payload) - 1):
        with pytest.raises(sg.PayloadError):
            sg.apply_delta(base, payload[:size])
    for i in range(0, len(payload), 13):
        flipped = payload.clone()
        flipped[i] ^= 8
        with pytest.raises(sg.PayloadError):
            sg.apply_delta(base, bytes(flipped.tolist()))
    with pytest.raises(sg.PayloadError):
        sg.apply_delta(base, sg.encode(base))
    with pytest.raises(sg.PayloadError):
        sg.decode(payload)


# A set whose one entry says complex64 of 2^40 values, with a delta of 16 bytes that nothing changed
# and checksums that fit. The base is 16 bytes of 1.
FORGED_SHAPE = bytes.fromhex(
    "8d53474d01000000cc6aab0cdcb2523a23588eb278f18d6f9bcdbcc13d126adc1788f423868d35742509cf6591"
    "320e338d534743010000006c000000000000008d534750010004015b7b226d65746164617461223a6e756c6c2c"
    "2274656e736f7273223a5b7b226e616d65223a2278222c226474797065223a22433634222c227368617065223a"
    "5b313039393531313632373737365d2c226279746573223a34397d5d7dc3399faca2d2721e8d534744010a0110"
    "18886a8b9704ba964d343c02d170af6b18886a8b9704ba964d343c02d170af6b00450c62fb9ee9643e"
)


def test_a_shape_that_is_not_that_of_its_bytes_is_a_payload_error():
    base = torch.ones(16, dtype=torch.uint8).view(torch.complex64)
    with pytest.raises(sg.PayloadError):
        sg.apply_delta({"x": base}, FORGED_SHAPE, max_bytes=1000)


# Deltas of a tensor without values and of a dict of it, with hashes and checksums that fit. The
# shape, 2^62 by 2^62 by 0, has strides that no tensor can have.
FORGED_STRIDES = bytes.fromhex(
    "8d534744010003808080808080808040808080808080808040007f498d4624c30160d8984701d306aa997f498d4624"
    "c30160d8984701d306aa99006ac466b6daa08ae2"
)
FORGED_STRIDES_SET = bytes.fromhex(
    "8d53474d010000004ba7f85c02b65bd89768c231541722ac806ac6c17f946e47ee565702affc2320544fa01162b9dd"
    "118d5347430100000088000000000000008d53475001000401777b226d65746164617461223a6e756c6c2c2274656e"
    "736f7273223a5b7b226e616d65223a2278222c226474797065223a22463332222c227368617065223a5b3436313136"
    "38363031383432373338373930342c343631313638363031383432373338373930342c305d2c226279746573223a36"
    "377d5d7d1cb71bb26a0ecfe2"
)


def test_a_shape_that_no_tensor_has_is_a_payload_error():
    base = torch.empty(0)
    with pytest.raises(sg.PayloadError, match="fit into memory"):
        sg.apply_delta(base, FORGED_STRIDES)
    with pytest.raises(sg.PayloadError, match="fit into memory"):
        sg.apply_delta({"x": base}, FORGED_STRIDES_SET + FORGED_STRIDES)


def test_types_without_a_code_go_in_dicts():
    x = torch.randn(10, dtype=torch.complex64)
    with pytest.raises(ValueError, match=r"\[delta\] expected .* dict"):
        sg.delta(x, x + 1)
    assert same_bits(sg.apply_delta({"x": x}, sg.delta({"x": x}, {"x": x + 1}))["x"], x + 1)


def test_misuse():
    base, new = step(100, 1e-3)
    with pytest.raises(ValueError, match=r"\[delta\] expected two tensors with the same type"):
        sg.delta(base, new.float())
    with pytest.raises(TypeError, match="got one of each"):
        sg.delta(base, {"x": new})
    with pytest.raises(ValueError, match=r"\[apply_delta\] expected out to be"):
        sg.apply_delta(base, sg.delta(base, new), out=new.float())
    with pytest.raises(ValueError, match="to have values"):
        sg.delta(base.to("meta"), new)
    with pytest.raises(ValueError, match="a uint8 tensor of one dimension"):
        sg.apply_delta(base, base)


def dicts():
    (a, a2), (b, b2) = step(6000, 1e-5, seed=1), step(8000, 1e-5, seed=2)
    base = {"a": a, "b": b.view(80, 100), "gone": torch.arange(5), "type": torch.ones(3)}
    new = {"new": torch.tensor([True, False]), "b": b2, "a": a2, "type": torch.ones(3).half()}
    new["scalar"] = torch.tensor(3)
    return base, new


def test_dicts():
    base, new = dicts()
    payload = sg.delta(base, new)
    result = sg.apply_delta(base, payload)
    assert list(result) == list(new)
    assert all(same_bits(result[name], new[name]) for name in new)
    a = base["a"]
    changed = sg.apply_delta(base, payload, out=base)
    assert changed is base and base["a"] is a and set(base) == set(new)
    assert all(same_bits(base[name], new[name]) for name in new)
    with pytest.raises(sg.PayloadError, match="expected the base with hash"):
        sg.apply_delta(base, payload)


def test_dicts_are_not_touched_by_a_failure():
    base, new = dicts()
    payload = sg.delta(base, new)
    before = {name: x.clone() for name, x in base.items()}
    for size in range(0, len(payload), 97):
        with pytest.raises(sg.PayloadError):
            sg.apply_delta(base, payload[:size], out=base)
    base["b"][3, 4] = 9
    with pytest.raises(sg.PayloadError):
        sg.apply_delta(base, payload, out=base)
    base["b"][3, 4] = before["b"][3, 4]
    assert all(same_bits(base[name], before[name]) for name in before)
    with pytest.raises(sg.PayloadError, match="max_bytes=100"):
        sg.apply_delta(base, payload, max_bytes=100)


def test_what_is_no_tensor_in_out_is_replaced():
    base, new = dicts()
    out = sg.apply_delta(base, sg.delta(base, new), out={"a": None, "b": 3, "other": "x"})
    assert set(out) == set(new) and all(same_bits(out[name], new[name]) for name in new)


def test_a_missing_tensor_is_another_base():
    base, new = dicts()
    payload = sg.delta(base, new)
    del base["gone"]
    with pytest.raises(sg.PayloadError, match="expected the base with hash"):
        sg.apply_delta(base, payload)


def test_inspect():
    base, new = dicts()
    info = sg.inspect(sg.delta(base["a"], new["a"]))
    assert info["mode"] == "delta" and info["type"] == "BF16" and info["values_nbytes"] == 12000
    assert len(info["base"]) == 32 and info["base"] != info["result"]
    info = sg.inspect(sg.delta(base, new))
    assert list(info["tensors"]) == list(new) and info["nbytes"] == sg.delta(base, new).numel()
    assert "base" in info["tensors"]["a"] and "base" not in info["tensors"]["new"]


def test_opcheck_and_compile():
    base, new = step(5000, 1e-4)
    torch.library.opcheck(torch.ops.slimgrad.delta.default, (base, new))
    payload = sg.delta(base, new)
    torch.library.opcheck(torch.ops.slimgrad.apply_delta_.default, (base.clone(), payload))


def test_bytes_do_not_depend_on_threads():
    base, new = step(1_500_000, 1e-5)
    payload = sg.delta(base, new)
    program = textwrap.dedent("""
        import sys, torch, slimgrad as sg
        torch.set_num_threads(1)
        base, new = torch.load(sys.argv[1])
        torch.save(sg.delta(base, new), sys.argv[1])
    """)
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        torch.save((base, new), file.name)
        subprocess.run(
            [sys.executable, "-c", program, file.name],
            check=True,
            env={"SLIMGRAD_KERNELS": "scalar"},
        )
        assert torch.equal(torch.load(file.name), payload)
