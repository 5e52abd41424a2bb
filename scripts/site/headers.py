"""The page of the C++ headers: what each opens with, then what it declares, in the reading order
that docs/cpp.md has."""

from __future__ import annotations

import re
from pathlib import Path

from docstrings import as_markdown


def reading_order(page: str) -> list[str]:
    """The headers that the section names, each once."""
    section = page.partition("## The headers, in reading order")[2].partition("\n## ")[0]
    return list(dict.fromkeys(re.findall(r"`(\w+\.h)`", section)))


def _opening(lines: list[str]) -> tuple[list[str], list[str]]:
    """The comment that a header begins with, as paragraphs, and the rest."""
    comment = []
    rest = list(lines)
    while rest and (rest[0].startswith("//") or (not rest[0].strip() and not comment)):
        comment.append(rest.pop(0).removeprefix("//").removeprefix(" "))
    return comment, rest


def _declarations(lines: list[str]) -> str:
    kept = [
        line
        for line in lines
        if not re.match(r"#(include|pragma|ifndef|endif|define SLIMGRAD_\w+_H_)\b", line)
    ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()


def page_of(folder: Path, order: list[str]) -> str:
    out = [
        "# C++ headers",
        "",
        "Generated from `include/slimgrad`, in "
        "[reading order](../cpp.md#the-headers-in-reading-order). "
        "All names are in the namespace `slimgrad`.",
        "",
    ]
    for name in order:
        opening, rest = _opening((folder / name).read_text().splitlines())
        words = as_markdown("\n".join(opening), set())
        out += [f"## {name}", "", words, "", "```cpp", _declarations(rest), "```", ""]
    return "\n".join(out)
