"""The parts of pages between marks are what the scripts that wrote them make of the records."""

import json
from pathlib import Path

import pytest
from bench import (
    device_cost,
    diloco,
    distributed_cost,
    distributed_page,
    jobs_page,
    marked,
    rate,
    saved_page,
)

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results"


def record(name):
    return json.loads((RECORDS / f"{name}.json").read_text())


def test_the_tables_of_saved_tensors():
    made = saved_page.page(*(record(name.removesuffix(".json")) for name in saved_page.NAMES))
    assert marked.read(ROOT / "docs" / "saved.md", saved_page.WRITER) == made.strip("\n")


def test_the_tables_of_exchanges():
    page = ROOT / "docs" / "distributed.md"
    made = distributed_page.page(record("distributed"), record("distributed_convergence"))
    assert marked.read(page, distributed_page.WRITER) == made.strip("\n")
    made = distributed_cost.page(record("distributed_cost"), record("distributed"))
    assert marked.read(page, distributed_cost.WRITER) == made.strip("\n")


def test_the_table_of_diloco():
    is_measured = (RECORDS / "diloco.json").exists()
    made = diloco.table(record("diloco") if is_measured else {"rows": []})
    assert marked.read(ROOT / "docs" / "distributed.md", diloco.WRITER) == made


def test_the_tables_of_rates():
    made = rate.table(record("rate"))
    assert marked.read(ROOT / "docs" / "coding.md", rate.WRITER) == made


def test_the_table_of_device_kernels():
    made = device_cost.table(record("device_cost"))
    assert marked.read(ROOT / "docs" / "gpu.md", device_cost.WRITER) == made.strip("\n")


def test_the_tables_of_jobs():
    made = jobs_page.page(RECORDS)
    assert marked.read(ROOT / "docs" / "results.md", jobs_page.WRITER) == made.strip("\n")


def test_a_part_is_replaced_and_the_rest_stays(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{marked.begin('a script')}\nold\n{marked.END}\n\nafter\n")
    marked.write(page, "a script", "new\n")
    assert marked.read(page, "a script") == "new"
    assert page.read_text().startswith("before\n") and page.read_text().endswith("\n\nafter\n")
    with pytest.raises(ValueError, match="no part that another writes"):
        marked.write(page, "another", "new")
