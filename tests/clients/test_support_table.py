"""The table of clients in docs/support.md names tests: they exist, and no cell is empty."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "support.md").read_text().partition("## Clients")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("|")
][2:]
LETTERS = re.compile(r"\(((?:[a-zA-Z]{1,2} ?)+)\)")


def listed():
    """By letter, the file and the name of a test."""
    found = {}
    for line in TEXT.splitlines():
        if line.startswith("- `test_"):
            file, _, tests = line[3:].partition("`")
            for letter, name in re.findall(r"(\w+) `(test_\w+)`", tests):
                assert letter not in found
                found[letter] = file, name
    return found


def used():
    return {letter for cells in LETTERS.findall(TEXT) for letter in cells.split()}


def test_every_test_that_is_named_exists():
    assert len(listed()) > 40
    for file, name in listed().values():
        source = (ROOT / "tests" / "clients" / file).read_text()
        assert f"\ndef {name}(" in source, f"{file}::{name}"


def test_every_letter_is_listed_and_every_listed_one_is_used():
    assert used() == set(listed())


def test_what_works_or_is_refused_names_its_test():
    for name, *cells in ROWS:
        assert len(cells) == 5, name
        for cell in cells:
            assert cell in ("-", "not tried") or LETTERS.search(cell), f"{name}: {cell!r}"


def test_the_releases_are_those_that_are_installed():
    wanted = "".join((ROOT / f"requirements-{kind}.txt").read_text() for kind in ("dev", "clients"))
    for package in ("transformers", "peft", "accelerate", "lightning"):
        (release,) = re.findall(rf"^{package}==(.+)$", wanted, re.M)
        assert f"{package} {release}" in TEXT
