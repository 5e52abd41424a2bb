"""The tables of docs/results.md follow from the records, and from nothing else."""

import json

import pytest
from bench.papers import __main__ as papers
from bench.papers import laws, records
from bench.papers.records import ROOT
from scipy import stats


def test_the_page_is_what_the_records_say():
    found = records.Records(ROOT / "results" / "runs", records.names_in(ROOT / "results/runs.txt"))
    page = (ROOT / "docs" / "results.md").read_text()
    written = page.split(papers.BEGIN)[1].split(papers.END)[0]
    assert written == f"\n{papers.text_of(found)}\n"


def test_every_record_is_of_the_list_and_whole():
    names = set(records.names_in(ROOT / "results" / "runs.txt"))
    for path in (ROOT / "results" / "runs").glob("*.jsonl"):
        assert path.stem in names
        last = json.loads(path.read_text().splitlines()[-1])
        assert last["kind"] == "end", path.name


@pytest.mark.parametrize("count", [50, 200, 5000])
@pytest.mark.parametrize("distance", [0.01, 0.05, 0.1, 0.3])
def test_p_values_are_kolmogorovs(distance, count):
    # The exact law of a finite sample; Stephens's correction is good to some thousandths.
    assert laws.p_value(distance, count) == pytest.approx(stats.kstwo.sf(distance, count), abs=0.01)


def test_an_unfinished_run_is_left_out(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"kind": "config", "run": 1, "epochs": 3}\n')
    found = records.Records(tmp_path, ["a", "b"])
    assert found.missing() == ["a", "b"]
    assert records.cell(found, "a") == "not trained yet"
