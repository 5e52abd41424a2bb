"""The layers of CONTRIBUTING.md: an include may only point downwards."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# What each folder may include, besides itself and the standard library.
MAY_INCLUDE = {
    "base": set(),
    "formats": {"base"},
    "math": {"base", "formats", "boost"},
    "kernels": {"base", "formats", "hwy"},
    # Read by compilers for GPUs, which know neither Boost nor Highway: of math and kernels it takes
    # rules for one value.
    "device": {"base", "formats", "math", "kernels"},
    "arrays": {"base", "formats", "math", "kernels", "xxhash", "json"},
    "torch": {"base", "formats", "math", "kernels", "device", "arrays", "libtorch"},
    "runtime": {"base", "formats", "math", "kernels", "device", "arrays", "torch", "libtorch"},
    "program": {"base", "formats", "math", "kernels", "arrays", "cli11", "json"},
    # The two programs print the same tables.
    "trainer": {
        "base",
        "formats",
        "math",
        "arrays",
        "torch",
        "runtime",
        "program",
        "libtorch",
        "cli11",
        "json",
    },
}
PROGRAMS = ("program", "trainer")

# Public headers are flat; each belongs to the layer that implements it.
PUBLIC_LAYER = {
    "error.h": "base",
    "seed.h": "base",
    "version.h": "base",
    "float_format.h": "formats",
    "half.h": "formats",
    "payload_info.h": "formats",
    "tensor_stats.h": "formats",
    "treatment.h": "formats",
    "distribution.h": "math",
    "format_choice.h": "math",
    "steps.h": "math",
    "threshold.h": "math",
    "apply.h": "arrays",
    "codec.h": "arrays",
    "fewbit.h": "arrays",
    "gate.h": "arrays",
    "measure.h": "arrays",
    "delta.h": "arrays",
    "hash128.h": "formats",
    "payload.h": "arrays",
    "slimgrad.h": "arrays",
    "activations.h": "torch",
    "functional.h": "torch",
    "gradient_gate.h": "torch",
    "saved_tensors.h": "runtime",
    "sparse_layers.h": "torch",
    "compress.h": "runtime",
    "diloco.h": "runtime",
    "exchange.h": "runtime",
    "stages.h": "runtime",
    "tensor_coder.h": "runtime",
    "gate_group.h": "runtime",
    "nn.h": "runtime",
    "tensor_files.h": "torch",
    "tensors.h": "torch",
    "torch.h": "runtime",
}

LIBRARIES = [
    (r"boost/", "boost"),
    (r"hwy/", "hwy"),
    (r"xxhash", "xxhash"),
    (r"(torch|ATen|c10|caffe2)/", "libtorch"),
    (r"CLI/", "cli11"),
    (r"nlohmann/", "json"),
]


def included_layer(path: str, quoted: bool) -> str | None:
    """The layer or library behind an include; None for the standard library and the system."""
    if path.startswith("slimgrad/"):
        return PUBLIC_LAYER[path.removeprefix("slimgrad/")]
    if quoted:
        return path.split("/")[0]
    for pattern, name in LIBRARIES:
        if re.match(pattern, path):
            return name
    assert "/" not in path or path.startswith(("sys/", "experimental/")), f"unknown library: {path}"
    return None


def arrows(file: Path):
    for line in file.read_text().splitlines():
        match = re.match(r'\s*#\s*include\s+([<"])([^>"]+)[>"]', line)
        if match:
            yield included_layer(match[2], match[1] == '"'), match[2]


def sources():
    for folder in MAY_INCLUDE:
        base = ROOT / (folder if folder in PROGRAMS else f"src/{folder}")
        files = sorted(base.rglob("*.[ch]*"))
        assert files, f"no sources in {base}"
        for file in files:
            yield pytest.param(folder, file, id=str(file.relative_to(ROOT)))
    for header in sorted((ROOT / "include/slimgrad").glob("*.h")):
        yield pytest.param(PUBLIC_LAYER[header.name], header, id=str(header.relative_to(ROOT)))


@pytest.mark.parametrize("layer, file", list(sources()))
def test_includes_point_downwards(layer, file):
    for target, path in arrows(file):
        if target is not None and target != layer:
            assert target in MAY_INCLUDE[layer], f"{layer} may not include {path}"


ALLOCATES = re.compile(r"#include <(vector|string|memory|map|deque)>|\bnew\b [A-Z]|\bmalloc\(")


@pytest.mark.parametrize(
    "file", sorted((ROOT / "src" / "kernels").rglob("*/*.*")), ids=lambda file: file.name
)
def test_kernels_do_not_allocate(file):
    """They are noexcept: memory that there is not would end the process."""
    code = re.sub(r"//.*", "", file.read_text())
    assert not ALLOCATES.search(code), f"{file.name} allocates; let the caller bring the memory"


# The rooms of a layer: the same words everywhere, so that a capability can be followed through all.
# What runs between processes has rooms in `runtime` alone, exchanges and the outer steps of local
# training; the Python package and its tests call it as torch does, `distributed`. What starts
# kernels of devices has a room in `torch` alone.
ROOMS = {"measure", "decide", "apply", "coding", "sparse", "fewbit", "saved", "compress"}
ROOMS |= {"exchange", "outer", "device"}


def test_layers_have_the_same_rooms():
    rooms = {
        layer: {room.name for room in (ROOT / "src" / layer).iterdir() if room.is_dir()}
        for layer in ("base", "formats", "math", "kernels", "device", "arrays", "torch", "runtime")
    }
    assert set().union(*rooms.values()) == ROOMS
    assert all(found <= ROOMS for found in rooms.values())
    for layer, found in rooms.items():
        tests = ROOT / "tests" / layer
        assert {room.name for room in tests.iterdir() if room.is_dir()} <= found


def test_python_tests_have_the_same_rooms():
    tests = ROOT / "tests" / "python"
    files = [file.relative_to(tests) for file in tests.rglob("*.py")]
    rooms = ROOMS - {"exchange", "outer"} | {"distributed"}
    assert {file.parts[0] for file in files if len(file.parts) > 1} == rooms
    assert all(len(file.parts) <= 2 for file in files)
    # pytest imports them by their names alone.
    assert len({file.name for file in files}) == len(files)


def test_the_check_sees_an_arrow_that_points_up(tmp_path):
    bad = tmp_path / "bad.h"
    bad.write_text(
        '#include "arrays/measure/measure.h"\n#include <torch/library.h>\n#include <vector>\n'
    )
    assert [target for target, _ in arrows(bad)] == ["arrays", "libtorch", None]
    assert "arrays" not in MAY_INCLUDE["math"]
    with_torch = {name for name, allowed in MAY_INCLUDE.items() if "libtorch" in allowed}
    assert with_torch == {"torch", "runtime", "trainer"}
