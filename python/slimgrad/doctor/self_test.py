"""Every kernel of every instruction set that runs here, against the scalar one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
def one_thread() -> Iterator[None]:
    """Inside, one thread does the work: it is little, and on a busy machine threads would wait for
    each other."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


@contextmanager
def kernels_restored() -> Iterator[None]:
    """What was selected before is selected afterwards."""
    selected, usable, _ = ops._kernel_sets()
    try:
        yield
    finally:
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


def _first_difference(
    got: list[torch.Tensor], want: list[torch.Tensor], tolerance: float
) -> str | None:
    if len(got) != len(want):
        return f"{len(got)} results instead of {len(want)}"
    for number, (one, other) in enumerate(zip(got, want, strict=True)):
        difference = _difference(one, other, tolerance)
        if difference is not None:
            return f"result {number}: {difference}"
    return None


def outcome_of(
    name: str,
    selection: Iterable[Check],
    run: Callable[[Check], list[torch.Tensor]],
    wanted: Callable[[Check], list[torch.Tensor]] | None = None,
) -> Outcome:
    """Of running checks, and of comparing what they give with what is wanted."""
    outcome = Outcome(name)
    for check in selection:
        outcome.checks += 1
        try:
            got = run(check)
            difference = wanted and _first_difference(got, wanted(check), check.tolerance)
        except Exception as error:  # whatever it is, it belongs into the report
            difference = f"{type(error).__name__}: {error}"
        if difference is not None:
            outcome.failed[check.name] = difference
    return outcome


def self_test(selection: Iterable[Check] | None = None) -> list[Outcome]:
    """REQUIRES: no other thread uses kernels meanwhile, as they are selected for the process."""
    selection = list(checks() if selection is None else selection)
    scalar_results: dict[str, list[torch.Tensor]] = {}

    def kept(check: Check) -> list[torch.Tensor]:
        return scalar_results.setdefault(check.name, check.run())

    usable = ops._kernel_sets()[1]
    with one_thread(), kernels_restored():
        ops._select_kernel_set(SCALAR)
        outcomes = [outcome_of(SCALAR, selection, kept)]
        selection = [check for check in selection if check.name in scalar_results]
        for name in usable:
            if name == SCALAR:
                continue
            ops._select_kernel_set(name)
            outcomes.append(
                outcome_of(
                    name, selection, lambda check: check.run(), lambda c: scalar_results[c.name]
                )
            )
    return outcomes
