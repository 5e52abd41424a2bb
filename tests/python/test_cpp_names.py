"""What Python can, C++ can: every public name of Python is in a header of C++, or listed below with
the reason why not."""

import re
from pathlib import Path

from public_names import public_names

HEADERS = Path(__file__).resolve().parents[2] / "include" / "slimgrad"

# Other words for the same thing: Python's name, and what C++ calls it.
OTHERWISE = {
    "slimgrad.FAMILIES": "kAllFamilies",
    "slimgrad.Allocation": "LayerAllocation",
    "slimgrad.Controller": "Compression",
    "slimgrad.LossScale": "dynamic_scale",
    "slimgrad.Prune": "GradientSettings",
    "slimgrad.Quantize": "GradientSettings",
    "slimgrad.Saved": "SavedOptions",
    "slimgrad.saved_tensors": "SavedTensorsGuard",
    "slimgrad.SparsityWarning": "nothing_to_prune",
    "slimgrad.StateWarning": "load_state_dict",
    "slimgrad.distributed.CODECS": "names",
    "slimgrad.distributed.Handle": "PendingExchange",
    "slimgrad.distributed.Outer": "OuterOptions",
}
PYTHONS_BY_NATURE = {
    "slimgrad.log_run": "logs are read by the report pages",
    "slimgrad.nn.ConversionReport": "of converting a model in place by changing classes",
    "slimgrad.nn.convert_activations": "converts a model in place by changing classes",
    "slimgrad.distributed.register": "registers hooks of DDP and FSDP2",
    "slimgrad.distributed.CompressedPipelineStage": "is a stage of torch.distributed.pipelining",
    "slimgrad.distributed.Plan": "is what register returns",
    "slimgrad.distributed.StageBoundary": "is a module with a gate, without processes",
}
TO_COME = {
    "slimgrad.distributed.Choice": "of codec='auto', with estimates",
    "slimgrad.distributed.Estimate": "estimates",
    "slimgrad.distributed.estimate": "estimates",
}


def python_names() -> list[str]:
    """Of functions, classes and modules; not of their members."""
    names = {line.partition("(")[0] for line in public_names()}
    modules = {"slimgrad.functional", "slimgrad.nn", "slimgrad.distributed"}
    parts = [name.split(".") for name in sorted(names - modules)]
    depth = {True: 3, False: 2}
    return [".".join(p) for p in parts if len(p) == depth[".".join(p[:2]) in modules]]


def declared(*headers: str) -> set[str]:
    """Names that headers declare: types, functions, constants, members."""
    found: set[str] = set()
    for path in [HEADERS / name for name in headers] or sorted(HEADERS.glob("*.h")):
        code = re.sub(r"//.*", "", path.read_text())
        found |= set(re.findall(r"\b(?:class|struct|using|TORCH_MODULE\()\s*(\w+)", code))
        found |= set(re.findall(r"[\w>&*\]]\s+[&*]?(\w+)\s*(?:\(|=|;|\{)", code))
    return found


def is_listed(name: str, lists: dict[str, str]) -> bool:
    return any(name == key or name.startswith(f"{key}.") for key in lists)


def is_declared(name: str) -> bool:
    _, *room, last = name.split(".")
    if name in OTHERWISE:
        return OTHERWISE[name] in declared()
    if room == ["nn"]:
        return last in declared("nn.h")
    if room == ["functional"]:
        return last in declared("functional.h")
    return last in declared()


def test_every_name_of_python_is_in_cpp_or_has_its_reason():
    names = python_names()
    assert len(names) > 80
    missing = [
        name
        for name in names
        if not is_listed(name, PYTHONS_BY_NATURE | TO_COME) and not is_declared(name)
    ]
    assert missing == []


def test_lists_have_nothing_that_is_gone_or_has_come():
    names = python_names()
    for key in OTHERWISE | PYTHONS_BY_NATURE | TO_COME:
        assert any(is_listed(name, {key: ""}) for name in names), key
    come = [name for name in TO_COME if name in names and is_declared(name)]
    assert come == []


def test_a_name_that_is_nowhere_is_noticed():
    assert not is_declared("slimgrad.quantise")
    assert not is_declared("slimgrad.nn.quantize")
    assert not is_declared("slimgrad.functional.Linear")
