"""encode, decode and inspect on tensors."""

import re
from pathlib import Path

import pytest
import torch

import slimgrad as sg

ROOT = Path(__file__).resolve().parents[3]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8]


def gradient(num_values=100_000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.exp(2 * torch.randn(num_values, generator=generator) - 9)
    return x * torch.sign(torch.randn(num_values, generator=generator))


def same_bits(a, b):
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    same_kind = a.dtype == b.dtype and a.shape == b.shape
    return same_kind and torch.equal(a.contiguous().view(integers), b.contiguous().view(integers))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("coder", ["rans", "huffman"])
def test_lossless_gives_back_every_bit(dtype, coder):
    generator = torch.Generator().manual_seed(1)
    noise = torch.randint(-128, 128, (8 * 3000,), dtype=torch.int8, generator=generator)
    smooth = (gradient(600_000) * 1000).to(dtype).view(3, -1, 8)
    for x in [smooth, smooth.transpose(0, 1), noise.view(dtype), smooth[0, 0, 0], smooth[:0]]:
        payload = sg.encode(x, coder=coder)
        assert payload.dtype == torch.uint8
        assert payload.dim() == 1
        assert payload.numel() <= x.numel() * x.element_size() + 64
        assert same_bits(sg.decode(payload), x)


def test_modes_against_torch():
    x = gradient()
    step = x.abs().max() / 127
    uniform = sg.decode(sg.encode(x, mode="uniform"))
    assert torch.allclose(uniform, torch.round(x / step) * step, atol=float(step) * 1.001)
    assert ((uniform - x).abs() <= step * 0.50001).all()
    for format in ["1-4-3", "1-5-0"]:
        coded = sg.decode(sg.encode(x, mode="float", format=format, scale=2.0**-8))
        assert torch.equal(coded, sg.quantize(x, format, 2.0**-8))
    pruned = sg.prune(x, 1e-3, seed=1)
    assert same_bits(sg.decode(sg.encode(pruned, mode="pruned")), pruned)
    rounded = sg.decode(sg.encode(pruned, mode="pruned", survivors="bfloat16"))
    expected = torch.where(pruned.abs() > 1e-3, pruned.bfloat16().float(), pruned)
    assert torch.equal(rounded, expected)


@pytest.mark.parametrize("sparsity, paper_bits", [(0.8, 4.0), (0.9, 2.0)])
def test_pruned_gradients_need_fewer_bits_than_in_the_paper(sparsity, paper_bits):
    x = gradient(1 << 20)
    threshold = sg.threshold(sg.measure(x), sparsity)
    pruned = sg.prune(x, threshold, seed=1)
    assert (pruned == 0).float().mean() == pytest.approx(sparsity, abs=0.01)
    payload = sg.encode(pruned, mode="pruned", survivors="float", format="1-5-2")
    assert 8 * payload.numel() / x.numel() < paper_bits


def test_damage_is_damage_also_with_out():
    """The checksum is compared last there, but blamed first: also if `out` seems not to fit."""
    x = gradient(300).reshape(3, 100)
    payload, out = sg.encode(x), torch.empty_like(x)
    for i in range(payload.numel()):
        damaged = payload.clone()
        damaged[i] ^= 1 << i % 8
        with pytest.raises(sg.PayloadError):
            sg.decode(damaged, out=out)
    assert torch.equal(sg.decode(payload, out=out), x)


def test_threads_do_not_change_the_bytes():
    x = gradient(1_500_000)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = [sg.encode(x), sg.encode(x, mode="uniform", model="gennorm")]
        torch.set_num_threads(2)
        assert torch.equal(one[0], sg.encode(x))
        assert torch.equal(one[1], sg.encode(x, mode="uniform", model="gennorm"))
        assert same_bits(sg.decode(one[0]), x)
    finally:
        torch.set_num_threads(threads)


def test_inspect():
    x = gradient().view(100, 1000).bfloat16()
    info = sg.inspect(sg.encode(x, mode="float", format="1-3-2", scale=0.5))
    assert info["mode"] == "float"
    assert info["dtype"] == torch.bfloat16
    assert info["shape"] == (100, 1000)
    assert info["format"] == sg.FloatFormat("1-3-2")
    assert info["scale"] == 0.5
    law = sg.inspect(sg.encode(gradient(), mode="uniform", model="laplace"))
    fitted = sg.fit(gradient(), "laplace").params["scale"]
    assert law["model_shape"] == 1
    assert law["model_scale"] == pytest.approx(fitted, rel=1e-3)
    pruned = sg.inspect(sg.encode(sg.prune(gradient(), 0.25, seed=1), mode="pruned"))
    assert pruned["threshold"] == 0.25


def test_damage_raises_payload_error():
    payload = sg.encode(gradient(1000), mode="uniform")
    assert issubclass(sg.PayloadError, ValueError)
    for bad in [payload[:-1], payload[:5], payload[:0], torch.zeros(50, dtype=torch.uint8)]:
        for function in [sg.decode, sg.inspect]:
            with pytest.raises(sg.PayloadError, match=rf"^\[{function.__name__}\]"):
                function(bad)
    flipped = payload.clone()
    flipped[40] ^= 4
    with pytest.raises(sg.PayloadError, match="checksum"):
        sg.decode(flipped)


def test_ops_are_registered_as_torch_asks():
    x = gradient(20_000)
    op = torch.ops.slimgrad.encode
    for mode in ["lossless", "uniform"]:
        arguments = (x, mode, 8, 4, 3, *[0.0] * 4, "exact", "rans", "counted", "nearest", 0)
        torch.library.opcheck(op, arguments)
        room = torch.empty(x.nbytes + 64, dtype=torch.uint8)
        torch.library.opcheck(torch.ops.slimgrad.encode_into, (*arguments, room))
    payload = sg.encode(x)
    torch.library.opcheck(torch.ops.slimgrad.decode_into, (payload, torch.empty_like(x)))
    checks = ("test_schema", "test_autograd_registration")
    torch.library.opcheck(torch.ops.slimgrad.decode, (payload,), test_utils=checks)


def test_out_is_used_again_and_again():
    room = torch.empty(4 * 300_000 + 64, dtype=torch.uint8)
    values = torch.empty(300_000)
    for seed, mode in enumerate(["lossless", "uniform", "float", "pruned"]):
        x = sg.prune(gradient(300_000, seed), 1e-4, seed=1)
        payload = sg.encode(x, mode=mode, out=room)
        assert payload.data_ptr() == room.data_ptr()
        assert torch.equal(payload, sg.encode(x, mode=mode))
        assert torch.equal(payload, sg.encode(x, mode=mode, out=torch.empty_like(payload)))
        assert sg.decode(payload, out=values) is values
        assert same_bits(values, sg.decode(payload))


@pytest.mark.parametrize("num_bytes", [1, 4096, 5000, 200_000])
def test_out_of_what_does_not_get_smaller(num_bytes):
    noise = torch.randint(-128, 128, (num_bytes,), dtype=torch.int8)
    room = torch.empty(num_bytes + 64, dtype=torch.uint8)
    assert torch.equal(sg.decode(sg.encode(noise, out=room)), noise)


def test_an_out_that_does_not_fit_raises_value_error():
    x = gradient(10_000).view(100, 100)
    payload = sg.encode(x)
    size = payload.numel()
    for bad, text in [
        (torch.empty(size - 1, dtype=torch.uint8), f"got {size - 1} bytes for {size}"),
        (torch.empty(0, dtype=torch.uint8), "got 0 bytes"),
        (torch.empty(50_000), "got Float with 1 dimensions"),
        (torch.empty(1, 50_000, dtype=torch.uint8), "got Byte with 2 dimensions"),
        (torch.empty(99_999, dtype=torch.uint8)[::2], "not contiguous"),
    ]:
        with pytest.raises(ValueError, match=r"^\[encode\] expected .*out") as caught:
            sg.encode(x, out=bad)
        assert text in str(caught.value)
    for bad, text in [
        (torch.empty(100, 100, dtype=torch.float64), r"got Double \[100, 100\] for Float"),
        (torch.empty(10_000), r"got Float \[10000\] for Float \[100, 100\]"),
        (torch.empty(100, 100).t(), "contiguous, got strides of"),
    ]:
        with pytest.raises(ValueError, match=r"^\[decode\] expected out") as caught:
            sg.decode(payload, out=bad)
        assert re.search(text, str(caught.value))
    with pytest.raises(sg.PayloadError):
        sg.decode(payload[:-1], out=torch.empty(100, 100))
    whole = torch.zeros(100_000, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="single memory location"):
        sg.encode(whole[:40_000].view(torch.float32), out=whole)


def test_decode_into_a_tensor_compiles_into_one_graph():
    @torch.compile(fullgraph=True)
    def doubled(payload, out):
        return 2 * sg.decode(payload, out=out)

    x = gradient(5000)
    assert torch.equal(doubled(sg.encode(x), torch.empty(5000)), 2 * x)


def test_encode_compiles_into_one_graph():
    @torch.compile(fullgraph=True)
    def scaled_payload(x):
        return sg.encode(2 * x, mode="uniform")

    x = gradient(20_000)
    assert torch.equal(scaled_payload(x), sg.encode(2 * x, mode="uniform"))


def test_decode_breaks_the_graph_and_says_why():
    payload = sg.encode(gradient(5000))
    with pytest.raises(Exception, match=r"outside of torch\.compile"):
        torch.compile(lambda p: torch.ops.slimgrad.decode(p), fullgraph=True)(payload)


def test_misuse_raises_value_error():
    x = gradient(100)
    for arguments in [
        {"mode": "tiny"},
        {"mode": "uniform", "bits": 9},
        {"mode": "uniform", "scale": -1.0},
        {"coder": "zip"},
        {"mode": "float", "model": "normal"},
        {"mode": "pruned", "survivors": "none"},
    ]:
        with pytest.raises(ValueError, match=r"^\[encode\] expected") as caught:
            sg.encode(x, **arguments)
        assert not isinstance(caught.value, sg.PayloadError)
    with pytest.raises(ValueError, match="float32"):
        sg.encode(torch.arange(3))
    with pytest.raises(ValueError, match="got 1 that are not"):
        sg.encode(torch.tensor([1.0, float("nan")]), mode="uniform")
    with pytest.raises(ValueError, match="uint8"):
        sg.decode(x)


def test_the_worked_example_of_the_documentation():
    text = (ROOT / "docs" / "format.md").read_text()
    dump = re.search(r"```hex\n(.*?)```", text, re.DOTALL).group(1)
    x = torch.tensor([[0.0, 1.0, -2.0], [3.0, 0.0, 0.0]])
    payload = sg.encode(x, mode="uniform", bits=3, scale=1.0)
    assert bytes(payload.tolist()) == bytes.fromhex(dump)
    assert torch.equal(sg.decode(payload), x)
    table = text[text.index("| bytes | meaning |") :].split("\n\n")[0]
    spelled = "".join(re.findall(r"`([0-9a-f ]+)`", table))
    assert bytes.fromhex(spelled) == bytes.fromhex(dump)


def test_payloads_as_bytes():
    x = gradient(5000)
    payload = sg.encode(x)
    raw = payload.numpy().tobytes()
    for form in (raw, bytearray(raw), memoryview(raw)):
        assert same_bits(sg.decode(form), x)
        assert sg.inspect(form)["shape"] == x.shape
    with pytest.raises(sg.PayloadError):
        sg.decode(b"")


@pytest.mark.parametrize("wrong", [[1, 2, 3], "text", None, 5, object()])
def test_what_is_no_payload_is_named_and_not_shown(wrong):
    for function in (sg.decode, sg.inspect):
        with pytest.raises(TypeError, match=r"expected a payload .* got \w+$"):
            function(wrong)


def test_errors_never_show_data():
    payload = sg.encode(gradient(300_000))
    for damaged in (payload[:-100], payload.float(), payload.view(-1, 1), payload.tolist()):
        with pytest.raises((ValueError, TypeError)) as error:
            sg.decode(damaged)
        assert len(str(error.value)) < 500


def test_max_bytes():
    payload = sg.encode(torch.zeros(1 << 20))
    assert payload.numel() < 200
    assert sg.decode(payload, max_bytes=4 << 20).numel() == 1 << 20
    with pytest.raises(
        sg.PayloadError, match="at most max_bytes=4194303 of values, got 4194304 bytes"
    ):
        sg.decode(payload, max_bytes=(4 << 20) - 1)
