"""The fenced blocks of a page, and how its Python is run.

A word behind the language says how, and no reader sees it on the site:

    python              runs; the blocks of a page are one program, in their order
    python NAME         another program of the page: "transformers" needs that package, "torchrun"
                        is a file of its own for two processes
    python no-run       of another library, or a fragment: it must be Python, and is not run
    text                what the block before it printed, up to numbers and spaces
"""

import ast
import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Its blocks have names of their own, and a test that trains with them (tests/clients).
OTHERS = {"docs/checkpoints.md"}
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if path.relative_to(ROOT).as_posix() not in OTHERS
}
NOT_RUN = "no-run"


@dataclass
class Block:
    language: str
    word: str
    text: str
    line: int
    printed: str | None = None  # what the page says that it prints


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found: list[Block] = []
    for match in re.finditer(r"^```(\w*)(?: ([\w-]+))?\n(.*?)^```$", text, re.M | re.S):
        line = text.count("\n", 0, match.start()) + 2
        language, word, body = match[1], match[2] or "", match[3]
        if language == "text" and found and found[-1].language == "python":
            found[-1].printed = body
        else:
            found.append(Block(language, word, body, line))
    return found


def python_blocks(page: Path, word: str = "") -> list[Block]:
    return [b for b in blocks_of(page) if b.language == "python" and b.word == word]


def form(text: str) -> list[str]:
    """Without what differs between machines: digits, signs in front of them, and spaces."""
    lines = [re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?", "#", line) for line in text.splitlines()]
    return [" ".join(line.split()) for line in lines if line.strip()]


def run_blocks(page: Path, blocks: list[Block]) -> list[str]:
    """What each printed. Tracebacks have the line of the page."""
    names: dict = {"__name__": "__main__"}
    printed = []
    for block in blocks:
        tree = ast.parse(block.text, str(page))
        ast.increment_lineno(tree, block.line - 1)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(tree, str(page), "exec"), names)
        printed.append(out.getvalue())
    return printed
