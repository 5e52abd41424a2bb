"""The page of `python -m slimgrad report` in Debian's Chromium, as wide as a desk and a phone have
it: no script errors, nothing fetched, data in every figure, no text outside of its place."""

import json

import pytest
from chromium import PROGRAM, Chromium
from report_samples import TRAINER_RUNS, lines_of, own_run, tensors

from slimgrad.report import write_report

DESK, PHONE = 1200, 390

# What plotly draws for a value.
MARK = ".points path, .js-line, .point, .heatmaplayer image"
# The figures that have a panel without any.
EMPTY = """
[...document.querySelectorAll(".figure")].filter((figure) => !figure.querySelector(".plot") ||
  [...figure.querySelectorAll(".plot")].some((plot) => !plot.querySelector("MARK")))
  .map((figure) => figure.id)
""".replace("MARK", MARK)
# Text that reaches out of the page, or out of its plot. What scrolls by itself may be wider.
OUTSIDE = """
(() => {
  const found = [], wide = document.documentElement.clientWidth;
  const with_text = "h1,h2,h3,p,li,button,select,td,th,dt,dd,summary,.plot";
  for (const e of document.querySelectorAll(with_text)) {
    const box = e.getBoundingClientRect();
    if (!e.closest(".scroll") && box.width && (box.right > wide + 0.5 || box.left < -0.5))
      found.push([e.tagName, e.textContent.slice(0, 60), box.left, box.right]);
  }
  for (const plot of document.querySelectorAll(".plot")) {
    const room = plot.getBoundingClientRect();
    for (const text of plot.querySelectorAll("svg text")) {
      const box = text.getBoundingClientRect();
      const sideways = box.left < room.left - 1 || box.right > room.right + 1;
      if (box.width && (sideways || box.bottom > room.bottom + 1))
        found.push([plot.closest(".figure").id, text.textContent, box.left, box.right, room.right]);
    }
  }
  return found;
})()
"""
# Chooses every entry of every menu, and gives the figures that then have an empty panel.
ALL_VARIANTS = """
(async () => {
  const empty = [];
  for (const figure of document.querySelectorAll(".figure")) {
    const menu = figure.querySelector("select");
    for (let i = 0; menu && i < menu.options.length; ++i) {
      menu.selectedIndex = i;
      await menu.onchange();
      const title = figure.querySelector("h3").textContent;
      for (const plot of figure.querySelectorAll(".plot"))
        if (!title || !plot.querySelector("MARK"))
          empty.push([figure.id, menu.options[i].text]);
    }
  }
  return empty;
})()
""".replace("MARK", MARK)


def test_chromium_is_there():
    """So that the others are not left out unnoticed."""
    assert PROGRAM, "scripts/setup clients installs it"


def long_names(path):
    """The trainer's runs with names as Hugging Face's models have them, and forty layers."""
    with path.open("w") as file:
        for line in lines_of(TRAINER_RUNS):
            if line["kind"] == "config":
                line["gradients"] += ", an unusually long description of what was done to them"
            names = [""]
            if "layer" in line:
                stem = "model.transformer.encoder.layers.{}.attention.self.query_projection"
                names = [f"{stem.format(i)}_{line['layer']}" for i in range(14)]
            for name in names:
                file.write(json.dumps(line | ({"layer": name} if name else {})) + "\n")
    return path


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    own_run(folder / "own.jsonl")
    inputs = {
        "trainer": [TRAINER_RUNS],
        "own": [folder / "own.jsonl"],
        "tensors": tensors(folder / "gradients"),
        "long": [long_names(folder / "long.jsonl")],
    }
    for name, files in inputs.items():
        write_report(files, folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in inputs}


@pytest.mark.parametrize("width", [DESK, PHONE])
@pytest.mark.parametrize("name", ["trainer", "own", "tensors", "long"])
def test_page(pages, tmp_path, name, width):
    with Chromium(tmp_path, width=width) as browser:
        browser.open(pages[name])
        assert browser.run(EMPTY) == []
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run(OUTSIDE) == []
        assert browser.run(ALL_VARIANTS) == []
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run(OUTSIDE) == []
        assert browser.messages == []
        own = pages[name].as_uri()
        assert [u for u in browser.requests if u != own and not u.startswith("data:")] == []


def test_columns(pages, tmp_path):
    """Two panels stand side by side on a desk, and below each other on a phone."""
    tops = (
        "[...document.querySelectorAll('#laws .panel')].map((e) => e.getBoundingClientRect().top)"
    )
    for width in (DESK, PHONE):
        with Chromium(tmp_path / str(width), width=width) as browser:
            browser.open(pages["trainer"])
            first, second = browser.run(tops)
            assert (first == second) == (width == DESK)


def test_light_and_dark(pages, tmp_path):
    ink = "getComputedStyle(document.querySelector('#accuracy svg .xtick text')).fill"
    ground = "getComputedStyle(document.body).backgroundColor"
    with Chromium(tmp_path) as browser:
        browser.open(pages["trainer"])
        assert browser.run(ground) == "rgb(255, 255, 255)"
        light = browser.run(ink)
        scheme = {"name": "prefers-color-scheme", "value": "dark"}
        browser.send("Emulation.setEmulatedMedia", features=[scheme])
        browser.run("new Promise((done) => setTimeout(done, 1000))")
        assert browser.run(ground) == "rgb(20, 23, 26)"
        assert browser.run(ink) != light
        assert browser.messages == []


def test_the_legend_hides_and_shows(pages, tmp_path):
    lines = "document.querySelectorAll('#loss .js-line').length"
    with Chromium(tmp_path) as browser:
        browser.open(pages["trainer"])
        assert browser.run(lines) == 6  # three runs, training and test
        click = "document.querySelector('#loss .legend button').click()"
        settle = "new Promise((done) => requestAnimationFrame(() => setTimeout(done, 200)))"
        for expected in (4, 6):
            browser.run(click)
            browser.run(settle)
            assert browser.run(lines) == expected


def test_a_script_error_is_seen(tmp_path):
    """The tests above would notice."""
    page = tmp_path / "bad.html"
    page.write_text(
        "<html data-drawn='yes'><img src='http://localhost:9/x.png'><script>nobody()</script></html>"
    )
    with Chromium(tmp_path / "profile") as browser:
        browser.open(page)
        assert any("nobody" in str(message) for message in browser.messages)
        assert "http://localhost:9/x.png" in browser.requests
