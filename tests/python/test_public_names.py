"""What users rely on does not change by accident, and versions agree."""

import re
from importlib.metadata import version
from pathlib import Path

from public_names import HEAD, public_names

import slimgrad

ROOT = Path(__file__).resolve().parents[2]
LISTED = ROOT / "docs" / "public_names.txt"


def test_public_names_and_signatures_are_those_listed():
    text = LISTED.read_text()
    assert text.startswith(HEAD)
    listed, found = set(text.removeprefix(HEAD).splitlines()), set(public_names())
    gone, new = sorted(listed - found), sorted(found - listed)
    assert not gone and not new, (
        "public names changed.\n  listed, but not there: "
        + ("; ".join(gone) or "none")
        + "\n  there, but not listed: "
        + ("; ".join(new) or "none")
        + "\nWhat is gone or different needs a deprecation (CONTRIBUTING.md). If it is as you want "
        "it:\n  .venv/bin/python tests/python/public_names.py > docs/public_names.txt"
    )


def test_what_is_listed_is_what_the_packages_export():
    names = {line.split("(")[0] for line in public_names()}
    assert {f"slimgrad.{name}" for name in slimgrad.__all__} <= names
    assert "slimgrad.Controller.report" in names
    assert "slimgrad.Prune.sparsity" in names
    assert not [name for name in names if re.search(r"\._", name)]


def test_the_version_is_in_one_place():
    header = (ROOT / "include" / "slimgrad" / "version.h").read_text()
    (released,) = re.findall(r'SLIMGRAD_VERSION "(.*)"', header)
    assert slimgrad.__version__ == version("slimgrad") == released
    # What cannot read it repeats it.
    assert f"\nversion: {released}\n" in (ROOT / "CITATION.cff").read_text()
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(released)}\b", changes, re.MULTILINE)


def test_types_are_declared():
    package = Path(slimgrad.__file__).parent
    assert (package / "py.typed").is_file()


def test_the_citation_is_yaml_with_the_three_papers():
    import yaml

    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0"
    assert {"title", "authors", "message", "license"} <= cited.keys()
    numbers = {paper["identifiers"][0]["value"] for paper in cited["references"]}
    assert numbers == {"arXiv:2006.08173", "arXiv:2202.00441", "arXiv:2111.07599"}
    assert all(
        person["family-names"] for paper in cited["references"] for person in paper["authors"]
    )
