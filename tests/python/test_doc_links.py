"""Every link of the documents leads somewhere, as the repository is read; tests/clients/site does
the same for the site. Addresses elsewhere are only looked at, not asked for."""

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def prose(text):
    """Without fences, code spans and comments."""
    text = re.sub(r"^(```+|~~~+).*?^\1", "", text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    return re.sub(r"`[^`\n]+`", "`code`", text)


def slug(heading):
    """As GitHub and the site name a heading."""
    words = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", lambda m: m[1] or "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


@functools.cache
def anchors(page):
    text = re.sub(r"^(```+|~~~+).*?^\1", "", page.read_text(), flags=re.M | re.S)
    found, seen = set(), {}
    for heading in re.findall(r"^#{1,6} (.*?)#*$", text, re.M):
        name = slug(heading)
        count = seen[name] = seen.get(name, -1) + 1
        found.add(f"{name}-{count}" if count else name)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^()\s]+)\)", prose(page.read_text())):
        if re.match(r"[a-z]+:", target):
            assert re.fullmatch(r"https://[\w.-]+\.[a-z]+(/\S*)?", target), target
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        is_made = to == ROOT / "docs" / "reference" / "headers.md"  # while the site is built
        assert to.is_relative_to(ROOT) and (to.exists() or is_made), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(to), f"{page.name}: {target}"


def test_pages_that_are_named_in_words_are_there():
    """In documents, code and comments: docs/NAME.md."""
    folders = ("docs", "src", "include", "python", "program", "trainer", "bench", "examples")
    kinds = {".md", ".py", ".h", ".cc", ".txt"}
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    for path in [*ROOT.glob("*.md"), ROOT / "Makefile", *files]:
        if path.suffix in kinds or path.name == "Makefile":
            for name in re.findall(r"\bdocs/[\w/]+\.md\b", path.read_text()):
                assert (ROOT / name).exists() or "NAME" in name, f"{path}: {name}"


def test_every_header_is_in_reading_order():
    named = re.findall(r"`(\w+\.h)`", (ROOT / "docs" / "cpp.md").read_text())
    assert {path.name for path in (ROOT / "include" / "slimgrad").glob("*.h")} == set(named)


def test_every_public_name_is_in_the_reference():
    import slimgrad

    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    listed = set(re.findall(r"^::: slimgrad\.(\w+)$", pages, re.M))
    assert set(slimgrad.__all__) <= listed | {"distributed"}, set(slimgrad.__all__) - listed
    assert {"nn", "functional", "distributed"} <= listed
