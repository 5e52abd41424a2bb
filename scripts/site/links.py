"""Links of pages as the repository has them, turned into links of the site.

Pages link to files beside docs/ (records, examples, the changelog) and name each other in words, as
in "docs/format.md has every byte". Both work where the repository is read; here they become links
of the site, to pages or to copies of the files."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Files of the repository that are pages of the site.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
_FENCE = re.compile(r"^( *)(```+|~~~+)")
_LINK = re.compile(r"(?<!\\)\]\(([^()\s]+)\)")
_CODE = re.compile(r"(`+[^`]+`+)")
_NAMED = re.compile(r"(?<![\w/\[(])(docs/[\w/]+\.md|[A-Z]+\.md)(?!\w|\]\()")


def prose(text: str, change: Callable[[str], str]) -> str:
    """Changes lines that are neither in a fence nor an indented block."""
    out, fence, blank = [], None, True
    for line in text.splitlines():
        mark = _FENCE.match(line)
        indented = line.startswith("    ") and (blank or (out and out[-1].startswith("    ")))
        if fence:
            if mark and mark[2].startswith(fence):
                fence = None
        elif mark:
            fence = mark[2]
        elif not indented:
            line = change(line)
        out.append(line)
        blank = not line.strip()
    return "\n".join(out) + "\n"


def page_of(path: str) -> str | None:
    """The page of the site that a file of the repository is, if it is one."""
    if path in PAGES:
        return PAGES[path] if (ROOT / path).exists() else None
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("examples/notebooks/") and path.endswith(".py"):
        return f"notebooks/{Path(path).stem}.md"
    return None


def copy_of(path: str) -> str:
    """Where a file that is no page lies in the site."""
    return f"files/{path}"


def _outside(target: str, source: str) -> str | None:
    """The file of the repository that a link of a page means, if it is not in docs/."""
    if re.match(r"[a-z]+:|#|/", target):
        return None
    path = target.partition("#")[0]
    found = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    return None if found.startswith(("docs/", "..")) else found


def files_linked(text: str, source: str) -> Iterator[str]:
    """Of the repository, that are no pages. source: the page's own place in the repository."""
    for target in _LINK.findall(text):
        path = _outside(target, source)
        if path and page_of(path) is None and (ROOT / path).is_file():
            yield path


def for_site(text: str, source: str, place: str) -> str:
    """place: of the page in the site. A link that leads nowhere is left, for mkdocs to refuse."""

    def relative(to: str) -> str:
        return os.path.relpath(to, posixpath.dirname(place) or ".")

    def link(match: re.Match) -> str:
        target = match[1]
        path, hash_, anchor = target.partition("#")
        if source.startswith("docs/"):
            outside = _outside(target, source)
        else:  # a page from beside docs/
            outside = path if path and not re.match(r"[a-z]+:", target) else None
        if outside is None:
            return match[0]
        to = page_of(outside) or (copy_of(outside) if (ROOT / outside).is_file() else None)
        return match[0] if to is None else f"]({relative(to)}{hash_}{anchor})"

    def named(path: str, words: str) -> str:
        to = page_of(path)
        is_page = to is not None and to != place and (ROOT / path).exists()
        return f"[{words}]({relative(to)})" if is_page else words

    def change(line: str) -> str:
        parts = _CODE.split(_LINK.sub(link, line))
        for i, part in enumerate(parts):
            if i % 2 == 0:
                parts[i] = _NAMED.sub(lambda m: named(m[1], m[1]), part)
            elif _NAMED.fullmatch(part.strip("`")) and not parts[i + 1].startswith("]("):
                parts[i] = named(part.strip("`"), part)
        return "".join(parts)

    return prose(text, change)
