"""The command: what it prints, and its exit status."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from typing import Any, TextIO

from .facts import all_facts, notes, problems
from .self_test import Outcome, self_test

ABOUT = "what is installed, what this machine has, and whether every kernel does what it should"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the same as JSON")


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


def _text(record: dict[str, Any], outcomes: list[Outcome], colours: bool) -> str:
    def coloured(code: int, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if colours else text

    lines = [f"{name:<11} {value}" for name, value in _words(record)]
    for outcome in outcomes:
        good = f"{outcome.checks - len(outcome.failed)} of {outcome.checks}"
        what = "run" if outcome.kernels == "scalar" else "agree with scalar"
        mark = coloured(31, "FAILED") if outcome.failed else coloured(32, "ok")
        lines.append(f"{'self-test':<11} {outcome.kernels}: {good} checks {what}: {mark}")
        lines += [f"{'':<11}   {name}: {why}" for name, why in outcome.failed.items()]
    lines += [f"{'note':<11} {note}" for note in record["notes"]]
    lines += [coloured(31, f"{'problem':<11} {problem}") for problem in record["problems"]]
    lines.append(coloured(32, "All is well.") if record["ok"] else coloured(31, "All is not well."))
    return "\n".join(lines)


def run(arguments: argparse.Namespace) -> int:
    """The exit status: 0, or 1 if something is wrong."""
    record = all_facts()
    outcomes = self_test()
    record["self_test"] = [asdict(outcome) for outcome in outcomes]
    record["notes"], record["problems"] = notes(record), problems(record)
    record["ok"] = not record["problems"] and not any(outcome.failed for outcome in outcomes)
    if arguments.json:
        print(json.dumps(record, indent=1))
    else:
        print(_text(record, outcomes, wants_colours(sys.stdout)))
    return 0 if record["ok"] else 1
