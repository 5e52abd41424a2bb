"""What an exchange of gradients costs, on paper. Nothing here measures; docs/distributed.md
derives it.

A link carries ``bandwidth`` bits per second in each direction, of every rank, at the same time; a
message takes ``latency`` seconds on top. n ranks, V values that are coded, c bytes per coded value.
Small tensors travel as they are, in the same messages.

  plain all-reduce of b bytes, as a ring     2 (n-1)/n b 8/bandwidth + 2 (n-1) latency
  coded, in two phases of direct messages:
    send every peer its shard                (n-1)/n c V 8/bandwidth + (n-1) latency
    meanwhile code it, decode and add        (n-1)/n V (encode + add)
    send the sum of one's shard to all       (n-1)/n c V 8/bandwidth + (n-1) latency
    meanwhile code it and decode the others  V/n encode + (n-1)/n V decode

  coded, each rank to all (topk), in one     (n-1) c V 8/bandwidth + (n-1) latency
    meanwhile code, decode and add           V encode + (n-1) V add

Each phase takes the longer of its wire and its work, for pieces are on the wire while the next are
coded, and a share of the shorter that nothing covers: the first piece has to be coded before
anything can be sent, the last one to arrive before it can be decoded.
"""

from __future__ import annotations

from dataclasses import dataclass

# What a phase pays of the shorter of wire and work on top of the longer; 1: no overlap. From
# measured steps: docs/distributed.md has them beside the predictions.
UNCOVERED = 0.5


@dataclass(frozen=True)
class Link:
    """bandwidth: bits per second, each direction of each rank; latency: seconds per message."""

    bandwidth: float
    latency: float

    def seconds(self, num_bytes: float) -> float:
        return 8 * num_bytes / self.bandwidth


@dataclass(frozen=True)
class Speed:
    """What one rank needs for a coded value: bytes, and seconds of work. ``to_all``: every rank
    sends all that it has to all others, as under topk, and the sum is not sent again."""

    bytes_per_value: float
    encode: float
    add: float
    decode: float
    to_all: bool = False


def plain_seconds(num_bytes: float, ranks: int, link: Link) -> float:
    """An all-reduce as a ring, in which every rank sends and receives all the time."""
    passes = 2 * (ranks - 1)
    return passes * (link.seconds(num_bytes / ranks) + link.latency)


def sent_bytes(num_bytes: float, ranks: int, to_all: bool = False) -> float:
    """By a rank, of ``num_bytes`` that are all-reduced."""
    return (ranks - 1) * num_bytes * (1 if to_all else 2 / ranks)


def overlapped(wire: float, work: float) -> float:
    """Seconds of a phase in which some pieces are sent while others are coded."""
    return max(wire, work) + UNCOVERED * min(wire, work)


def coded_seconds(
    values: float, speed: Speed, ranks: int, link: Link, plain_bytes: float = 0
) -> float:
    """For ``values`` values, and ``plain_bytes`` that travel with them."""
    if speed.to_all:
        wire = link.seconds((ranks - 1) * (values * speed.bytes_per_value + plain_bytes))
        work = values * (speed.encode + (ranks - 1) * speed.add)
        return overlapped(wire, work) + (ranks - 1) * link.latency
    others = (ranks - 1) / ranks * values
    plain = (ranks - 1) / ranks * plain_bytes
    wire = link.seconds(others * speed.bytes_per_value + plain)
    scatter = overlapped(wire, others * (speed.encode + speed.add))
    gather = overlapped(wire, values / ranks * speed.encode + others * speed.decode)
    return scatter + gather + 2 * (ranks - 1) * link.latency


def break_even(ours, plain, latency: float, low: float = 1e3, high: float = 1e15) -> float:
    """The bandwidth below which ``ours(link)`` is quicker than ``plain(link)``.

    0 if it never is, inf if it always is. Both are linear or convex in 1/bandwidth and ours sends
    less, so there is one crossing; it is found to a millionth by halving the logarithm.
    """

    def pays(bandwidth: float) -> bool:
        link = Link(bandwidth, latency)
        return ours(link) < plain(link)

    if not pays(low):
        return 0.0
    if pays(high):
        return float("inf")
    while high / low > 1 + 1e-6:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low
