"""Files that comments of the code name are there, and those of CONTRIBUTING.md's walks."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "include", "program", "trainer", "python", "bench", "tests", "scripts")
OTHERS = {"foreach_target.h"}  # Highway's
NAME = re.compile(r"(?<![\w./<*-])((?:[\w-]+/)*[\w-]+\.(?:h|cc|py|md))(?![\w(])")


def missing(text: str, there: list[str], is_code: bool = True) -> list[str]:
    """The names in comments, or in a document, that no file ends with."""
    comments = re.findall(r"^(?!\s*#include).*?(?://|#) (.*)$", text, re.MULTILINE)
    names = [name for part in (comments if is_code else [text]) for name in NAME.findall(part)]
    return [
        name
        for name in names
        if name not in OTHERS and not any(f"/{file}".endswith(f"/{name}") for file in there)
    ]


def tracked() -> list[str]:
    return subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split()


def test_files_that_the_walks_name_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert "gate_pass.cc" in NAME.findall(text)
    assert missing(text, tracked(), is_code=False) == []


def test_files_that_comments_name_are_there():
    there = tracked()
    code = [f for f in there if f.startswith(FOLDERS) and f.endswith((".h", ".cc", ".py"))]
    code = [file for file in code if (ROOT / file).is_file()]
    found = {file: missing((ROOT / file).read_text(), there) for file in code}
    assert {file: names for file, names in found.items() if names} == {}


def test_the_check_sees_a_stale_name():
    there = ["src/kernels/apply/apply.h", "docs/maths.md"]
    assert missing("int x;  // see apply.h and kernels/apply/apply.h\n", there) == []
    stale = "apply_plan" + ".h"  # in two parts, because this file is read, too
    assert missing(f"// docs/maths.md, {stale}\n", there) == [stale]
    assert missing('#include "base/none.h"\n', there) == []
