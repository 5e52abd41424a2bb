"""The page of `python -m slimgrad report`: what is in it, and that it agrees with the runs."""

import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from report_samples import TRAINER_RUNS, command, figures_in, lines_of, own_run, tensors, trace

import slimgrad as sg
from slimgrad.report import write_report
from slimgrad.report.naming import short_layers

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def trainer_page(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report([TRAINER_RUNS], path)
    return path


# ---- the page ------------------------------------------------------------------------------------


def test_every_figure_of_a_trainers_runs_is_there(trainer_page):
    figures = figures_in(trainer_page)
    assert set(figures) == {
        *("accuracy", "loss", "spread", "sparsity", "cosine", "laws", "distances", "formats"),
        *("required", "thresholds", "cost", "accuracy-sparsity", "bits", "bytes", "coding"),
    }
    for variants in figures.values():
        for variant in variants:
            assert len(variant["title"]) > 10 and not variant["title"].endswith(".")
            for panel in variant["panels"]:
                assert all(len(t["x"]) and len(t["y"]) for t in panel["data"])
                axes = [panel["layout"]["xaxis"], panel["layout"]["yaxis"]]
                assert all("ticktext" in a or a["title"]["text"] for a in axes)


def test_plotly_knows_every_attribute(trainer_page):
    import plotly.graph_objects as go

    text = json.dumps(figures_in(trainer_page))
    plain = json.loads(re.sub(r'"@\w+"', '"#123456"', text))  # colours that page.js fills in
    for variants in plain.values():
        for variant in variants:
            for panel in variant["panels"]:
                go.Figure(panel)  # raises for names and values that it does not know


def test_nothing_is_fetched(trainer_page):
    text = trainer_page.read_text(encoding="utf-8")
    empty = re.sub(r"(<script[^>]*>).*?(</script>)", r"\1\2", text, flags=re.DOTALL)
    scripts = re.findall(r"<script([^>]*)>", empty)
    assert scripts == [' type="application/json" id="figures"', "", ""]  # plotly.js once, and ours
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", empty)
    assert re.findall(r'(?:src|href)="([^#"][^"]*)"', empty) == ["data:,"]
    assert "default-src 'none'" in empty  # and the browser is told so


def test_numbers_are_those_of_the_run(trainer_page):
    figures, lines = figures_in(trainer_page), lines_of(TRAINER_RUNS)
    epochs = [line for line in lines if line["kind"] == "epoch" and line["run"] == 1]
    shown = trace(figures, "accuracy", run="plain")
    assert shown["x"] == [line["step"] for line in epochs]
    assert shown["y"] == pytest.approx([line["test_accuracy"] for line in epochs], rel=1e-4)
    seconds = np.cumsum([line["seconds"] for line in epochs])
    assert trace(figures, "accuracy", variant=1, run="plain")["x"] == pytest.approx(seconds, 1e-4)
    cosines = {
        (line["layer"], line["step"]): line["cosine"]
        for line in lines
        if line["kind"] == "layers" and line["run"] == 2 and "cosine" in line
    }
    heat = trace(figures, "cosine")
    rows = [row[0] for row in heat["text"]]
    assert rows == list(dict.fromkeys(layer for layer, _ in cosines))
    for row, values in zip(rows, heat["z"], strict=True):
        wanted = [cosines[row, int(step)] for step in heat["x"]]
        assert values == pytest.approx(wanted, rel=1e-3)
    ends = [line for line in lines if line["kind"] == "end"]
    assert trace(figures, "bits")["x"] == [line["bits_per_value"] for line in ends]
    coded = next(line for line in lines if line["kind"] == "bits")
    entropy, counted = figures["coding"][0]["panels"][0]["data"][:2]
    assert entropy["x"][0] == pytest.approx(coded["entropy"], rel=1e-4)
    assert counted["x"][0] == pytest.approx(coded["rans"]["counted"], rel=1e-4)


def test_a_run_has_one_colour_everywhere(trainer_page):
    colours = {}
    for variants in figures_in(trainer_page).values():
        for variant in variants:
            for t in (t for panel in variant["panels"] for t in panel["data"]):
                name = t.get("name", "").split(",")[0]
                if name in ("plain", "fp4", "prune:0.9+fp4"):
                    colour = (t.get("line") if t["mode"] == "lines" else t["marker"])["color"]
                    colours.setdefault(name, set()).add(colour)
    assert colours == {"plain": {"@run0"}, "fp4": {"@run1"}, "prune:0.9+fp4": {"@run2"}}


def test_laws_are_the_librarys(trainer_page):
    figures, lines = figures_in(trainer_page), lines_of(TRAINER_RUNS)
    line = next(line for line in lines if line["kind"] == "fit")
    params = dict(line["families"]["lognormal"])
    law = sg.Distribution("lognormal", **{k: params[k] for k in ("log_mean", "log_std")})
    histogram, *curves = figures["laws"][0]["panels"][0]["data"]
    assert [t["name"] for t in curves] == ["normal", "lognormal", "generalized normal"]
    # A law's density of ln|x|, which the figure has by octaves from its cdf.
    middle = torch.tensor(histogram["x"], dtype=torch.float64)
    expected = law.pdf(middle) * middle * math.log(2)
    shown = torch.tensor(curves[1]["y"], dtype=torch.float64)
    assert torch.allclose(shown, expected, rtol=0.02, atol=1e-3)
    octaves = np.diff(np.log2(histogram["x"]))
    assert np.sum(np.array(histogram["y"][1:]) * octaves) == pytest.approx(1, abs=0.03)
    for points in figures["laws"][0]["panels"][1]["data"][:3]:
        assert points["x"] == sorted(points["x"]) and points["y"] == sorted(points["y"])


def test_formats_are_the_librarys(trainer_page):
    variant = next(
        v for v in figures_in(trainer_page)["formats"] if v["title"].startswith("With 4")
    )
    curves = {t["name"]: t for t in variant["panels"][0]["data"]}
    for format in ("1-1-2", "1-2-1", "1-3-0"):
        wanted = [sg.relative_error(format, spread) for spread in curves[format]["x"]]
        assert curves[format]["y"] == pytest.approx(wanted, rel=1e-4)
    rows = {}
    for line in lines_of(TRAINER_RUNS):
        if line["kind"] == "layers" and line["run"] == 2 and "format" in line:
            rows[line["layer"]] = line  # the last one
    shown = curves["fp4, in training"]
    assert shown["y"] == pytest.approx([r["relative_error"] for r in rows.values()], rel=1e-4)
    assert shown["x"] == pytest.approx(
        [r["log_std"] / math.log(2) for r in rows.values()], rel=1e-4
    )


# ---- runs of one's own, and tensors --------------------------------------------------------------


def test_a_run_of_ones_own(tmp_path):
    own_run(tmp_path / "own.jsonl")
    assert write_report([tmp_path / "own.jsonl"], tmp_path / "own.html") == []
    figures = figures_in(tmp_path / "own.html")
    assert trace(figures, "accuracy")["y"] == pytest.approx([0, 0.1, 0.2, 0.3])
    assert {"loss", "spread", "sparsity", "cosine", "laws", "formats", "required"} <= set(figures)
    text = (tmp_path / "own.html").read_text(encoding="utf-8")
    assert "Not in these runs" in text and "<strong>Bytes</strong>" in text


def test_tensors(tmp_path):
    files = tensors(tmp_path / "gradients")
    answer = command(*files, "-o", tmp_path / "tensors.html")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith(str(tmp_path / "tensors.html"))
    figures = figures_in(tmp_path / "tensors.html")
    assert set(figures) == {"laws", "distances", "formats", "thresholds", "cost"}
    stats = sg.measure(torch.from_numpy(np.load(files[1])))
    text = (tmp_path / "tensors.html").read_text(encoding="utf-8")
    row = f"<td>20,000</td><td>0.0 %</td><td>0</td><td>{stats.max_abs:.3g}</td>"
    formats = "".join(f"<td>{sg.best_format(bits, stats)}</td>" for bits in (4, 6, 8))
    assert f"<td>normal</td>{row}<td>{stats.log_std / math.log(2):.2f}</td>{formats}" in text
    titles = {v["title"].split(":")[0]: v["title"] for v in figures["laws"]}
    assert "the lognormal law fits best" in titles["lognormal"]
    assert "the lognormal law worst" in titles["normal"]


def test_runs_and_tensors_on_one_page(tmp_path):
    files = tensors(tmp_path / "gradients")
    write_report([TRAINER_RUNS, *files], tmp_path / "page.html")
    labels = [v["title"] for v in figures_in(tmp_path / "page.html")["cost"]]
    assert len(labels) == 4 and labels[-1].startswith("tensors in gradients: ")


# ---- names ---------------------------------------------------------------------------------------


def test_runs_with_the_same_gradients_are_told_apart(tmp_path):
    config = {"kind": "config", "run": 1, "schema": 1, "gradients": "fp4", "seed": 1}
    epoch = {"kind": "epoch", "run": 1, "epoch": 1, "step": 5, "test_accuracy": 0.5}
    for seed in (1, 2, 2):
        with (tmp_path / "runs.jsonl").open("a") as file:
            for line in (config | {"seed": seed}, epoch):
                file.write(json.dumps(line) + "\n")
    write_report([tmp_path / "runs.jsonl"], tmp_path / "page.html")
    shown = figures_in(tmp_path / "page.html")["accuracy"][0]["panels"][0]["data"]
    assert [t["name"] for t in shown] == ["fp4, seed 1", "fp4, seed 2 #1", "fp4, seed 2 #2"]


def test_layers_of_long_names_stay_distinct():
    stem = "model.transformer.encoder.layers.{}.attention.self.query_projection_linear{}"
    names = [stem.format(i, k) for i in range(14) for k in (1, 2)]
    short = short_layers([*names, names[0]])
    assert len(set(short)) == len(names) and short[0] == short[-1]
    assert max(map(len, short)) <= 23
    assert short_layers(["conv1", "conv2"]) == ["conv1", "conv2"]


def test_words_of_layers_that_were_cut_show_it():
    names = [f"encoder.layer.{i}.attention.{k}.dense" for i in range(2) for k in ("self", "output")]
    short = short_layers(names)
    assert len(set(short)) == 4 and max(map(len, short)) <= 22
    for name, text in zip(names, short, strict=True):
        pattern = re.sub(r"\u2026(?=.)", r"[a-z]+\\.", text.replace(".", r"\."))
        assert "\u2026" in text and re.fullmatch(pattern.replace("\u2026", "[a-z]+"), name)


def test_names_are_text_and_not_markup(tmp_path):
    evil = "</script><script>alert(1)</script><b>"
    lines = lines_of(TRAINER_RUNS)
    for line in lines:
        if "layer" in line:
            line["layer"] = evil
        if line["kind"] == "config":
            line |= {"gradients": evil, "model": evil}
    path = tmp_path / f"{'x' * 8}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_report([path], tmp_path / "page.html", title=evil)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text and text.count("</script>") == 3
    assert "<b>" not in json.dumps(figures_in(tmp_path / "page.html"))


def test_without_plotly(tmp_path):
    code = "import sys; sys.modules['plotly'] = None; from slimgrad.__main__ import main; main()"
    code = code.replace("main()", "sys.exit(main())")
    arguments = [sys.executable, "-c", code, "report", str(TRAINER_RUNS)]
    answer = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path)
    assert answer.returncode == 2 and "pip install 'slimgrad[report]'" in answer.stderr
