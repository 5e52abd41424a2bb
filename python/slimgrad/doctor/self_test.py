"""Every kernel of every instruction set that runs here, against the scalar one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from .._library import ops
from .checks import Check, checks

SCALAR = "scalar"


@dataclass
class Outcome:
    """The differences of one instruction set from scalar."""

    kernels: str
    checks: int = 0
    failed: dict[str, str] = field(default_factory=dict)


@contextmanager
def kernels_restored() -> Iterator[None]:
    """What was selected before is selected afterwards. Meanwhile one thread does the work: it is
    little, and on a busy machine threads would wait for each other."""
    selected, usable, _ = ops._kernel_sets()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
        ops._select_kernel_set("best" if usable.index(selected) == 1 else selected)


def _difference(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> str | None:
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype} {tuple(got.shape)} instead of {want.dtype} {tuple(want.shape)}"
    if tolerance == 0:
        bits = (t.contiguous().reshape(-1).view(torch.uint8) for t in (got, want))
        wrong = int(torch.ne(*bits).count_nonzero())
        return f"{wrong} bytes of {want.nbytes} differ" if wrong else None
    got, want = got.double(), want.double()
    if not torch.equal(got.isnan(), want.isnan()):
        return "NaN at other places"
    largest = float(want.nan_to_num().abs().max()) if want.numel() else 0.0
    error = float((got - want).nan_to_num().abs().max()) if want.numel() else 0.0
    return f"off by {error:.3g} of {largest:.3g}" if error > tolerance * largest else None


def _first_difference(check: Check, want: list[torch.Tensor]) -> str | None:
    got = check.run()
    if len(got) != len(want):
        return f"{len(got)} results instead of {len(want)}"
    for number, (one, other) in enumerate(zip(got, want, strict=True)):
        difference = _difference(one, other, check.tolerance)
        if difference is not None:
            return f"result {number}: {difference}"
    return None


def self_test(selection: Iterable[Check] | None = None) -> list[Outcome]:
    """REQUIRES: no other thread uses kernels meanwhile, as they are selected for the process."""
    selection = list(checks() if selection is None else selection)
    usable = ops._kernel_sets()[1]
    with kernels_restored():
        ops._select_kernel_set(SCALAR)
        outcomes, wanted = [Outcome(SCALAR)], {}
        for check in selection:
            outcomes[0].checks += 1
            try:
                wanted[check.name] = check.run()
            except Exception as error:  # whatever it is, it belongs into the report
                outcomes[0].failed[check.name] = f"{type(error).__name__}: {error}"
        for name in usable:
            if name == SCALAR:
                continue
            ops._select_kernel_set(name)
            outcome = Outcome(name)
            for check in selection:
                if check.name not in wanted:
                    continue
                outcome.checks += 1
                try:
                    difference = _first_difference(check, wanted[check.name])
                except Exception as error:
                    difference = f"{type(error).__name__}: {error}"
                if difference is not None:
                    outcome.failed[check.name] = difference
            outcomes.append(outcome)
    return outcomes
