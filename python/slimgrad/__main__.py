"""python -m slimgrad: a page about runs; whether coded gradients pay; whether all is well here;
where find_package(slimgrad) finds this installation."""

import argparse
import sys
from pathlib import Path

from . import doctor, report
from .distributed import command as estimate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m slimgrad")
    parser.add_argument(
        "--cmake-dir",
        action="store_true",
        help="print the directory for -DCMAKE_PREFIX_PATH or -Dslimgrad_DIR",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    about = "write a page about runs or tensors, which needs no network"
    report.add_arguments(commands.add_parser("report", help=about, description=about))
    estimate.add_arguments(
        commands.add_parser("estimate", help=estimate.ABOUT, description=estimate.ABOUT)
    )
    doctor.add_arguments(commands.add_parser("doctor", help=doctor.ABOUT, description=doctor.ABOUT))
    arguments = parser.parse_args()
    if arguments.command == "report":
        return report.run(arguments)
    if arguments.command == "estimate":
        return estimate.run(arguments)
    if arguments.command == "doctor":
        return doctor.run(arguments)
    if arguments.cmake_dir:
        print(Path(__file__).parent / "lib" / "cmake" / "slimgrad")
    else:
        parser.print_help()
    return 0


if __name__ == "__main__":
    sys.exit(main())
