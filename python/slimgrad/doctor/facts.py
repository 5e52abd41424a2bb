"""What is installed, and what this machine has, as one dictionary; and what is wrong with it."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from .._built_for import TORCH_SERIES
from .._library import ops
from .._machine import processor

PROGRAMS = ("slimgrad", "slimgrad-train")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, Any]:
    compiler, cxx11_abi, _ = ops._build_facts()
    return {
        "slimgrad": version("slimgrad"),
        "torch": torch.__version__,
        "built_for_torch": TORCH_SERIES,
        "python": platform.python_version(),
        "numpy": _installed("numpy"),
        "plotly": _installed("plotly"),
        "system": platform.platform(),
        "compiler": compiler,
        "cxx11_abi": cxx11_abi,
        "cxx11_abi_of_torch": torch.compiled_with_cxx11_abi(),
    }


def kernels() -> dict[str, Any]:
    selected, usable, compiled = ops._kernel_sets()
    return {
        "processor": processor(),
        "compiled": list(compiled),
        "usable": list(usable),
        "selected": selected,
        "forced": os.environ.get("SLIMGRAD_KERNELS"),
    }


def threads() -> dict[str, Any]:
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "torch": torch.get_num_threads(),
        "processors": len(affinity(0)) if affinity else os.cpu_count(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "ops_use_several": ops._build_facts()[2],
    }


def huge_pages() -> str:
    """The setting of transparent huge pages: "always", "madvise", "never" or "unknown"."""
    try:
        found = re.search(r"\[(\w+)\]", HUGE_PAGES.read_text())
    except OSError:
        found = None
    return found[1] if found else "unknown"


def gpu() -> dict[str, Any]:
    devices = []
    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    built_in, wanted = ops._device_kernels()
    return {
        "torch_cuda": torch.version.cuda,
        "torch_hip": torch.version.hip,
        "devices": devices,
        "triton": importlib.util.find_spec("triton") is not None,
        "kernels_built_in": built_in,
        "kernels_wanted": wanted,  # SLIMGRAD_DEVICE_KERNELS
    }


def programs() -> dict[str, str | None]:
    """The versions that the programs beside this Python print; None: there is none, or it fails."""
    folder = Path(sysconfig.get_path("scripts"))
    found: dict[str, str | None] = {}
    for name in PROGRAMS:
        try:
            done = subprocess.run(
                [folder / name, "--version"], capture_output=True, text=True, timeout=30
            )
            words = done.stdout.split()
            found[name] = words[-1] if done.returncode == 0 and words else None
        except (OSError, subprocess.TimeoutExpired):
            found[name] = None
    return found


def all_facts() -> dict[str, Any]:
    return {
        "versions": versions(),
        "kernels": kernels(),
        "threads": threads(),
        "huge_pages": huge_pages(),
        "gpu": gpu(),
        "programs": programs(),
    }


def problems(facts: dict[str, Any]) -> list[str]:
    """Problems that make slimgrad fail or give wrong results."""
    found = []
    of = facts["versions"]
    if of["cxx11_abi"] != of["cxx11_abi_of_torch"]:
        found.append("the op library and torch were compiled with different ABIs of std::string")
    for name, printed in facts["programs"].items():
        if printed is None:
            found.append(f"the program {name} beside {sys.executable} does not run")
        elif printed != of["slimgrad"]:
            found.append(f"{name} is of version {printed}, the package of {of['slimgrad']}")
    return found


def notes(facts: dict[str, Any]) -> list[str]:
    """Conditions under which slimgrad works, but slower or with fewer features."""
    found = []
    cpu, threads, gpu = facts["kernels"], facts["threads"], facts["gpu"]
    if cpu["forced"]:
        found.append(f"SLIMGRAD_KERNELS={cpu['forced']} decides which kernels run")
    if not threads["ops_use_several"]:
        found.append("ops run on one thread: the compiler could not use torch's OpenMP library")
    if threads["torch"] > (threads["processors"] or 1):
        found.append(f"torch uses {threads['torch']} threads on {threads['processors']} processors")
    if not gpu["kernels_wanted"]:
        found.append("SLIMGRAD_DEVICE_KERNELS=0: on a GPU ops are made of ATen's operators")
    elif gpu["devices"] and not gpu["kernels_built_in"]:
        found.append(
            "built without device kernels, so that ops fail on a GPU: install a wheel, build with "
            "-DSLIMGRAD_DEVICE=ON, or set SLIMGRAD_DEVICE_KERNELS=0 for ATen's operators"
        )
    elif gpu["devices"]:
        found.append("device kernels were compiled and emulated, and not run on a GPU by us")
    if facts["versions"]["plotly"] is None:
        found.append("python -m slimgrad report needs plotly: pip install 'slimgrad[report]'")
    return found
