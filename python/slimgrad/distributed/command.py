"""python -m slimgrad estimate: estimate() as a command."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .estimation import Estimate, estimate

ABOUT = "does it pay to code gradients before they travel? Measures this machine, predicts the rest"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "gradients",
        nargs="*",
        metavar="FILE",
        help="gradients: .npy, or .safetensors with any number of tensors",
    )
    parser.add_argument(
        "--model",
        metavar="MODULE:NAME",
        help="instead of gradients: a model, or what returns one, e.g. torchvision.models:resnet50",
    )
    parser.add_argument(
        "--parameters",
        type=float,
        metavar="N",
        help="instead of a model: the number of values, in up to 1,000 tensors",
    )
    parser.add_argument(
        "--bandwidth",
        default="1 Gbit/s",
        help="of a rank, in each direction (default: %(default)s)",
    )
    parser.add_argument(
        "--latency", type=float, default=1e-4, help="seconds a message (default: %(default)s)"
    )
    parser.add_argument("--ranks", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--codecs", nargs="+", metavar="NAME", help="default: one of every kind")
    parser.add_argument(
        "--every",
        type=int,
        default=1,
        metavar="H",
        help="steps between two exchanges of a codec, as under local updates (default: 1)",
    )
    parser.add_argument("--threads", type=int, help="that code (default: torch's)")
    parser.add_argument("--json", action="store_true", help="the same as JSON")


def _read(path: str) -> list[torch.Tensor]:
    if path.endswith(".safetensors"):
        try:
            from safetensors.torch import load_file
        except ImportError:
            raise ValueError(f"{path}: expected safetensors to be installed to read it") from None
        return list(load_file(path).values())
    import numpy as np

    return [torch.from_numpy(np.load(path, allow_pickle=False))]


def _imported(name: str) -> nn.Module:
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(f"--model: expected MODULE:NAME, got {name!r}")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--model: {error}") from None
    if not isinstance(found, nn.Module) and callable(found):
        found = found()
    if not isinstance(found, nn.Module):
        raise ValueError(f"--model: expected {name} to be a module, got {type(found).__name__}")
    return found


class _Synthetic(nn.Module):
    """Generated gradients for a number of parameters."""

    def __init__(self, count: int):
        super().__init__()
        tensors = min(1000, -(-count // 1_000_000))
        sizes = [(count + i) // tensors for i in range(tensors)]
        self.parts = nn.ParameterList(
            nn.Parameter(torch.empty(size, device="meta")) for size in sizes
        )


def _ask(arguments: argparse.Namespace) -> Estimate:
    given = [bool(arguments.gradients), bool(arguments.model), arguments.parameters is not None]
    if sum(given) != 1:
        raise ValueError("expected files of gradients, or --model, or --parameters: one of them")
    model: Any = None
    if arguments.gradients:
        model = [tensor for path in arguments.gradients for tensor in _read(path)]
    elif arguments.model:
        model = _imported(arguments.model)
    else:
        if not 1 <= arguments.parameters < 1e13:
            raise ValueError(f"--parameters: expected 1 or more, got {arguments.parameters:g}")
        model = _Synthetic(round(arguments.parameters))
    if arguments.threads is not None:
        if arguments.threads < 1:
            raise ValueError(f"--threads: expected 1 or more, got {arguments.threads}")
        torch.set_num_threads(arguments.threads)
    return estimate(
        model,
        arguments.bandwidth,
        arguments.latency,
        arguments.ranks,
        arguments.codecs,
        every=arguments.every,
    )


def as_json(found: Estimate) -> str:
    def known(number: float) -> float | str | None:
        """JSON has neither infinity nor NaN."""
        if math.isnan(number):
            return None
        return number if math.isfinite(number) else "always"

    rows = [
        {
            "name": row.name,
            "sent": round(row.sent),
            "seconds": row.seconds,
            "pays_below": known(row.pays_below),
            "pays_below_fp16": known(row.pays_below_fp16),
        }
        for row in found.rows
    ]
    record = {
        "ranks": found.ranks,
        "bandwidth": found.link.bandwidth,
        "latency": found.link.latency,
        "every": found.workload.every,
        "gradients": found.gradients,
        "best": found.best,
        "pays": found.pays,
        "verdict": found.verdict,
        "rows": rows,
    }
    return json.dumps(record, indent=1)


def run(arguments: argparse.Namespace) -> int:
    """The exit status: 0 with an estimate, 2 for wrong arguments."""
    sys.path.insert(0, str(Path.cwd()))  # as python -m does for the user's own modules
    try:
        found = _ask(arguments)
    except (ValueError, TypeError, OSError) as error:
        print(f"slimgrad estimate: {error}", file=sys.stderr)
        return 2
    print(as_json(found) if arguments.json else found)
    return 0
