"""What a Codec says, and what it refuses."""

import pytest

import slimgrad as sg
from slimgrad.distributed import CODECS, Codec


def test_every_name_parses_to_itself():
    for name in CODECS:
        assert Codec.parse(name).name == name
    assert {"lossless", "fp8", "fp6", "fp4", "uniform8", "uniform2", "packed8", "packed4"} <= {
        *CODECS
    }


def test_names_of_floats_are_the_best_splits_for_gradients():
    # Written out as well: these are the bytes on the wire, and what was measured under the names.
    measured = {8: "1-5-2", 7: "1-4-2", 6: "1-4-1", 5: "1-4-0", 4: "1-3-0", 3: "1-2-0", 2: "1-1-0"}
    for bits, format in measured.items():
        assert Codec.parse(f"fp{bits}").format == format == str(sg.best_format(bits, (1, 5)))


def test_a_format_is_a_codec():
    codec = Codec.parse("1-4-3", seed=3)
    assert (codec.kind, codec.format, codec.seed, codec.name) == ("float", "1-4-3", 3, "1-4-3")
    assert Codec.parse("1-5-2") == Codec.parse("fp8")


def test_a_rate_is_a_codec():
    for name, rate in {"rate2": 2, "rate1.5": 1.5, "rate0.75": 0.75, "rate16": 16}.items():
        codec = Codec.parse(name)
        assert (codec.kind, codec.rate, codec.name) == ("uniform", rate, name)
    assert Codec.parse("rate2.50").name == "rate2.5"
    assert Codec.parse(Codec.parse("rate0.0001").name).rate == 0.0001
    assert Codec(rate=2) == Codec.parse("rate2") != Codec.parse("uniform8")
    for name in ("rate", "rate0", "rate17", "rate-1", "rate1e1", "ratex", "rate2 "):
        with pytest.raises(ValueError, match=r"\[Codec\] expected"):
            Codec.parse(name)


def test_topk_is_a_codec_that_feeds_back_what_it_drops():
    codec = Codec.parse("topk")
    assert (codec.kind, codec.k, codec.of, codec.bits) == ("topk", 64, 4096, 2)
    assert codec.error_feedback and not Codec.parse("topk", error_feedback=False).error_feedback
    assert Codec(kind="topk", bits=2) == codec
    assert Codec.parse("topk32").k == 32 and Codec.parse("topk32").name == "topk32"
    assert not Codec().error_feedback
    for name in ("topk0", "topk5000", "topk-1", "topk ", "topk2x"):
        with pytest.raises(ValueError, match=r"\[Codec\] expected"):
            Codec.parse(name)


def test_packed_is_uniform_without_a_coder():
    packed = Codec.parse("packed5")
    assert (packed.kind, packed.bits, packed.coder) == ("uniform", 5, "none")


def test_rounding_is_unbiased_unless_what_it_loses_is_fed_back():
    assert all(Codec.parse(name).rounding == "stochastic" for name in CODECS if name != "topk")
    assert Codec.parse("uniform4", error_feedback=True).rounding == "nearest"
    explicit = Codec.parse("uniform4", error_feedback=True, rounding="stochastic")
    assert explicit.rounding == "stochastic"
    with pytest.raises(ValueError, match=r"expected error_feedback=True with rounding='nearest'"):
        Codec.parse("uniform4", rounding="nearest")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"kind": "zip"}, r"\[Codec\] expected kind to be one of lossless .* got 'zip'"),
        ({"bits": 9}, r"expected 2 to 8 bits, got 9"),
        ({"rate": 17}, r"expected a rate above 0 and of at most 16 bits a value, got 17"),
        ({"rate": 2, "kind": "float"}, r"expected kind uniform with a rate, got float"),
        ({"rate": 2, "coder": "none"}, r"expected coder rans with a rate, got none"),
        ({"rate": "two"}, r"expected rate to be a number"),
        ({"kind": "topk"}, r"expected 1 to 4 bits with topk, got 8"),
        ({"kind": "topk", "bits": 2, "of": 100}, r"expected of to be a power of two .* got 100"),
        ({"kind": "topk", "bits": 2, "k": 65, "of": 64}, r"expected k from 1 to of, .* got 65"),
        ({"format": "1-9-9"}, r"\[FloatFormat\] expected"),
        ({"coder": "zip"}, r"expected coder to be one of rans huffman none, got 'zip'"),
        ({"model": "cauchy"}, r"expected model to be one of counted .* got 'cauchy'"),
        ({"kind": "float", "model": "gennorm"}, r"expected model counted for all kinds but"),
        ({"kind": "lossless", "coder": "none"}, r"expected a coder for all but uniform and float"),
        ({"coder": "none", "model": "gennorm"}, r"expected a coder for all but"),
        ({"survivors": "all"}, r"expected survivors to be one of"),
        ({"sparsity": 1.0}, r"expected sparsity in \[0, 1\), got 1"),
        ({"block_log2": 30}, r"expected block_log2 from 12 to 20, got 30"),
        ({"rounding": "up"}, r"\[Codec\] expected rounding to be one of"),
        ({"kind": "pruned", "error_feedback": True}, r"expected error_feedback=False with pruning"),
        ({"seed": 0.5}, r"expected seed to be a whole number, got 0.5"),
        ({"min_elements": -1}, r"expected min_elements to be a whole number of at least 0, got -1"),
    ],
)
def test_refusals_say_what_was_expected(settings, message):
    with pytest.raises(ValueError, match=message):
        Codec(**settings)


def test_unknown_names_are_refused_with_the_known():
    for name in ("uniform9", "packed3", "int8", "fp9", "fp1", "1-9-9", ""):
        with pytest.raises(ValueError, match=r"\[Codec\] expected one of lossless, fp8, .* format"):
            Codec.parse(name)
    with pytest.raises(TypeError, match=r"expected a Codec or one of .* got int"):
        sg.distributed.codec.as_codec(8, "all_reduce")
