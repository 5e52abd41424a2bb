"""Runs on a page have the names of what was set, whoever wrote their lines."""

import json
import re

import pytest
import torch
from report_samples import figures_in, lines_of
from torch import nn
from trainer_runs import lines_of as trainer_lines

import slimgrad as sg
from slimgrad.report import write_report

pytestmark = pytest.mark.usefixtures("one_thread")

# By what slimgrad-train calls them: what compress() calls them.
GRADIENTS = {
    "none": None,
    "fp6": "fp6",
    "1-3-2": sg.Quantize(format="1-3-2"),
    "prune:0.8": sg.Prune(0.8),
    "prune:0.8+fp6": [sg.Prune(0.8), "fp6"],
    "sparse:0.9:0.5": sg.Prune(weight=0.9, input=0.5),
}
OTHERS = [(None, None), (3, None), (None, 4), (3, 4), ("exact", "exact")]
TRAINER = ["--model", "mlp", "--train-size", "64", "--test-size", "32", "--batch", "32"]
TRAINER += ["--epochs", "1", "--threads", "1", "--min-accuracy", "0"]


def name_of(gradients, activations, saved):
    words = [] if gradients == "none" else [gradients]
    words += [] if activations is None else [f"activations {activations}"]
    words += [] if saved is None else [f"saved {saved}"]
    return ", ".join(words) or "plain"


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10))


def steps(model, log, count=2):
    for step in range(1, count + 1):
        loss = model(torch.randn(64, 64)).square().mean()
        loss.backward()
        log(step, loss)


def names_on(page):
    """In the table, and in the figure of the losses."""
    text = page.read_text(encoding="utf-8")
    table = re.findall(r"</span>([^<]*)</td>", text)
    drawn = [trace["name"] for trace in figures_in(page)["loss"][0]["panels"][0]["data"]]
    return table, list(dict.fromkeys(drawn))


def own_line(path, gradients, activations, saved):
    """The config line of a run of one's own, which is appended to ``path``."""
    model = network()
    if (gradients, activations, saved) == ("none", None, None):
        steps(model, lambda step, loss: sg.log_run(model, path, step, loss=loss))
    else:
        options = {"activations": activations, "saved": saved, "min_elements": 1, "seed": 1}
        controller = sg.compress(model, GRADIENTS[gradients], **options)
        steps(model, lambda step, loss: controller.log(path, step, loss=loss))
    return [line for line in lines_of(path) if line["kind"] == "config"][-1]


@pytest.mark.parametrize(("activations", "saved"), OTHERS)
def test_both_writers_say_what_was_set_and_the_page_says_it(tmp_path, activations, saved):
    wanted = [name_of(gradients, activations, saved) for gradients in GRADIENTS]
    own = [own_line(tmp_path / "own", name, activations, saved) for name in GRADIENTS]
    more = [] if activations is None else ["--activations", activations, "--nonlinearity", "gelu"]
    more += [] if saved is None else ["--saved", saved]
    trained, _ = trainer_lines(tmp_path / "trained", *TRAINER, *more, "--gradients", *GRADIENTS)
    for run, (name, line) in enumerate(zip(GRADIENTS, own, strict=True), 1):
        theirs = trained.one("config", run)
        assert line["gradients"] == theirs["gradients"] == name
        for field in ("activations", "saved", "schema", "version", "machine"):
            assert line[field] == theirs[field]
        # What has the same name has the same meaning and type; of options, the same default.
        for field in line.keys() & {"split", "scale", "rounding", "underflow", "refresh", "warmup"}:
            assert line[field] == theirs[field]
        for field in line.keys() & {"prune", "threshold", "allocation", "cap"}:
            assert line[field] == theirs[field]
        settings = {field for field in line if not field.startswith("saved_")}
        assert settings <= theirs.keys()
        assert line["model"] == "Sequential" and line["parameters"] == 9610
        assert ("saved_bytes" in trained.one("epoch", run)) == (saved is not None)
    for line in lines_of(tmp_path / "own"):
        if line["kind"] == "epoch":
            assert line.keys() <= trained.one("epoch").keys()
            assert ("saved_bytes" in line) == (saved is not None)
    for writer in ("own", "trained"):
        write_report([tmp_path / writer], tmp_path / "page.html")
        assert names_on(tmp_path / "page.html") == (wanted, wanted)


def test_saved_tensors_and_forward_passes_in_int4_have_names(tmp_path):
    model = network()
    controller = sg.compress(model, saved=4, seed=1)
    steps(model, lambda step, loss: controller.log(tmp_path / "own", step, loss=loss))
    trainer_lines(tmp_path / "trained", *TRAINER, "--gradients", "none", "--fake-int4")
    write_report([tmp_path / "own", tmp_path / "trained"], tmp_path / "page.html")
    assert names_on(tmp_path / "page.html")[0] == ["saved 4", "fake int4"]
    (epoch, *_) = [line for line in lines_of(tmp_path / "own") if line["kind"] == "epoch"]
    assert 0 < epoch["saved_bytes"] < epoch["plain_saved_bytes"]
    assert "<th>saved for backward</th>" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_runs_of_other_settings_do_not_go_on_in_each_others_lines(tmp_path):
    """Also where their steps would fit together."""
    path = tmp_path / "runs"
    own_line(path, "fp6", None, None)
    model = network()
    sg.log_run(model, path, 7, loss=1)
    sg.log_run(model, path, 8, loss=1)
    sg.log_run(network(), path, 9, loss=1)  # the same, resumed
    sg.compress(model, activations=3).log(path, 10, loss=1)
    configs = [line for line in lines_of(path) if line["kind"] == "config"]
    found = [(line["gradients"], line["activations"]) for line in configs]
    assert found == [("fp6", "torch"), ("none", "torch"), ("none", "3")]


def test_layers_of_the_authors_are_no_plain_run(tmp_path):
    model = nn.Sequential(nn.Linear(64, 64), sg.nn.GELU(bits=3), sg.nn.SiLU(bits="exact"))
    sg.log_run(model, tmp_path / "runs", 1, loss=1)
    (config, _) = lines_of(tmp_path / "runs")
    assert config["activations"] == "3+exact"


def test_what_is_refused(tmp_path):
    model, path = network(), tmp_path / "runs"
    with pytest.raises(TypeError, match=r"\[log_run\] expected model to be a module, got str"):
        sg.log_run("model", path, 1, loss=1)
    for step in (None, -1, True, 1.5):
        with pytest.raises(ValueError, match=r"\[log_run\] expected step >= 0, got"):
            sg.log_run(model, path, step, loss=1)
    with pytest.raises(ValueError, match=r"\[log_run\] expected at least one of epoch, loss"):
        sg.log_run(model, path, 1)
    with pytest.raises(ValueError, match=r"\[log_run\] expected metrics among .*, got 'lost'"):
        sg.log_run(model, path, 1, lost=1)
    controller = sg.compress(model, saved=4)
    with pytest.raises(ValueError, match=r"\[log_run\] expected a model without compressed layers"):
        sg.log_run(model, path, 1, loss=1)
    with pytest.raises(ValueError, match=r"\[log\] expected step, because .*, got none"):
        controller.log(path, loss=1)
    assert not path.exists()


class Writer:
    def __init__(self):
        self.found = []

    def add_scalar(self, *entry):
        self.found.append(entry)


def test_scalars_of_a_plain_run():
    writer = Writer()
    sg.log_run(network(), writer, 3, loss=torch.tensor(2.0), rate=0.1)
    assert writer.found == [("slimgrad/loss", 2.0, 3), ("slimgrad/rate", 0.1, 3)]


# ---- what the page says of losses that somebody logged -------------------------------------------


def note_of(page, figure):
    text = page.read_text(encoding="utf-8")
    return re.search(rf'id="{figure}".*?<p class="note">([^<]*)</p>', text)[1]


def test_captions_are_true_of_logged_losses(tmp_path):
    own, trained, page = (tmp_path / name for name in ("own", "trained", "page.html"))
    model = network()
    for step, loss in ((1, 0.5), (2, -1.5)):
        sg.log_run(model, own, step, loss=loss, accuracy=0.5)
    trainer_lines(trained, *TRAINER, "--gradients", "none")
    write_report([own], page)
    variant = figures_in(page)["loss"][0]
    assert "nats" not in json.dumps(variant) and "nats" not in note_of(page, "loss")
    assert "passed to controller.log() or log_run()" in note_of(page, "loss")
    assert variant["title"] == "The logged loss goes from 0.5 to -1.5"
    assert "type" not in variant["panels"][0]["layout"]["yaxis"]  # not logarithmic: one is below 0
    assert "ends at 50.0 % logged accuracy" in figures_in(page)["accuracy"][0]["title"]
    assert "after each epoch" not in note_of(page, "accuracy")
    write_report([trained], page)
    assert note_of(page, "loss").startswith("Cross-entropy in nats")
    assert "training loss goes from" in figures_in(page)["loss"][0]["title"]
    write_report([own, trained], page)
    assert note_of(page, "loss").startswith("Of slimgrad-train: Cross-entropy in nats")
    assert "Of other runs: The loss" in note_of(page, "loss")


def test_plain_training_is_what_compressed_runs_are_measured_by(tmp_path):
    """And not a run that compresses something else than gradients."""
    path = tmp_path / "runs"
    for how, accuracy in (({"gradients": "fp6"}, 0.5), ({"saved": 4}, 0.9)):
        model = network()
        controller = sg.compress(model, min_elements=1, **how)
        steps(model, lambda step, _: controller.log(path, step, test_accuracy=accuracy), 1)  # noqa: B023
    sg.log_run(network(), path, 1, test_accuracy=0.505)
    write_report([path], tmp_path / "page.html")
    title = figures_in(tmp_path / "page.html")["accuracy-sparsity"][0]["title"]
    assert title.endswith("within a point of plain training's 50.5 %")


# ---- gradients of zeros --------------------------------------------------------------------------


def test_gradients_of_zeros_can_be_on_a_page(tmp_path):
    lines, _ = trainer_lines(
        tmp_path / "zeros", "--model", "resnet20", "--norm", "none", "--probe-at", "1", *TRAINER[2:]
    )
    empty = [line for line in lines.of("histogram") if not line["counts"]]
    assert empty and all(line["first_exponent"] is None for line in empty)
    assert write_report([tmp_path / "zeros"], tmp_path / "page.html") == []
