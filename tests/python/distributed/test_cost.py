"""The formula of docs/distributed.md against cases that were computed by hand."""

import math

import pytest

from slimgrad.distributed.cost import (
    UNCOVERED,
    Link,
    Speed,
    break_even,
    coded_seconds,
    overlapped,
    plain_seconds,
    sent_bytes,
)
from slimgrad.distributed.link import as_bandwidth, bandwidth_text

GIGABIT = Link(1e9, 0.0)


def test_a_plain_ring_of_two_sends_its_bytes_once():
    # 100 MB: half to the other, half of the sum back; 100 MB at 125 MB/s
    assert plain_seconds(100e6, 2, GIGABIT) == pytest.approx(0.8)
    assert sent_bytes(100e6, 2) == 100e6


def test_a_plain_ring_of_four():
    # six messages of 25 MB at 125 MB/s, and 1 ms for each of the six
    assert plain_seconds(100e6, 4, Link(1e9, 1e-3)) == pytest.approx(6 * (0.2 + 0.001))
    assert sent_bytes(100e6, 4) == 150e6


def test_coded_between_two_ranks():
    # 10 M values of one byte. A phase: 5 MB at 125 MB/s are 40 ms. Work of the first: 5 M values
    # coded at 10 ns and added at 6 ns, 80 ms; of the second: 5 M coded and decoded at 4 ns, 70 ms.
    speed = Speed(1.0, 10e-9, 6e-9, 4e-9)
    by_hand = (0.08 + UNCOVERED * 0.04) + (0.07 + UNCOVERED * 0.04)
    assert coded_seconds(10e6, speed, 2, GIGABIT) == pytest.approx(by_hand)


def test_coded_between_four_ranks_on_a_slow_link():
    # A phase: 7.5 M values of half a byte at 1 MB/s are 3.75 s; three messages of 0.1 s each.
    # First: 7.5 M coded at 10 ns, added at 6 ns, 0.12 s; second: 2.5 M coded, 7.5 M decoded, 0.055.
    speed = Speed(0.5, 10e-9, 6e-9, 4e-9)
    by_hand = (3.75 + UNCOVERED * 0.12) + (3.75 + UNCOVERED * 0.055) + 6 * 0.1
    assert coded_seconds(10e6, speed, 4, Link(8e6, 0.1)) == pytest.approx(by_hand)


def test_coded_by_each_rank_for_all():
    # 10 M values of 1/50 of a byte to each of three: 0.6 MB at 1 MB/s, and 0.1 s for each. Coded
    # once at 1 ns, added thrice at 0.5 ns.
    speed = Speed(0.02, 1e-9, 0.5e-9, 0.5e-9, to_all=True)
    by_hand = 0.6 + UNCOVERED * 0.025 + 3 * 0.1
    assert coded_seconds(10e6, speed, 4, Link(8e6, 0.1)) == pytest.approx(by_hand)
    assert sent_bytes(200e3, 4, to_all=True) == 600e3
    # Between two it is the same bytes, once.
    assert sent_bytes(1.0, 2, to_all=True) == sent_bytes(1.0, 2)


def test_small_tensors_travel_in_the_same_messages():
    # Nothing to work on, 1 MB as it is: half of it in each phase, at 125 MB/s; one message a phase.
    nothing = Speed(1.0, 0.0, 0.0, 0.0)
    assert coded_seconds(0, nothing, 2, Link(1e9, 1e-3), 1e6) == pytest.approx(2 * (0.004 + 0.001))


def test_a_phase_is_no_shorter_than_its_longer_part_and_no_longer_than_both():
    for wire, work in [(1.0, 3.0), (3.0, 1.0), (2.0, 2.0), (0.0, 1.0)]:
        assert max(wire, work) <= overlapped(wire, work) <= wire + work


@pytest.mark.parametrize("ranks", [2, 3, 8, 64, 1024])
def test_more_of_anything_takes_longer(ranks):
    speed, link = Speed(0.5, 5e-9, 5e-9, 3e-9), Link(1e9, 1e-4)

    def seconds(values=1e7, bits=0.5, encode=5e-9, bandwidth=1e9, latency=1e-4):
        return coded_seconds(
            values, Speed(bits, encode, 5e-9, 3e-9), ranks, Link(bandwidth, latency)
        )

    base = coded_seconds(1e7, speed, ranks, link)
    assert seconds() == base
    assert seconds(values=2e7) > base
    assert seconds(bits=1.0) > base
    assert seconds(encode=1e-8) > base
    assert seconds(bandwidth=5e8) > base
    assert seconds(latency=1e-3) > base


def test_what_a_rank_sends_does_not_grow_with_the_ranks_beyond_twice_its_bytes():
    sent = [sent_bytes(1.0, ranks) for ranks in (1, 2, 8, 1024)]
    assert sent == sorted(sent)
    assert sent[0] == 0
    assert sent[-1] < 2


def test_the_bandwidth_that_breaks_even_is_where_both_take_as_long():
    # Ours: 0.2 s of work and a tenth of the bytes of plain. 8e6/b = 0.2 + 8e5/b: b = 36 Mbit/s.
    found = break_even(
        lambda link: 0.2 + link.seconds(1e5), lambda link: link.seconds(1e6), latency=0
    )
    assert found == pytest.approx(36e6, rel=1e-5)


def test_what_never_and_what_always_pays():
    def plain(link):
        return link.seconds(1e6)

    assert break_even(lambda link: link.seconds(2e6), plain, 0) == 0
    assert break_even(lambda link: link.seconds(5e5), plain, 0) == math.inf


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("1 Gbit/s", 1e9),
        ("100mbit", 1e8),
        ("25 Gb/s", 25e9),
        ("2.5e3 kbit/s", 2.5e6),
        ("10gbps", 1e10),
        (56000, 56e3),
    ],
)
def test_bandwidths_as_people_write_them(text, bits):
    assert as_bandwidth(text, "estimate") == pytest.approx(bits)


@pytest.mark.parametrize("bad", ["fast", "", "1 GB", "1 GB/s", "-1 Gbit/s", "1..2 Gbit/s", "0"])
def test_what_is_no_bandwidth_is_shown(bad):
    with pytest.raises(
        ValueError, match=r"^\[estimate\] expected bandwidth in bits per second"
    ) as e:
        as_bandwidth(bad, "estimate")
    assert repr(bad) in str(e.value)


@pytest.mark.parametrize("bad", [0, -1.0, math.inf, math.nan])
def test_a_bandwidth_is_positive(bad):
    with pytest.raises(ValueError, match=r"^\[estimate\] expected bandwidth to be positive"):
        as_bandwidth(bad, "estimate")


def test_bandwidths_are_written_as_people_write_them():
    assert bandwidth_text(1e9) == "1 Gbit/s"
    assert bandwidth_text(3.14e7) == "31.4 Mbit/s"
    assert bandwidth_text(5) == "5 bit/s"
    assert bandwidth_text(math.inf) == "any"
