"""The tables of docs/results.md follow from the records, and from nothing else."""

import json

from bench import marked
from bench.papers import __main__ as papers
from bench.papers import laws, records
from bench.papers.records import ROOT


def test_the_page_is_what_the_records_say():
    found = records.Records(ROOT / "results" / "runs", records.names_in(ROOT / "results/runs.txt"))
    written = marked.read(ROOT / "docs" / "results.md", papers.WRITER)
    assert written == papers.text_of(found)


def test_every_record_is_of_the_list_and_whole():
    names = set(records.names_in(ROOT / "results" / "runs.txt"))
    for path in (ROOT / "results" / "runs").glob("*.jsonl"):
        assert path.stem in names
        last = json.loads(path.read_text().splitlines()[-1])
        assert last["kind"] == "end", path.name


def test_the_nearest_family_is_counted(tmp_path):
    lines = [{"kind": "config", "run": 1}]
    about = {"run": 1, "step": 1, "layer": "a", "tensor": "neural_gradient"}
    line = {"values": 4, "zeros": 0, "nonfinite": 0, "log_mean": 0.0, "log_std": 1.0}
    line |= {"max_abs": 1.5, "mean_abs": 1.0, "mean_square": 1.0}
    line |= {"first_exponent": 0, "bins_per_octave": 8, "counts": [4]}
    fit = {"normal": {"ks": 0.4, "scale": 1.0}, "laplace": {"ks": 0.2, "scale": 1.0}}
    lines += [{"kind": "histogram", **about, **line}, {"kind": "fit", **about, "families": fit}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, [*lines, {"kind": "end"}])))
    [run] = records.Records(tmp_path, ["a"]).runs.values()
    assert laws.winners(run) == {"laplace": 1}
    assert laws.distances(run, "normal") == [0.4] and laws.distances(run, "cauchy") == []


def test_an_unfinished_run_is_left_out(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"kind": "config", "run": 1, "epochs": 3}\n')
    found = records.Records(tmp_path, ["a", "b"])
    assert found.missing() == ["a", "b"]
    assert records.cell(found, "a") == "not trained yet"
