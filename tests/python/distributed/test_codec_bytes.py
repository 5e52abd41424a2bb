"""Codec.encode and Codec.decode: tensors as bytes for transports of other programs."""

import copy
import math
import pickle

import pytest
import torch

import slimgrad as sg
from slimgrad.distributed import Codec

SHAPES = {"weight": (100, 120), "bias": (120,), "half": (5000,)}


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    return made | {"half": made["half"].bfloat16()}


@pytest.mark.parametrize(
    "name", ["lossless", "fp8", "uniform4", "packed4", "rate2", "pruned", "topk"]
)
def test_what_is_decoded_has_types_shapes_and_arrangement(name):
    codec, values = Codec.parse(name), tensors()
    before = {key: x.clone() for key, x in values.items()}
    data = codec.encode(values)
    assert isinstance(data, bytes)
    back = Codec.parse(name).decode(data, like=values)
    assert list(back) == list(values)
    for key, x in values.items():
        assert back[key].dtype == x.dtype and back[key].shape == x.shape
        assert torch.equal(x, before[key])  # encode changes nothing
        if name == "lossless" or x.numel() < codec.min_elements:
            assert torch.equal(back[key], x)
    listed = codec.decode(data, like=list(values.values()))
    assert all(map(torch.equal, listed, back.values()))
    one = Codec.parse(name).encode(values["weight"])
    assert codec.decode(one, like=values["weight"]).shape == (100, 120)


def test_the_bytes_are_pieces_of_the_format():
    codec, values = Codec.parse("rate3"), tensors()
    data = codec.encode(values)
    assert int.from_bytes(data[:4], "little") == 3
    sizes = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "little") for i in range(3)]
    assert 16 + sum(sizes) == len(data)
    assert sg.inspect(data[16 : 16 + sizes[0]])["rate_asked"] == 3


def test_error_feedback_sends_what_was_lost():
    """The sum of what arrives is the sum of the tensors, up to one residual; without it the same
    tensor, rounded to nearest, would lose its small values every time."""
    codec, x = Codec.parse("rate1", error_feedback=True), tensors()["weight"]
    arrived = sum(codec.decode(codec.encode([x]), like=[x])[0].double() for _ in range(50))
    residual = codec.state_dict()["residuals"][0].view(100, 120).double()
    assert torch.allclose(arrived + residual, 50 * x.double(), atol=1e-3)
    assert float((arrived / 50 - x).norm() / x.norm()) < 0.1


@pytest.mark.parametrize("name", ["topk", "fp4", "rate2"])
def test_error_feedback_forgets_nan_and_inf(name):
    codec, x = Codec.parse(name, error_feedback=True, rounding="nearest"), tensors()["weight"]
    codec.encode(x)
    broken = x.clone()
    broken[0, :3] = torch.tensor([math.inf, -math.inf, math.nan])
    arrived = codec.decode(codec.encode(broken), like=x)
    assert torch.equal(arrived[0, :2], broken[0, :2]) and bool(arrived[0, 2].isnan())
    assert bool(codec.state_dict()["residuals"][0].isfinite().all())
    assert bool(codec.decode(codec.encode(x), like=x).isfinite().all())


@pytest.mark.parametrize("name", sg.distributed.CODECS)
def test_nothing_but_nan_and_nothing_at_all(name):
    for x in (torch.full((5000,), math.nan), torch.zeros(0), torch.zeros(0, 3).bfloat16()):
        codec = Codec.parse(name, min_elements=0)
        back = codec.decode(codec.encode(x), like=x)
        assert back.shape == x.shape and bool(back.isnan().all())


def test_calls_draw_anew_and_state_resumes():
    x = tensors()["weight"]
    codec, other = Codec.parse("rate2", seed=3), Codec.parse("rate2", seed=4)
    first, second = codec.encode(x), codec.encode(x)
    assert first != second and first != other.encode(x)
    assert Codec.parse("rate2", seed=3).encode(x) == first
    resumed = Codec.parse("rate2", seed=3)
    resumed.load_state_dict({"calls": 1, "residuals": []})
    assert resumed.encode(x) == second
    fed = Codec.parse("fp4", error_feedback=True)
    fed.encode(x)
    later = Codec.parse("fp4", error_feedback=True)
    later.load_state_dict(fed.state_dict())
    assert later.encode(x) == fed.encode(x)
    assert fed == Codec.parse("fp4", error_feedback=True)  # state is no setting
    for again in (pickle.loads(pickle.dumps(fed)), copy.deepcopy(fed)):
        assert again == fed and again.state_dict() == {"calls": 0, "residuals": []}


def test_damage_and_bytes_of_others_are_refused():
    codec, values = Codec.parse("rate2"), tensors()
    data = codec.encode(values)
    for cut in (b"", data[:3], data[:-1], data + b"\0"):
        with pytest.raises(sg.PayloadError):
            codec.decode(cut, like=values)
    for place in range(0, len(data), 97):
        damaged = bytearray(data)
        damaged[place] ^= 4
        with pytest.raises(sg.PayloadError):
            codec.decode(bytes(damaged), like=values)
    with pytest.raises(sg.PayloadError, match=r"expected uniform rate 3 .* got uniform rate 2"):
        Codec.parse("rate3").decode(data, like=values)
    with pytest.raises(sg.PayloadError, match=r"expected uniform 8 bits .* got uniform rate 2"):
        Codec.parse("uniform8").decode(data, like=values)
    with pytest.raises(sg.PayloadError, match=r"expected 2 pieces, got 3"):
        codec.decode(data, like=[values["weight"], values["half"]])


def test_misuse_is_refused():
    codec = Codec.parse("rate2", error_feedback=True)
    codec.encode([torch.ones(5000)])
    with pytest.raises(ValueError, match=r"\[Codec.encode\] expected tensors of the same sizes"):
        codec.encode([torch.ones(6000)])
    with pytest.raises(ValueError, match=r"\[Codec.encode\] expected as many tensors as before"):
        codec.encode([torch.ones(5000)] * 2)
    with pytest.raises(ValueError, match=r"\[Codec.encode\] expected tensors of type float32"):
        codec.encode([torch.ones(5000, dtype=torch.int64)])
    with pytest.raises(TypeError, match=r"\[Codec.encode\] expected a tensor, or a list or dict"):
        codec.encode("text")
    with pytest.raises(TypeError, match=r"\[Codec.decode\] expected bytes"):
        codec.decode(3, like=[torch.ones(5000)])
    with pytest.raises(ValueError, match=r"\[Codec.load_state_dict\] expected a state"):
        codec.load_state_dict({})
    for calls in ("a", -1, True, 2**70):
        with pytest.raises(ValueError, match=r"\[Codec.load_state_dict\] expected calls to be"):
            codec.load_state_dict({"calls": calls, "residuals": []})
    with pytest.raises(TypeError, match=r"\[Codec.load_state_dict\] expected .* list"):
        codec.load_state_dict({"calls": 0, "residuals": [1]})
