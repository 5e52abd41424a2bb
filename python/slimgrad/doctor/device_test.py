"""Every kernel of src/device on a device: its bits against the CPU's, and its speed.

Which kernels run is recorded where they are launched, and compared with the library's list of all:
one without a check is a failure.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from .._library import ops
from .checks import HERE, Check, Where, device_checks
from .self_test import one_thread, outcome_of

COPIES = 5  # of which the fastest counts
TIMED_VALUES = 1 << 25  # caches of GPUs hold less


@dataclass
class Speed:
    """Of all launches of a kernel on large tensors: bytes as its description says."""

    launches: int = 0
    bytes: int = 0
    milliseconds: float = 0.0

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return 1e3 * self.bytes / self.milliseconds if self.milliseconds else 0.0


@dataclass
class DeviceOutcome:
    device: str
    facts: dict[str, str]
    checks: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    kernels: int = 0  # in the library's list
    not_run: list[str] = field(default_factory=list)
    copy_bandwidth: float = 0.0  # of torch's copy_, read and written
    speeds: dict[str, Speed] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.failed and not self.not_run


def all_kernels() -> list[str]:
    return ops._device_kernel_costs(0, 8, 1)[0]


@contextmanager
def recorded() -> Iterator[list[tuple[str, int, float]]]:
    """The kernels that are launched inside, afterwards: names, bytes, milliseconds."""
    launches: list[tuple[str, int, float]] = []
    ops._record_launches(True)
    try:
        yield launches
    finally:
        names, read, written, milliseconds = ops._record_launches(False)
        moved = (r + w for r, w in zip(read, written, strict=True))
        launches += zip(names, moved, milliseconds, strict=True)


def device_facts(device: torch.device) -> dict[str, str]:
    """What a bug report needs to say of a device."""
    if device.type != "cuda" or torch.version.cuda is None:
        return {"device": str(device)}
    of = torch.cuda.get_device_properties(device)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30)
        driver = (done.stdout.split() or ["unknown"])[0]
    except (OSError, subprocess.TimeoutExpired):
        driver = "unknown"
    return {
        "device": f"{device}, {of.name}, {of.total_memory / 2**30:.0f} GiB",
        "architecture": f"sm_{of.major}{of.minor}, {of.multi_processor_count} multiprocessors",
        "driver": driver,
    }


def copy_bandwidth(device: torch.device, num_values: int) -> float:
    """Bytes a second that torch's own copy reads and writes: what kernels are measured against."""
    x = torch.ones(num_values, device=device)
    y = torch.empty_like(x)
    fastest = float("inf")
    for _ in range(COPIES + 1):
        begin, end = (torch.Event(device, enable_timing=True) for _ in range(2))
        begin.record()
        y.copy_(x)
        end.record()
        end.synchronize()
        fastest = min(fastest, begin.elapsed_time(end))
    return 1e3 * 2 * x.nbytes / fastest if fastest > 0 else 0.0


def device_test(
    device: torch.device,
    num_values: int = TIMED_VALUES,
    selection: Iterable[Check] | None = None,
) -> DeviceOutcome:
    """num_values: of the tensors on which kernels are timed; 0: none are."""
    selection = list(device_checks() if selection is None else selection)
    seen: set[str] = set()

    def on_device(check: Check) -> list[torch.Tensor]:
        with recorded() as launches:
            results = check.run(where=Where(device))
        seen.update(name for name, _, _ in launches)
        return [result.cpu() for result in results]

    with one_thread():
        found = outcome_of(str(device), selection, on_device, lambda check: check.run(where=HERE))
        outcome = DeviceOutcome(
            found.kernels, device_facts(device), found.checks, found.failed, len(all_kernels())
        )
        outcome.not_run = sorted(set(all_kernels()) - seen)
        if num_values > 0 and outcome.ok:
            outcome.copy_bandwidth = copy_bandwidth(device, num_values)
            outcome.speeds = _speeds(device, num_values, selection)
    return outcome


def _speeds(device: torch.device, num_values: int, selection: list[Check]) -> dict[str, Speed]:
    speeds: dict[str, Speed] = {}
    where = Where(device, num_values)
    for check in selection:
        check.run(where=where)  # once before: memory is asked for, code comes into caches
        with recorded() as launches:
            check.run(where=where)
        for name, moved, milliseconds in launches:
            speed = speeds.setdefault(name, Speed())
            speed.launches += 1
            speed.bytes += moved
            speed.milliseconds += milliseconds
    return speeds
