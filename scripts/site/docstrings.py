"""Docstrings of this project are paragraphs; arguments are lines of the form `name: what it is`,
with what follows indented. This makes Markdown of them while the reference is built."""

from __future__ import annotations

import re

import griffe

_ARGUMENT = re.compile(r"^(\w+(?:, \w+)*): (.*)$")


def as_markdown(text: str, names: set[str]) -> str:
    """names: of arguments and fields, so that no sentence with a colon becomes one."""
    out: list[str] = []
    in_list = in_table = False
    for line in text.splitlines():
        found = _ARGUMENT.match(line)
        if in_table and not line.startswith("  "):
            out += ["```", ""]
            in_table = False
        if found and set(found[1].split(", ")) <= names:
            if not in_list:
                out.append("")
            in_list = True
            what = ", ".join(f"`{name}`" for name in found[1].split(", "))
            out.append(f"- {what}: {found[2]}")
            continue
        if in_list and line and not line.startswith("    "):
            out.append("")
            in_list = False
        # A table of words, aligned by spaces: two in front, and more between its columns.
        if re.match(r"^  \S", line) and not in_table and not in_list:
            out += ["", "```text"]
            in_table = True
        out.append(line[2:] if in_table else line)
    return "\n".join([*out, "```"] if in_table else out)


class Docstrings(griffe.Extension):
    def _change(self, thing, names: set[str]) -> None:
        if thing.docstring:
            thing.docstring.value = as_markdown(thing.docstring.value, names)

    def on_function(self, *, func: griffe.Function, **_) -> None:
        self._change(func, {parameter.name.lstrip("*") for parameter in func.parameters})

    def on_class(self, *, cls: griffe.Class, **_) -> None:
        names = {name for name, member in cls.members.items() if member.is_attribute}
        if "__init__" in cls.members:
            names |= {parameter.name for parameter in cls.members["__init__"].parameters}
        self._change(cls, names)
