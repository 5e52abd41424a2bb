"""python -m slimgrad --cmake-dir: where find_package(slimgrad) finds this installation."""

import argparse
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m slimgrad")
    parser.add_argument(
        "--cmake-dir",
        action="store_true",
        help="print the directory for -DCMAKE_PREFIX_PATH or -Dslimgrad_DIR",
    )
    arguments = parser.parse_args()
    if arguments.cmake_dir:
        print(Path(__file__).parent / "lib" / "cmake" / "slimgrad")
    else:
        parser.print_help()


if __name__ == "__main__":
    main()
