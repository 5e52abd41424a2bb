"""Parts of pages that scripts write from records: the text between two marks."""

from __future__ import annotations

from pathlib import Path

END = "<!-- to here -->"


def begin(writer: str) -> str:
    return f"<!-- {writer} writes from here -->"


def read(page: Path, writer: str) -> str:
    """What is between the marks, without the line breaks beside them."""
    _, found, rest = page.read_text().partition(begin(writer) + "\n")
    text, end, _ = rest.partition("\n" + END)
    if not found or not end:
        raise ValueError(f"{page} has no part that {writer} writes")
    return text


def write(page: Path, writer: str, text: str) -> None:
    before = read(page, writer)
    head, tail = f"{begin(writer)}\n", f"\n{END}"
    page.write_text(page.read_text().replace(head + before + tail, head + text.strip("\n") + tail))
