"""python -m slimgrad report: a page about runs or gradients that works offline."""

from .command import add_arguments, run, write_report
from .reading import ReportError

__all__ = ["ReportError", "add_arguments", "run", "write_report"]
