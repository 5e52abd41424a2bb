"""The site of `make docs`: built without a warning, complete, from here alone, and readable on a
desk and on a phone."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from chromium import Chromium

import slimgrad

ROOT = Path(__file__).resolve().parents[3]
DESK, PHONE = 1280, 390
READY = "document.readyState === 'complete' && [...document.images].every((p) => p.complete)"
# What is fetched, as opposed to links that a reader may follow.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}


class Page(HTMLParser):
    """Ids, links, and what a browser would fetch."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.fetched = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = {name: value for name, value in attributes if value is not None}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.add(found["href"])
        elif tag == "link" and "canonical" not in found.get("rel", ""):
            self.fetched.add(found["href"])
        elif tag in FETCHED and FETCHED[tag] in found:
            self.fetched.add(found[FETCHED[tag]])


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout + done.stderr == ""
    return folder


@pytest.fixture(scope="session")
def pages(site):
    """Not the one for addresses that are not there: its links are those of wherever it is shown."""
    found = [path for path in site.rglob("*.html") if path.name != "404.html"]
    return {path: Page(path.read_text()) for path in found}


def test_every_link_leads_somewhere(site, pages):
    for path, page in pages.items():
        for link in sorted(page.links | page.fetched):
            if re.match(r"(https|mailto|data|javascript):", link):
                continue
            target, _, anchor = link.partition("#")
            to = (path.parent / unquote(target)).resolve() if target else path
            to = to / "index.html" if to.is_dir() else to
            assert to.exists(), f"{path.relative_to(site)}: {link}"
            if anchor and to.suffix == ".html":
                assert unquote(anchor) in pages[to].ids, f"{path.relative_to(site)}: {link}"


def test_nothing_comes_from_elsewhere(site, pages):
    for path, page in pages.items():
        foreign = {link for link in page.fetched if re.match(r"(https?:)?//", link)}
        assert not foreign, f"{path.relative_to(site)}: {foreign}"
    for path in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import )['\"]?(?:https?:)?//", path.read_text()), path


def test_the_reference_has_every_public_name(site):
    pages = "".join(path.read_text() for path in (site / "reference").glob("*.html"))
    for prefix, names in {
        "slimgrad": slimgrad.__all__,
        "slimgrad.nn": slimgrad.nn.__all__,
        "slimgrad.distributed": slimgrad.distributed.__all__,
    }.items():
        modules = {"nn", "functional"} if prefix == "slimgrad" else {"CompressedPipelineStage"}
        missing = [n for n in names if n not in modules and f'id="{prefix}.{n}"' not in pages]
        assert not missing, (prefix, missing)
    for header in (ROOT / "include" / "slimgrad").glob("*.h"):
        assert f'id="{header.name.replace(".", "")}"' in pages, header.name


def test_notebooks_can_be_taken_away(site):
    scripts = {path.stem for path in (ROOT / "examples" / "notebooks").glob("*.py")}
    assert scripts == {path.stem for path in (site / "notebooks").glob("*.ipynb")}
    for path in (site / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        assert {cell["cell_type"] for cell in cells} == {"markdown", "code"}


def test_formulas_are_drawn_without_a_script(site):
    page = (site / "distributed.html").read_text()
    assert page.count("<math") > 10
    assert "arithmatex" not in page


def test_marks_for_tests_are_not_shown(site):
    for path in site.rglob("*.html"):
        assert not re.search(r"```|\bno-run\b", path.read_text()), path


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_pages_in_a_browser(site, pages, tmp_path, width):
    """Nothing is wider than the window but what scrolls by itself, and pictures are there."""
    with Chromium(tmp_path, width=width) as browser:
        for path in pages:
            browser.open(path, READY)
            assert browser.run("document.documentElement.scrollWidth") <= width, path
            broken = "[...document.images].filter((i) => !i.naturalWidth).map((i) => i.src)"
            assert browser.run(broken) == [], path
        assert browser.messages == []
        assert [u for u in browser.requests if not u.startswith(("file:", "data:"))] == []
