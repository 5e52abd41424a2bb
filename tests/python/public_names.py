"""The public names of the package with their signatures, a line each.

    .venv/bin/python tests/python/public_names.py > docs/public_names.txt

What users may rely on is what a module lists in __all__, and of classes the methods and properties
without an underscore that slimgrad defines itself.
"""

import dataclasses
import enum
import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType

MODULES = ("slimgrad", "slimgrad.nn", "slimgrad.functional", "slimgrad.distributed")
HEAD = """\
# The public names of slimgrad, with signatures; tests/python/test_public_names.py compares them.
# Written by: .venv/bin/python tests/python/public_names.py > docs/public_names.txt
"""


def _signature(value: object) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    # Without annotations, which differ in spelling between releases of Python.
    plain = [
        parameter.replace(
            annotation=inspect.Parameter.empty,
            default=... if inspect.isroutine(parameter.default) else parameter.default,
        )
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def _is_ours(value: object) -> bool:
    return getattr(value, "__module__", "").split(".")[0] == "slimgrad"


def _members(name: str, cls: type) -> Iterator[str]:
    fields = {f.name for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    yield from (f"{name}.{field}" for field in fields if not field.startswith("_"))
    for member in dir(cls):
        owner = next((base for base in cls.__mro__ if member in vars(base)), object)
        if member.startswith("_") or member in fields or not _is_ours(owner):
            continue
        value = inspect.getattr_static(cls, member)
        if isinstance(value, staticmethod | classmethod):
            value = getattr(cls, member)
        yield f"{name}.{member}" + (_signature(value) if inspect.isroutine(value) else "")


def public_names() -> list[str]:
    lines: set[str] = set()
    for path in MODULES:
        module = importlib.import_module(path)
        for name in module.__all__:
            value = getattr(module, name)
            whole = f"{path}.{name}"
            if isinstance(value, ModuleType) or not callable(value):
                lines.add(whole)
                continue
            lines.add(whole + _signature(value))
            if inspect.isclass(value) and not issubclass(value, enum.Enum | Warning):
                lines.update(_members(whole, value))
    return sorted(lines)


if __name__ == "__main__":
    print(HEAD + "\n".join(public_names()))
