"""The pictures in docs/figures are those that the records give, small, and from here alone."""

import re
import xml.etree.ElementTree as ET

import pytest
from bench.pictures import FIGURES, PICTURES, ROOT


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_record_gives(name):
    drawn = (FIGURES / f"{name}.svg").read_text()
    assert drawn == str(PICTURES[name]()), "python -m bench.pictures draws it anew"
    assert len(drawn) < 20_000
    root = ET.fromstring(drawn)
    width, height = float(root.get("width")), float(root.get("height"))
    for element in root.iter():
        if element.tag.endswith("text"):
            assert 0 <= float(element.get("x")) <= width
            assert 0 <= float(element.get("y")) <= height
    assert set(re.findall(r"https?://[^\"' ]+", drawn)) == {"http://www.w3.org/2000/svg"}


def test_every_picture_is_shown_and_none_is_forgotten():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {name for p in pages for name in re.findall(r"figures/(\w+)\.svg", p.read_text())}
    assert shown == set(PICTURES) == {path.stem for path in FIGURES.iterdir()}
