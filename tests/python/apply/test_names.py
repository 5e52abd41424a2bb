"""Names for readers: folding loses none, shortening confuses none."""

import pytest
from folded_names import unfold
from hypothesis import given
from hypothesis import strategies as st

from slimgrad.compression.names import fold
from slimgrad.report.naming import CUT, shorten

WORDS = st.sampled_from(
    ["a", "ab", "abc", "b", "wi", "wi_0", "wi_1", "query", "key", "0", "1", "01"]
)
NAMES = st.lists(
    st.lists(WORDS, min_size=1, max_size=4).map(".".join), min_size=1, max_size=30, unique=True
)


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["a"], ["a"]),
        ([""], ["(model)"]),
        ([], []),
        (["a", "b", "0", "1"], ["a", "b", "0-1"]),
        ([f"layer.{i}.query" for i in range(12)], ["layer.0-11.query"]),
        (["h.0.c", "h.2.c", "h.3.c"], ["h.{0,2-3}.c"]),
        (["h.10.c", "h.9.c"], ["h.9-10.c"]),
        ([f"h.{i}.{p}" for i in (0, 1) for p in "qk"], ["h.0-1.{q,k}"]),
        (["a.0.x", "a.1.y"], ["a.0.x", "a.1.y"]),
        (["head", "a.0", "a.1"], ["head", "a.0-1"]),
        ([f"b.{i}.l.{j}.d" for i in (0, 1) for j in (0, 1)], ["b.0-1.l.0-1.d"]),
    ],
)
def test_fold(names, folded):
    assert fold(names) == folded


@given(NAMES)
def test_folding_loses_no_name_and_invents_none(names):
    unfolded = [name for folded in fold(names) for name in unfold(folded)]
    assert sorted(unfolded) == sorted(names)


@given(NAMES, st.integers(1, 20))
def test_short_names_are_distinct_and_begin_as_the_long_ones(names, width):
    short = shorten(names, width)
    assert list(short) == names and len(set(short.values())) == len(names)
    for name, text in short.items():
        parts = text.replace(CUT, f"{CUT}.").removesuffix(".").split(".")
        for whole, part in zip(name.split("."), parts, strict=True):
            assert whole.startswith(part.removesuffix(CUT)) and part
            assert part.endswith(CUT) == (part != whole)  # what was cut shows it
            assert part == whole or whole not in ("0", "1")


def test_names_are_cut_as_little_as_needed():
    names = ["encoder.block.0.attention.query", "encoder.block.0.attention.key", "lm_head"]
    assert shorten(names, 31) == {name: name for name in names}
    assert (
        shorten(names, 26)["encoder.block.0.attention.query"]
        == "encod\u2026block.0.atten\u2026query"
    )
    assert shorten(names, 27)["lm_head"] == "lm_head"
    assert shorten(names, 12)["encoder.block.0.attention.key"] == "e\u2026b\u20260.a\u2026key"
    assert shorten(["", "a"], 5) == {"": "(model)", "a": "a"}
