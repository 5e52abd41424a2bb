"""What a rank that stops says to the others, and how long it stays for them to hear it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence

from .messages import Header, Link, header_alone


def say_to_all(links: Sequence[dict[int, Link]], header: Header, seconds: float) -> None:
    """To every peer, in each of its streams: who waits does so in one of them. Ends when each peer
    has heard it in one, or is gone, but no later than after so many seconds."""
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
