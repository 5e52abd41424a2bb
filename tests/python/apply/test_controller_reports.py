"""Reports of a compressed model."""

import io
import json

import pytest
import torch
from controller_samples import two_layers
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")


def test_report_and_summary():
    _, controller, step = two_layers([sg.Prune(0.8), "fp6"], scales=(0.5, 2.0))
    fresh = controller.summary().splitlines()
    assert len(fresh) == 4 and fresh[-1] == "no backward pass yet"
    step(0)
    for row in controller.report().values():
        assert row["elements"] == 10_000 and row["calls"] == 1 and row["compressed"]
        assert 0.45 < row["cosine"] <= 1 and 0 < row["relative_error"] < 3
        assert row["sparsity_wanted"] == 0.8 and row["format"].startswith("1-") and row["scale"] > 0
    assert controller.report()["b"]["log_std"] == pytest.approx(2, abs=0.1)
    head, a, b, *warnings = controller.summary(width=500).splitlines()
    assert warnings == [f"warning: {sentence}" for sentence in controller.warnings()]
    assert all(word in head for word in ("wanted", "zeros", "cosine", "rel.err", "format", "scale"))
    assert a.split()[0] == "a" and "10000" in a.split() and "(0.800)" in a
    assert len(head) == len(a) == len(b)


def test_json_lines(tmp_path):
    _, controller, step = two_layers([sg.Prune(0.8), "fp6"])
    file, path = io.StringIO(), tmp_path / "log.jsonl"

    def strict(line):
        def refuse(constant):
            raise AssertionError(f"{constant} is not JSON")

        return json.loads(line, parse_constant=refuse)

    controller.log(path)
    for number in range(2):
        step(number)
        controller.log(path)
        controller.log(file, step=100 + number)
    step(2, scale=float("nan"))
    controller.log(path)
    step(3, scale=0.0)
    controller.log(str(path))
    config, *lines = [strict(line) for line in path.read_text().splitlines()]
    assert config["kind"] == "config" and {line["kind"] for line in lines} == {"layers"}
    of_a = [line for line in lines if line["layer"] == "a"]
    assert [line["step"] for line in of_a] == [0, 1, 2, 3, 4]
    in_file = [strict(line) for line in file.getvalue().splitlines()[1:] if '"a"' in line]
    assert [line["step"] for line in in_file] == [100, 101]
    assert of_a[2] == in_file[1] | {"step": 2}
    assert of_a[2]["sparsity"] == pytest.approx(0.8, abs=0.05)
    assert of_a[3]["nonfinite"] == 10_000


def test_tensorboard(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, controller, step = two_layers([sg.Prune(0.8), "fp6"])
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        for number in range(2):
            step(number)
            controller.log(writer)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    for key in ("sparsity", "sparsity_wanted", "cosine", "relative_error", "log_std", "scale"):
        for layer in "ab":
            series = events.Scalars(f"slimgrad/{key}/{layer}")
            assert [event.step for event in series] == [1, 2]
            assert series[-1].value == pytest.approx(controller.report()[layer][key], rel=1e-5)


def test_a_layer_that_is_not_called_is_named():
    class Borrowing(nn.Module):
        def __init__(self):
            super().__init__()
            self.called, self.borrowed = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            return nn.functional.linear(self.called(x), self.borrowed.weight)

    model = Borrowing()
    controller = sg.compress(model, "fp6", min_elements=1)
    for _ in range(2):
        model(torch.randn(64, 64)).sum().backward()
    assert any("come through borrowed: frozen" in sentence for sentence in controller.warnings())
