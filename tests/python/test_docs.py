"""The code of README and docs: every Python block runs, or says to the test that it does not, and
prints what the page says (doc_blocks.py has how blocks are marked)."""

import ast
import os
import subprocess
import sys

import pytest
import torch
from doc_blocks import NOT_RUN, PAGES, ROOT, blocks_of, form, python_blocks, run_blocks


def with_word(word):
    return [name for name, page in PAGES.items() if python_blocks(page, word)]


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """Files that blocks write are nobody's; torch is left as it was."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        yield tmp_path
    torch.set_num_threads(threads)


def check(name, word):
    blocks = python_blocks(PAGES[name], word)
    for block, out in zip(blocks, run_blocks(PAGES[name], blocks), strict=True):
        if block.printed is not None:
            assert form(out) == form(block.printed), f"{name}:{block.line} printed\n{out}"


@pytest.mark.parametrize("name", with_word(""))
def test_blocks_run_and_print_what_the_page_says(name, beside):
    check(name, "")


@pytest.mark.parametrize("name", with_word("transformers"))
def test_blocks_with_transformers(name, beside, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    check(name, "transformers")


@pytest.mark.parametrize("name", with_word("torchrun"))
def test_programs_for_torchrun(name, tmp_path):
    for block in python_blocks(PAGES[name], "torchrun"):
        (tmp_path / "train.py").write_text(block.text)
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        done = subprocess.run(
            [sys.executable, *launch, "train.py"],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert block.printed is None or form(done.stdout) == form(block.printed), done.stdout


def test_what_is_not_run_is_python():
    for name, page in PAGES.items():
        for block in python_blocks(page, NOT_RUN):
            ast.parse(block.text, f"{name}:{block.line}")


def test_every_fence_has_a_language_and_a_known_word():
    known = {"python": {"", NOT_RUN, "transformers", "torchrun"}}
    for name, page in PAGES.items():
        assert page.read_text().count("\n```") % 2 == 0, name
        for block in blocks_of(page):
            assert block.language, f"{name}:{block.line}"
            assert block.word in known.get(block.language, {""}), f"{name}:{block.line}"


def test_the_readme_is_a_front_door():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 140
    assert "docs/figures/front.svg" in text
    (ten_lines,) = python_blocks(ROOT / "README.md")
    assert len(ten_lines.text.strip().splitlines()) <= 14
