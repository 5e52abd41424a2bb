"""The name of the processor, for reports."""

from __future__ import annotations

import platform
import re
from pathlib import Path


def processor() -> str:
    """The model name from /proc/cpuinfo, or the architecture where that has none, as on Arm."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    found = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()
