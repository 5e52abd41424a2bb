"""What controller.log() writes: the lines of docs/runs.md."""

import io
import json
import math
import re
from pathlib import Path

import pytest
import torch
import trainer_runs
from controller_samples import make, train, two_layers
from report_samples import lines_of, own_run

import slimgrad as sg
from slimgrad._library import ops
from slimgrad.compression.records import (
    fit_line,
    histogram_line,
    laws_of,
    record_line,
    stats_of,
    values_of,
)
from slimgrad.compression.run_log import layer_line

pytestmark = pytest.mark.usefixtures("one_thread")


def kinds(lines):
    return [line["kind"] for line in lines]


def written_anew(text):
    """By the library, from the same fields in the reverse order."""
    return record_line(dict(reversed(json.loads(text).items())))


def test_lines_of_both_writers_have_the_same_fields_order_and_numbers(tmp_path):
    """A step of slimgrad-train and a step that is logged from Python."""
    arguments = ["--model", "mlp", "--train-size", 64, "--test-size", 10, "--epochs", 1]
    arguments += ["--gradients", "prune:0.9+fp4", "--saved", 8, "--probe-at", 1]
    _, done = trainer_runs.lines_of(tmp_path / "theirs", *arguments, "--min-accuracy", 0)
    assert done.returncode == 0
    own_run(tmp_path / "ours", [sg.Prune(0.9), sg.Quantize(bits=4)], steps=1)
    texts = {name: (tmp_path / name).read_text().splitlines(True) for name in ("theirs", "ours")}
    for text in (*texts["theirs"], *texts["ours"]):
        assert written_anew(text) == text
    theirs, ours = (
        {line["kind"]: line for line in map(json.loads, reversed(texts[name]))} for name in texts
    )
    assert set(ours) == set(theirs) - {"bits", "end"}
    for kind, line in ours.items():
        shared = [name for name in theirs[kind] if name in line]
        assert [name for name in line if name in theirs[kind]] == shared
    assert list(ours["histogram"]) == list(theirs["histogram"])
    assert list(ours["layers"]) == [*theirs["layers"], "calls", "at_threshold"]
    assert set(ours["config"]) <= set(theirs["config"])
    for family, law in ours["fit"]["families"].items():
        assert list(law) == list(theirs["fit"]["families"][family])


def test_the_same_numbers_give_the_same_line_from_both_writers(tmp_path):
    arguments = ["--model", "mlp", "--train-size", 64, "--test-size", 10, "--epochs", 1]
    arguments += ["--gradients", "prune:0.9+fp4", "--probe-at", 1, "--min-accuracy", 0]
    lines, _ = trainer_runs.lines_of(tmp_path / "x", *arguments)
    texts = (tmp_path / "x").read_text().splitlines(True)
    for line, text in zip(lines.all, texts, strict=True):
        about = {name: line.get(name) for name in ("kind", "run", "epoch", "step", "layer")}
        if line["kind"] == "histogram":
            about["tensor"] = line["tensor"]
            assert record_line({**about, **histogram_line(stats_of(line))}) == text
        if line["kind"] == "layers":
            compressed = line["compressed_values"] > 0
            row = {**line, "calls": 1, "elements": line["values"], "compressed": compressed}
            found = layer_line({"format": "", "saturated": line.get("saturated_passes"), **row})
            if compressed:  # A mean over one pass may differ from its value in the last bit.
                missed = line["worst_sparsity_miss"]
                assert found["worst_sparsity_miss"] == pytest.approx(missed, abs=1e-12)
                found["worst_sparsity_miss"] = missed
            assert record_line({**about, **found}) == text[:-2] + ',"calls":1}\n'


def test_the_documents_have_every_field():
    """docs/runs.md has the fields of slimgrad-train and those that only Python writes; its tables
    have no others."""
    runs = (Path(__file__).parents[2] / "docs" / "runs.md").read_text()
    _, kinds, names, _, _ = ops.record_fields()
    for kind, name in zip(kinds, names, strict=True):
        assert f"`{name}`" in runs, (kind, name)
        assert f"`{kind}`" in runs
    for kind in set(kinds) & {*re.findall(r"^## (\w+)$", runs, re.MULTILINE)}:
        section = runs.split(f"\n## {kind}\n")[1].split("\n## ")[0]
        cells = re.findall(r"^\| (`[^|]*`) \|", section, re.MULTILINE)
        described = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
        known = {name for k, name in zip(kinds, names, strict=True) if k == kind}
        assert described and described <= known, kind


def test_fields_that_are_not_described_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\[record_line\] expected fields .* kind epoch, got 'x'"):
        record_line({"kind": "epoch", "run": 1, "step": 1, "x": 1})
    assert json.loads(record_line({"kind": "epoch", "step": 1, "loss": math.inf}))["loss"] is None


def test_values_are_those_of_the_report(tmp_path):
    _, controller, step = two_layers([sg.Prune(0.8), "fp6"])
    step(0)
    controller.log(tmp_path / "log.jsonl", step=7)
    config, a, _b = lines_of(tmp_path / "log.jsonl")
    assert config["gradients"] == "prune:0.8+fp6" and config["schema"] == 1
    row = controller.report()["a"]
    assert a["kind"] == "layers" and a["layer"] == "a" and a["step"] == 7
    assert a["values"] == a["compressed_values"] == 10_000 and a["passes"] == 1
    for name in ("sparsity", "sparsity_wanted", "cosine", "relative_error", "log_std", "threshold"):
        assert a[name] == row[name]
    assert a["worst_sparsity_miss"] == abs(row["sparsity"] - 0.8)
    assert a["format"] == row["format"] and a["scale"] == row["scale"]
    assert a["bits_per_value"] == row["bits_per_value"] and 0 < row["bits_per_value"] < 6


def test_a_file_goes_on_and_another_run_begins_anew(tmp_path):
    path = tmp_path / "log.jsonl"
    model, controller = make("fp6")
    train(model, 2)
    controller.log(path)
    controller.log(path, step=3)
    assert kinds(lines_of(path)).count("config") == 1
    _, resumed = make("fp6")
    resumed.log(path, step=4)
    assert kinds(lines_of(path)).count("config") == 1
    _, other = make("fp4")
    other.log(path, step=1)
    lines = lines_of(path)
    assert [line["gradients"] for line in lines if line["kind"] == "config"] == ["fp6", "fp4"]


def test_files_and_what_is_known_beside(tmp_path):
    _, controller, step = two_layers(sg.Prune(0.5))
    step(0)
    file = io.StringIO()
    controller.log(file, loss=torch.tensor(2.5), epoch=1, test_accuracy=math.nan)
    controller.log(file, step=9)
    (tmp_path / "x").write_text(file.getvalue())
    lines = lines_of(tmp_path / "x")
    assert kinds(lines) == ["config", "epoch", "layers", "layers", "layers", "layers"]
    assert lines[1]["loss"] == 2.5 and lines[1]["epoch"] == 1 and lines[1]["test_accuracy"] is None
    with pytest.raises(ValueError, match=r"\[log\] expected metrics among .*, got 'lost'"):
        controller.log(file, lost=1)
    with pytest.raises(ValueError, match=r"\[log\] expected loss to be a number, got str"):
        controller.log(file, loss="low")
    with pytest.raises(ValueError, match=r"\[log\] expected step >= 0, got 1.5"):
        controller.log(file, step=1.5)


def test_histograms_are_what_the_gates_saw(tmp_path):
    _, controller, step = two_layers("fp6", scales=(0.5, 2.0))
    controller.log(tmp_path / "x", histograms=True)
    step(0)
    controller.log(tmp_path / "x", histograms=True)
    lines = lines_of(tmp_path / "x")
    assert kinds(lines).count("histogram") == 2  # none before the first pass
    histograms = {line["layer"]: line for line in lines if line["kind"] == "histogram"}
    for name, line in histograms.items():
        assert torch.equal(stats_of(line).tensor, controller.gates[name].seen().tensor)
    fits = {line["layer"]: line["families"] for line in lines if line["kind"] == "fit"}
    assert fits["b"]["lognormal"]["log_std"] == pytest.approx(2, abs=0.05)
    assert fits["b"]["lognormal"]["ks"] < 0.02 < fits["b"]["normal"]["ks"]


@pytest.mark.parametrize("sample", ["normal", "wide", "subnormal", "zeros", "nonfinite"])
def test_histogram_lines_come_back(sample):
    x = {
        "normal": torch.randn(5000, generator=torch.Generator().manual_seed(1)),
        "wide": torch.tensor([1e-39, 1e-38, 1.0, 3e38]),
        "subnormal": torch.full((10,), 1e-40),
        "zeros": torch.zeros(10),
        "nonfinite": torch.tensor([0.0, math.nan, 1.0, math.inf]),
    }[sample]
    stats = sg.measure(x)
    assert torch.equal(stats_of(histogram_line(stats)).tensor, stats.tensor)


def test_laws_of_a_histogram_are_nearly_those_of_the_values():
    x = torch.exp(2 * torch.randn(50_000, generator=torch.Generator().manual_seed(1)))
    of_values = laws_of(fit_line(x))
    of_histogram = laws_of(fit_line(values_of(sg.measure(x))))
    for family, law in of_values.items():
        for name, value in law.params.items():
            assert of_histogram[family].params[name] == pytest.approx(value, rel=0.01, abs=0.01)


def test_a_histogram_of_zeros_is_the_trainers():
    """Which begins nowhere."""
    line = histogram_line(sg.measure(torch.zeros(10)))
    assert line["first_exponent"] is None and line["counts"] == []
