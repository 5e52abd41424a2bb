"""Lines that nobody wrote: the page is made, or refused in one line; nothing else happens."""

import json
import random

import numpy as np
import pytest
from report_samples import TRAINER_RUNS

from slimgrad.report import ReportError
from slimgrad.report.page import page
from slimgrad.report.reading import read

pytestmark = pytest.mark.usefixtures("one_thread")

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
