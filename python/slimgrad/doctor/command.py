"""The command: what it prints, and its exit status."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TextIO

import torch

from .device_test import TIMED_VALUES, DeviceOutcome, device_test
from .facts import all_facts, notes, problems
from .self_test import Outcome, self_test

ABOUT = "what is installed, what this machine has, and whether every kernel does what it should"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.add_argument(
        "--device",
        help="also run every device kernel there (cuda, cuda:1), compare its bits with the CPU's, "
        "and measure its bandwidth; nothing else should run on the device",
    )
    parser.add_argument(
        "--values",
        type=int,
        default=TIMED_VALUES,
        metavar="N",
        help="values of the tensors that are timed there (default: %(default)s; 0: none)",
    )


def wants_colours(stream: TextIO) -> bool:
    """As the program decides it (program/colours.h)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return stream.isatty()


def _words(facts: dict[str, Any]) -> list[tuple[str, str]]:
    of, cpu, threads, gpu = (facts[k] for k in ("versions", "kernels", "threads", "gpu"))
    others = [name for name in cpu["compiled"] if name not in cpu["usable"]]
    abi = "C++11" if of["cxx11_abi"] else "before C++11"
    device = f"CUDA {gpu['torch_cuda']}" if gpu["torch_cuda"] else f"HIP {gpu['torch_hip']}"
    built = device if gpu["torch_cuda"] or gpu["torch_hip"] else "for the CPU alone"
    with_or_without = "with" if gpu["kernels_built_in"] else "without"
    return [
        ("slimgrad", f"{of['slimgrad']}, built for torch {of['built_for_torch']}"),
        ("torch", f"{of['torch']}, built {built}"),
        (
            "python",
            f"{of['python']}, numpy {of['numpy']}, plotly {of['plotly'] or 'not installed'}",
        ),
        ("system", of["system"]),
        ("compiler", f"{of['compiler']}, std::string of the {abi} ABI"),
        ("processor", cpu["processor"]),
        ("kernels", f"{cpu['selected']} in use; also {_others(cpu)}"),
        ("not here", ", ".join(others) or "nothing: the processor has all that were compiled"),
        ("threads", f"{threads['torch']} of torch, {threads['processors']} processors"),
        ("huge pages", f"{facts['huge_pages']} (transparent_hugepage)"),
        ("gpu", f"{', '.join(gpu['devices']) or 'none'}; built {with_or_without} device kernels"),
        ("programs", ", ".join(f"{k} {v or 'missing'}" for k, v in facts["programs"].items())),
    ]


def _others(cpu: dict[str, Any]) -> str:
    return ", ".join(name for name in cpu["usable"] if name != cpu["selected"])


def _device_lines(of: DeviceOutcome, coloured: Callable[[int, str], str]) -> list[str]:
    lines = [f"{name:<11} {value}" for name, value in of.facts.items()]
    good = f"{of.checks - len(of.failed)} of {of.checks}"
    ran = f"{of.kernels - len(of.not_run)} of {of.kernels}"
    mark = coloured(32, "ok") if of.ok else coloured(31, "FAILED")
    lines.append(
        f"{'self-test':<11} {of.device}: {good} checks have the CPU's bits, {ran} kernels ran: "
        f"{mark}"
    )
    lines += [f"{'':<11}   {name}: {why}" for name, why in of.failed.items()]
    lines += [f"{'':<11}   {name}: no check ran it" for name in of.not_run]
    if of.speeds:
        lines += [
            f"{'copy':<11} {_rate(of.copy_bandwidth)} GB/s, read and written by torch's copy_"
        ]
        lines += ["", f"{'kernel':<32}{'GB/s':>9}{'of copy':>9}{'ms':>10}{'predicted':>11}"]
        for name, speed in sorted(of.speeds.items()):
            share = speed.bandwidth / of.copy_bandwidth if of.copy_bandwidth else 0.0
            predicted = 1e3 * speed.bytes / of.copy_bandwidth if of.copy_bandwidth else 0.0
            milliseconds = (t / speed.launches for t in (speed.milliseconds, predicted))
            lines.append(
                f"{name:<32}{_rate(speed.bandwidth):>9}{share:>9.0%}"
                + "".join(
                    f"{t:>{width}.4f}" for t, width in zip(milliseconds, (10, 11), strict=True)
                )
            )
        lines += ["", "Predicted is what the kernel's bytes take at the speed of the copy.", ""]
    if of.device.startswith("cuda"):
        lines.append(
            f"{'please':<11} paste all of this into a report, also if all is well: nobody has run "
            "these kernels on a GPU yet"
        )
    return lines


def _rate(bandwidth: float) -> str:
    return f"{bandwidth / 1e9:.1f}"


def _device(name: str) -> torch.device | str:
    """The device, or what is wrong with it."""
    try:
        device = torch.device(name)
        if device.type in ("cpu", "meta"):
            return f"[doctor] expected a device with kernels of its own, got {name}"
        return torch.empty(1, device=device).device
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        return f"[doctor] expected a device that torch can use, got {name}: {why}"


def _text(
    record: dict[str, Any],
    outcomes: list[Outcome],
    on_device: DeviceOutcome | None,
    colours: bool,
) -> str:
    def coloured(code: int, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if colours else text

    lines = [f"{name:<11} {value}" for name, value in _words(record)]
    for outcome in outcomes:
        good = f"{outcome.checks - len(outcome.failed)} of {outcome.checks}"
        what = "run" if outcome.kernels == "scalar" else "agree with scalar"
        mark = coloured(31, "FAILED") if outcome.failed else coloured(32, "ok")
        lines.append(f"{'self-test':<11} {outcome.kernels}: {good} checks {what}: {mark}")
        lines += [f"{'':<11}   {name}: {why}" for name, why in outcome.failed.items()]
    if on_device is not None:
        lines += _device_lines(on_device, coloured)
    lines += [f"{'note':<11} {note}" for note in record["notes"]]
    lines += [coloured(31, f"{'problem':<11} {problem}") for problem in record["problems"]]
    lines.append(coloured(32, "All is well.") if record["ok"] else coloured(31, "All is not well."))
    return "\n".join(lines)


def run(arguments: argparse.Namespace) -> int:
    """The exit status: 0, or 1 if something is wrong."""
    device = None if arguments.device is None else _device(arguments.device)
    if isinstance(device, str):
        print(device, file=sys.stderr)
        return 1
    record = all_facts()
    outcomes = self_test()
    on_device = None if device is None else device_test(device, arguments.values)
    record["self_test"] = [asdict(outcome) for outcome in outcomes]
    record["device_test"] = None if on_device is None else asdict(on_device)
    record["notes"], record["problems"] = notes(record), problems(record)
    failed = any(outcome.failed for outcome in outcomes)
    record["ok"] = not (record["problems"] or failed or (on_device and not on_device.ok))
    if arguments.json:
        print(json.dumps(record, indent=1))
    else:
        print(_text(record, outcomes, on_device, wants_colours(sys.stdout)))
    return 0 if record["ok"] else 1
