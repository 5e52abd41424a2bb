"""Sending the reason for a failure to all ranks before this one stops."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence

from .messages import Header, Link, header_alone


def say_to_all(links: Sequence[dict[int, Link]], header: Header, seconds: float) -> None:
    """Sends ``header`` to every peer, in each of its streams, since a peer waits in one of them.
    Returns when each peer has received it in one stream, or is gone, at the latest after
    ``seconds``."""
    heard = {peer: threading.Event() for of_stage in links for peer in of_stage}

    def wait_until_heard(peer: int, work) -> None:
        with contextlib.suppress(RuntimeError):  # gone
            work.wait()
        heard[peer].set()

    for of_stage in links:
        for peer, link in of_stage.items():
            try:
                work = link.send(header_alone(header))
            except RuntimeError:  # gone
                heard[peer].set()
                continue
            threading.Thread(target=wait_until_heard, args=(peer, work), daemon=True).start()
    until = time.monotonic() + seconds
    for event in heard.values():
        event.wait(max(0.0, until - time.monotonic()))
