"""What controller.log() writes: the lines of docs/runs.md."""

import io
import math

import pytest
import torch
from controller_samples import make, train, two_layers
from report_samples import TRAINER_RUNS, lines_of, own_run

import slimgrad as sg
from slimgrad.compression.records import fit_line, histogram_line, laws_of, stats_of, values_of

pytestmark = pytest.mark.usefixtures("one_thread")


def kinds(lines):
    return [line["kind"] for line in lines]


def test_lines_have_the_fields_of_the_trainers(tmp_path):
    own_run(tmp_path / "own.jsonl", [sg.Prune(0.9), sg.Quantize(bits=4)])
    own, trainers = lines_of(tmp_path / "own.jsonl"), lines_of(TRAINER_RUNS)
    for kind in ("layers", "histogram"):
        ours = [line for line in own if line["kind"] == kind]
        theirs = [line for line in trainers if line["kind"] == kind and line["run"] == 3]
        assert set(theirs[0]) <= set(ours[0])
    fields = {name for line in trainers if line["kind"] == "config" for name in line}
    (config,) = [line for line in own if line["kind"] == "config"]
    assert set(config) - fields == {"machine", "saved"}  # younger than that file


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
