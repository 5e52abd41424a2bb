"""The engines of this process's groups, from their first exchange to the end of the process."""

from __future__ import annotations

import atexit
import threading

import torch.distributed as dist

from .engine import Engine

# How long the end of a process waits for the threads of its engines.
_END_SECONDS = 10.0

_engines: dict[str, Engine] = {}
_engines_lock = threading.Lock()


def engine_of(group: dist.ProcessGroup | None, op: str) -> Engine:
    """The engine of a group, made on first use."""
    group = group if group is not None else dist.group.WORLD
    if group is None:
        raise ValueError(
            f"[{op}] expected torch.distributed.init_process_group() to have been called"
        )
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError(f"[{op}] expected a group that this rank belongs to, got another")
    with _engines_lock:
        engine = _engines.get(group.group_name)
        if engine is None or engine.group is not group:
            if engine is not None:
                engine.close()
            engine = _engines[group.group_name] = Engine(group)
        return engine


@atexit.register
def close_engines() -> None:
    """Ends the threads and releases the groups before the interpreter shuts down. A reference to a
    group keeps Gloo's threads alive; a thread that takes the GIL during shutdown is ended inside a
    destructor, and the process ends with "terminate called without an active exception" after a
    successful training."""
    with _engines_lock:
        engines = list(_engines.values())
        _engines.clear()
    for engine in engines:
        engine.close(_END_SECONDS / len(engines))
