"""What a report says of the machine."""

from __future__ import annotations

import platform
import re
from pathlib import Path


def processor() -> str:
    """Its name; of Arm, whose kernels name none, the architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    found = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()
