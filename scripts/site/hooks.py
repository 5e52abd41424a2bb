"""What mkdocs does not do by itself: pages that are made from other files of the repository, and
links to those; formulas without a script."""

from __future__ import annotations

import re
import sys
from html import unescape
from pathlib import Path

import jupytext
import latex2mathml.converter
from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))

import headers
from links import PAGES, ROOT, copy_of, files_linked, for_site

NOTEBOOKS = ROOT / "examples" / "notebooks"
_sources: dict[
    str, str
] = {}  # of pages that are not in docs/: place in the site -> in the repository


def _without_missing(nav: list) -> list:
    """A page that a release has and a checkout may not, such as SECURITY.md, is no entry then."""
    missing = {page for path, page in PAGES.items() if not (ROOT / path).exists()}
    found = []
    for entry in nav:
        name, what = next(iter(entry.items())) if isinstance(entry, dict) else (None, entry)
        if isinstance(what, list):
            found.append({name: _without_missing(what)})
        elif what not in missing:
            found.append(entry)
    return found


def on_config(config):
    config.nav = _without_missing(config.nav)
    return config


def _notebook_page(script: Path) -> str:
    """The script as a page: its cells, and where to get it to run."""
    notebook = jupytext.read(script, fmt="py:percent")
    cells = [
        cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```"
        for cell in notebook.cells
    ]
    get = (
        f'[Notebook]({script.stem}.ipynb){{ download="{script.stem}.ipynb" }} · '
        f"[script](../../examples/notebooks/{script.name}), which a test runs."
    )
    get = get.replace("../../examples/", "../files/examples/")
    return "\n\n".join([cells[0], get, *cells[1:]]) + "\n"


def on_files(files, config):
    def add(place: str, **how) -> None:
        known = files.get_file_from_path(place)
        if known:
            files.remove(known)
        files.append(File.generated(config, place, **how))

    for path, place in PAGES.items():
        if path != "README.md" and (ROOT / path).exists():
            _sources[place] = path
            add(place, content=(ROOT / path).read_text())
    order = headers.reading_order((ROOT / "docs" / "cpp.md").read_text())
    _sources["reference/headers.md"] = ""
    add("reference/headers.md", content=headers.page_of(ROOT / "include" / "slimgrad", order))
    linked = set()
    for script in sorted(NOTEBOOKS.glob("*.py")):
        place = f"notebooks/{script.stem}.md"
        _sources[place] = ""
        add(place, content=_notebook_page(script))
        notebook = jupytext.writes(jupytext.read(script, fmt="py:percent"), fmt="ipynb")
        add(f"notebooks/{script.stem}.ipynb", content=notebook)
        linked.add(script.relative_to(ROOT).as_posix())
    for page in ROOT.glob("docs/**/*.md"):
        linked |= set(files_linked(page.read_text(), page.relative_to(ROOT).as_posix()))
    for path in _sources.values():
        if path:
            linked |= set(files_linked((ROOT / path).read_text(), path))
    for path in sorted(linked):
        add(copy_of(path), abs_src_path=str(ROOT / path))
    return files


def on_page_markdown(markdown, page, config, files):
    place = page.file.src_uri
    if page.parent is None:  # a tab of its own: there is nothing to navigate beside it
        page.meta.setdefault("hide", ["navigation"])
    source = _sources.get(place, f"docs/{place}")
    # A word behind the language says how a test runs a block: nothing that a reader needs.
    markdown = re.sub(r"^```(python|cpp|cmake) [\w-]+$", r"```\1", markdown, flags=re.M)
    return for_site(markdown, source, place) if source else markdown


def on_page_content(html, page, config, files):
    """Formulas as MathML, which browsers draw without a script."""

    def formula(match: re.Match) -> str:
        text = unescape(match[2]).strip()
        display = "block" if text.startswith("\\[") else "inline"
        return latex2mathml.converter.convert(text[2:-2].strip(), display=display)

    return re.sub(r'<(span|div) class="arithmatex">(.*?)</\1>', formula, html, flags=re.S)
