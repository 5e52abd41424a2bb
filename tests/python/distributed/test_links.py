"""Namespaces for benchmarks: made, shaped, and gone afterwards, whatever happened."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))  # bench is not installed

from bench.links import Place, joined, set_rate, why_not

needs_root = pytest.mark.skipif(bool(why_not()), reason=f"no namespaces here: {why_not()}")


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def ours() -> list[str]:
    mine = f"slimgrad-bench-{os.getpid()}-"
    return [line for line in said("ip", "netns", "list").splitlines() if line.startswith(mine)]


@needs_root
def test_ranks_reach_each_other_through_links_of_a_rate():
    with joined(3) as places:
        assert len(ours()) == 4  # and a switch
        set_rate(places, "100mbit")
        for place in places:
            inside = said("tc", "-n", place.namespace, "qdisc", "show", "dev", place.interface)
            switch = said("tc", "-n", place.switch, "qdisc", "show", "dev", place.port)
            assert "tbf" in inside
            assert "rate 100Mbit" in inside
            assert "rate 100Mbit" in switch
            # No way out: nothing but the link's own network.
            routes = said("ip", "-n", place.namespace, "route").splitlines()
            assert [route.split()[0] for route in routes] == ["192.0.2.0/24"]
        counted = "from bench.links import Place; print(Place('', 'card').sent_bytes())"
        program = [sys.executable, "-c", counted]
        root = Path(__file__).parents[3]
        inside = subprocess.run(
            places[0].command(program), cwd=root, capture_output=True, check=True
        )
        assert int(inside.stdout) >= 0
        set_rate(places, None)
        set_rate(places, None)  # nothing left to take away is fine
        card = said("tc", "-n", places[0].namespace, "qdisc", "show", "dev", "card")
        assert "tbf" not in card
    assert not ours()


@needs_root
@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, ValueError])
def test_nothing_is_left_whatever_ends_it(end):
    with pytest.raises(end), joined(2):
        raise end
    assert not ours()


@needs_root
def test_a_rate_that_tc_does_not_know_is_an_error_with_its_words():
    with pytest.raises(OSError, match="tc -n"), joined(1) as places:
        set_rate(places, "fast")
    assert not ours()


def test_loopback_can_be_asked_for():
    with joined(2, loopback=True) as places:
        assert places == [Place("127.0.0.1", "lo")] * 2
        assert places[0].command(["true"]) == ["true"]
        set_rate(places, "1gbit")  # cannot be shaped, and is not
        assert places[0].sent_bytes() >= 0
    with pytest.raises(OSError, match="no interface nowhere"):
        Place("", "nowhere").sent_bytes()
