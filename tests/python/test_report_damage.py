"""Files that are large, cut or wrong: the page is made, or refused in one line."""

import json
import random

import numpy as np
import pytest
from report_samples import TRAINER_RUNS, command, figures_in, lines_of, trace

from slimgrad.report import ReportError, write_report
from slimgrad.report.figure import MOST_COLUMNS, MOST_POINTS
from slimgrad.report.page import page
from slimgrad.report.reading import read

pytestmark = pytest.mark.usefixtures("one_thread")


def test_long_runs_are_thinned(tmp_path):
    path = tmp_path / "long.jsonl"
    with path.open("w") as file:
        for step in range(1, 50_001):
            at = {"run": 1, "step": step}
            layer = {"kind": "layers", **at, "layer": f"l{step % 2}", "log_std": 1.0, "cosine": 0.5}
            file.write(json.dumps({"kind": "epoch", **at, "loss": 1 / step}) + "\n")
            file.write(json.dumps(layer) + "\n")
    write_report([path], tmp_path / "page.html")
    figures = figures_in(tmp_path / "page.html")
    x = trace(figures, "loss")["x"]
    assert len(x) == MOST_POINTS and x[0] == 1 and x[-1] == 50_000
    assert len(trace(figures, "cosine")["x"]) == MOST_COLUMNS
    assert (tmp_path / "page.html").stat().st_size < 6_000_000


def test_a_cut_last_line_is_passed_over(tmp_path):
    text = TRAINER_RUNS.read_text()
    path = tmp_path / "cut.jsonl"
    path.write_text(text[: text.rindex('"end"') + 40])
    answer = command(path, "-o", tmp_path / "page.html")
    assert answer.returncode == 0
    assert "note: cut.jsonl: the last line is incomplete and was skipped" in answer.stderr
    assert "note: cut.jsonl: run 3 has not finished" in answer.stderr
    assert len(figures_in(tmp_path / "page.html")["bits"][0]["panels"][0]["data"][0]["x"]) == 3


def test_unknown_kinds_and_fields_are_passed_over(tmp_path):
    lines = [line | {"later": [1]} for line in lines_of(TRAINER_RUNS)]
    lines.insert(3, {"kind": "weather", "run": 1})
    path = tmp_path / "later.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_report([path], tmp_path / "page.html")
    assert len(figures_in(tmp_path / "page.html")) == 15


GOOD = {"kind": "epoch", "run": 1, "step": 1}
HISTOGRAM, FIT = (
    next(line for line in lines_of(TRAINER_RUNS) if line["kind"] == kind)
    for kind in ("histogram", "fit")
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected lines of JSON, got an empty file"),
        ("hello\n", "bad.jsonl:1: expected a line of JSON, got 'hello'"),
        (json.dumps(GOOD) + '\n{"kind"\n', "bad.jsonl:2: expected a line of JSON"),
        ("[1]\n", 'bad.jsonl:1: expected an object with "kind"'),
        ('{"step": 1}\n', 'bad.jsonl:1: expected an object with "kind"'),
        ('{"kind": "config", "schema": 2}\n', "expected schema 1, got 2"),
        (
            '{"kind": "epoch", "step": "x"}\n',
            "expected step of a line of kind epoch to be int, got 'x'",
        ),
        (
            json.dumps(HISTOGRAM | {"counts": [-1]}) + "\n",
            "expected counts and magnitudes that a float32 tensor can have",
        ),
        (json.dumps(HISTOGRAM | {"max_abs": -1.0}) + "\n", "expected counts and magnitudes"),
        (json.dumps(FIT | {"families": {"normal": 1}}) + "\n", "numbers by name"),
        (
            f"{json.dumps(HISTOGRAM)}\n{json.dumps(FIT | {'families': {'normal': {'size': 1}}})}\n",
            "[Distribution] expected scale for normal",
        ),
        (json.dumps(HISTOGRAM | {"first_exponent": 500}) + "\n", "expected counts and magnitudes"),
        (json.dumps(HISTOGRAM | {"bins_per_octave": 16}) + "\n", "expected 8 bins an octave"),
        ("\x00\x01", "bad.jsonl"),
    ],
)
def test_bad_files(tmp_path, text, says):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    if text == "\x00\x01":
        path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ReportError) as error:
        write_report([path], tmp_path / "page.html")
    assert says in str(error.value) and "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros(5, np.float32), "expected values other than zero"),
        (np.arange(5), "expected float16, float32 or float64 values, got 5 int64"),
        (np.empty(0, np.float32), "got 0 float32"),
        (np.array([{}], dtype=object), "expected a .npy file of numbers"),
    ],
)
def test_bad_tensors(tmp_path, array, says):
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    with pytest.raises(ReportError, match=says):
        write_report([tmp_path / "x.npy"], tmp_path / "page.html")


def test_the_command_says_it_in_one_line(tmp_path):
    answer = command(tmp_path / "none.jsonl", "-o", tmp_path / "page.html")
    assert answer.returncode == 2 and answer.stdout == ""
    said = f"slimgrad report: {tmp_path / 'none.jsonl'}: No such file or directory\n"
    assert answer.stderr == said
    answer = command(TRAINER_RUNS, "-o", tmp_path / "no" / "page.html")
    assert answer.returncode == 2 and answer.stderr.count("\n") == 1


# ---- lines that nobody wrote -------------------------------------------------------------------

ODD = [None, True, -1, 0, 3, 0.5, 1e308, 1e-320, 2**70, "x", [], {}, [1], {"a": 1}, float("nan")]


def damaged(seed):
    """Some lines of a run, with up to three fields taken out or replaced."""
    choice = random.Random(seed)
    lines = TRAINER_RUNS.read_text().splitlines()
    lines = [json.loads(lines[i]) for i in sorted(choice.sample(range(len(lines)), 12))]
    for _ in range(choice.randint(1, 3)):
        line = choice.choice(lines)
        name = choice.choice(list(line)[2:])
        if choice.random() < 0.3:
            del line[name]
        else:
            line[name] = choice.choice(ODD)
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_damaged_runs(tmp_path, first):
    drawn = 0
    for seed in range(first, first + 10):
        path = tmp_path / "run.jsonl"
        path.write_text(damaged(seed))
        try:
            drawn += len(page(*read([path]), "title", "")) > 0
        except ReportError as error:
            assert "\n" not in str(error)
    assert 0 < drawn < 10


NORMAL = np.random.default_rng(0).normal(size=5000)
TENSORS = {
    "constant": np.full(1000, 0.5, np.float32),
    "single": np.array([3.0], np.float32),
    "far apart": np.array([1e-30, 1e30], np.float32),
    "subnormal": np.full(100, 1e-41, np.float32),
    "outlier": np.append(NORMAL * 1e-6, 1e6).astype(np.float32),
    "signs": np.sign(NORMAL).astype(np.float32),
    "nonfinite": np.append(NORMAL, [np.nan, np.inf]).astype(np.float32),
    "half": NORMAL.astype(np.float16),
    "largest": np.full(9, 3.4e38, np.float32),
}


@pytest.mark.parametrize("name", TENSORS)
def test_extreme_tensors(tmp_path, name):
    np.save(tmp_path / "x.npy", TENSORS[name])
    text = page(*read([tmp_path / "x.npy"]), "title", "")
    assert 'id="laws"' in text and 'id="cost"' in text
