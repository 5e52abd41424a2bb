"""A small network for benchmarks: one namespace a rank, all plugged into a switch, shaped by tc.

    with joined(4) as places:          # places[0].address, .interface, .command(argv)
        set_rate(places, "1gbit")      # or None: as fast as the kernel copies

Every rank has one full-duplex link to a bridge; a token bucket at both of its ends limits what the
rank sends and what it receives, as a network card and a switch's port would. The addresses are of
192.0.2.0/24, which is kept for documents: no namespace here has a route to anywhere else. All of it
is removed on leaving, also by Ctrl-C or SIGTERM; what a killed benchmark left behind is removed by
the next one. Without the right to make namespaces the ranks meet on loopback, which cannot be
shaped.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "slimgrad-bench"


@dataclass(frozen=True)
class Place:
    """Where a rank lives."""

    address: str
    interface: str
    namespace: str = ""  # none: loopback
    switch: str = ""
    port: str = ""

    def command(self, argv: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *argv] if self.namespace else argv

    def sent_bytes(self) -> int:
        """What this interface sent since it exists; for the process that lives here."""
        for line in Path("/proc/net/dev").read_text().splitlines():
            name, _, counts = line.partition(":")
            if name.strip() == self.interface:
                return int(counts.split()[8])
        raise OSError(f"no interface {self.interface} in /proc/net/dev")


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def why_not() -> str:
    """Why there are no namespaces to be had, or nothing."""
    if os.geteuid() != 0:
        return "not run as root"
    for program in ("ip", "tc"):
        if not shutil.which(program):
            return f"no {program} (Debian: iproute2)"
    name = f"{_PREFIX}-{os.getpid()}-try"
    try:
        _do("ip", "netns", "add", name)
        try:
            _do("ip", "-n", name, "link", "add", "name", "a", "type", "veth", "peer", "name", "b")
            _do("ip", "-n", name, "link", "add", "name", "c", "type", "bridge")
            _do("tc", "-n", name, *_bucket("a", "1gbit"))
        finally:
            _do("ip", "netns", "del", name)
    except OSError as error:
        return str(error)
    return ""


def _bucket(interface: str, rate: str) -> list[str]:
    """A burst of two of TCP's largest segments; a queue that is never the reason for a loss."""
    shape = ["tbf", "rate", rate, "burst", "128kb", "limit", "16mb"]
    return ["qdisc", "replace", "dev", interface, "root", *shape]


def _remove(owner: str) -> None:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    for name in re.findall(rf"^({_PREFIX}-{owner}-\w+)", listed.stdout, re.MULTILINE):
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _remove_leftovers() -> None:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    for owner in set(re.findall(rf"^{_PREFIX}-(\d+)-\w+", listed.stdout, re.MULTILINE)):
        if not Path("/proc", owner).exists():
            _remove(owner)


def _stop(number, frame):
    raise SystemExit(128 + number)


@contextlib.contextmanager
def joined(ranks: int, loopback: bool = False) -> Iterator[list[Place]]:
    """Namespaces for `ranks` ranks, or loopback, by choice or because there are none to be had."""
    if loopback or why_not():
        yield [Place("127.0.0.1", "lo")] * ranks
        return
    _remove_leftovers()
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield _join(ranks)
    finally:
        _remove(str(os.getpid()))  # links, bridge and buckets go with their namespaces
        signal.signal(signal.SIGTERM, before)


def _join(ranks: int) -> list[Place]:
    mine = f"{_PREFIX}-{os.getpid()}"
    switch = f"{mine}-switch"
    _do("ip", "netns", "add", switch)
    _do("ip", "-n", switch, "link", "add", "name", "bridge", "type", "bridge")
    _do("ip", "-n", switch, "link", "set", "bridge", "up")
    places = []
    for rank in range(ranks):
        place = Place(f"192.0.2.{rank + 1}", "card", f"{mine}-rank{rank}", switch, f"port{rank}")
        _do("ip", "netns", "add", place.namespace)
        link = ["link", "add", "name", place.port, "type", "veth", "peer", "name", place.interface]
        _do("ip", "-n", switch, *link, "netns", place.namespace)
        _do("ip", "-n", switch, "link", "set", place.port, "master", "bridge", "up")
        inside = ["ip", "-n", place.namespace]
        _do(*inside, "address", "add", f"{place.address}/24", "dev", place.interface)
        _do(*inside, "link", "set", place.interface, "up")
        _do(*inside, "link", "set", "lo", "up")
        places.append(place)
    return places


def set_rate(places: list[Place], rate: str | None) -> None:
    """`rate` as tc writes it, such as "100mbit", for both directions of every link."""
    for place in places:
        ends = [(place.namespace, place.interface), (place.switch, place.port)]
        for namespace, interface in ends if place.namespace else []:
            if rate is None:
                command = ["tc", "-n", namespace, "qdisc", "del", "dev", interface, "root"]
                subprocess.run(command, capture_output=True, check=False)  # none there is fine
            else:
                _do("tc", "-n", namespace, *_bucket(interface, rate))
