"""The command: its arguments, its messages and its exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .page import page
from .reading import ReportError, read


def _plotly_js() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ImportError(
            "[report] expected plotly, which draws the page, got none: "
            "pip install 'slimgrad[report]', or pip install plotly"
        ) from None
    return get_plotlyjs()


def write_report(
    inputs: Sequence[str | os.PathLike],
    out: str | os.PathLike = "report.html",
    title: str = "Compressed gradients: report",
) -> list[str]:
    """Writes a page about runs (.jsonl, of slimgrad-train or controller.log) and tensors (.npy).

    The page is one file that needs no network; it appears under its name when it is complete.
    Returns notes about the files; one that cannot be read raises ReportError.
    """
    plotly_js = _plotly_js()
    runs, notes = read([Path(path) for path in inputs])
    text = page(runs, notes, title, plotly_js)
    out = Path(out)
    unfinished = out.with_name(f"{out.name}.part.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, out)
    finally:
        unfinished.unlink(missing_ok=True)
    return notes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="FILE",
        help="runs as lines of JSON (slimgrad-train --out, controller.log), or .npy files",
    )
    parser.add_argument(
        "-o", "--out", default="report.html", help="the page (default: %(default)s)"
    )
    parser.add_argument("--title", default="Compressed gradients: report", help="of the page")


def run(arguments: argparse.Namespace) -> int:
    """The exit status: 2 for files that cannot be read or written, with one line that says why."""
    try:
        notes = write_report(arguments.inputs, arguments.out, arguments.title)
    except (ReportError, ImportError) as error:
        print(f"slimgrad report: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"slimgrad report: {arguments.out}: {error.strerror}", file=sys.stderr)
        return 2
    for note in notes:
        print(f"slimgrad report: note: {note}", file=sys.stderr)
    size = Path(arguments.out).stat().st_size
    print(f"{Path(arguments.out).resolve()} ({size / 1e6:.1f} MB)")
    return 0
