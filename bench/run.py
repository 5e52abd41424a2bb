"""The benchmarks of the op library: `python -m bench.run [--suite NAME] [--quick] [--out FILE]`.

A suite is a module `bench/suite_NAME.py` with a function `run(quick) -> list[Row]`.
"""

import argparse
import importlib
import os
import sys
from pathlib import Path

import torch

from bench.timing import print_table, write_json

SUITES = sorted(p.stem.removeprefix("suite_") for p in Path(__file__).parent.glob("suite_*.py"))


def load_ops() -> None:
    """The installed package, or the op library that SLIMGRAD_OPS names."""
    if library := os.environ.get("SLIMGRAD_OPS"):
        torch.ops.load_library(library)
    else:
        importlib.import_module("slimgrad")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.run")
    parser.add_argument("--suite", choices=SUITES, action="append", help="default: all")
    parser.add_argument("--quick", action="store_true", help="small tensors, to see that it runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="also write the rows as JSON, e.g. results/x.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    load_ops()
    rows = []
    for name in arguments.suite or SUITES:
        suite_rows = importlib.import_module(f"bench.suite_{name}").run(arguments.quick)
        print_table(suite_rows)
        rows += suite_rows
    if arguments.out:
        write_json(arguments.out, "python -m bench.run " + " ".join(sys.argv[1:]), rows)


if __name__ == "__main__":
    main()
