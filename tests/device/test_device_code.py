"""The code of the kernels for GPUs: nothing in it may change a bit, and nothing may be wasted.

`make check-device` builds what is read here; without nvcc, or without clang, that part is skipped.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/release/device"

# Instructions that do not give the bits of the CPU: contracted, approximate, flushing subnormals.
OTHER_BITS = re.compile(
    r"\bfma\.|\bmad\.(?:rn|rz)?\.?f|\.approx|\.ftz|\bdiv\.full|\b(?:sin|cos|ex2|lg2)\."
)
# One multiplication, addition, division, root or conversion, rounded to nearest.
FLOAT = re.compile(r"^\s+(?:@%p\d+ )?((?:add|sub|mul|div|rcp|sqrt)\.\S*f(?:32|64))", re.MULTILINE)
TYPES = ("f32", "bf16", "f16")


def text_of(name):
    file = FOLDER / name
    if not file.exists():
        pytest.skip(f"{name} was not built: its compiler is not here")
    return file.read_text()


def names():
    """The list, as the preprocessor sees it."""
    source = (ROOT / "src/device/kernel_list.h").read_text()
    all_names = []
    for name in re.findall(r"X\((slimgrad_\w+(?:##suffix)?),", source):
        if not name.endswith("##suffix"):
            all_names.append(name)
    values, words = source.split("#define SLIMGRAD_DEVICE_KERNELS_OF_WORDS")
    for part, suffixes in ((values, TYPES), (words, ("b16", "b32"))):
        for stem in re.findall(r"X\((slimgrad_\w+_)##suffix,", part):
            all_names += [stem + suffix for suffix in suffixes]
    return sorted(all_names)


def kernels_of(ptx):
    """From the name of each entry point to its text."""
    parts = re.split(r"^\.visible \.entry (\w+)\(", ptx, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("file", ["kernels.sm_80.ptx", "kernels.ptx"])
def test_every_kernel_of_the_list_is_there(file):
    assert sorted(kernels_of(text_of(file))) == names()
    assert len(names()) > 80


@pytest.mark.parametrize("file", ["kernels.sm_80.ptx", "kernels.ptx"])
def test_arithmetic_is_that_of_the_cpu(file):
    ptx = text_of(file)
    assert not OTHER_BITS.findall(ptx)
    operations = set(FLOAT.findall(ptx))
    assert operations  # there is arithmetic to look at
    # Said: without .rn a driver may contract two operations to one.
    assert all(".rn." in operation for operation in operations), operations


def test_ptx_for_older_drivers_says_so():
    ptx = text_of("kernels.ptx")
    assert ".version 7.0" in ptx and ".target sm_70" in ptx


def resources():
    """Registers, bytes of stack and of spills of each kernel, as ptxas says."""
    pattern = re.compile(
        r"Function properties for (\w+)\n\s+(\d+) bytes stack frame, (\d+) bytes spill stores, "
        r"(\d+) bytes spill loads\n.*Used (\d+) registers"
    )
    return {
        m[1]: tuple(map(int, m.groups()[1:]))
        for m in pattern.finditer(text_of("kernels.sm_80.resources"))
    }


def test_registers_suffice():
    """No spills; and few enough registers that the multiprocessor of an A100 is half full, or three
    eighths by a gate's treatment, which chooses among all treatments while it runs. Not of the plan
    of a gate: it is one block, most of which one thread does."""
    found = resources()
    assert sorted(found) == names()
    stack, stores, loads, registers = found.pop("slimgrad_gate_decide")
    assert stack <= 256 and stores <= 1024 and loads <= 1024 and registers <= 128
    for name, (stack, stores, loads, registers) in found.items():
        assert (stack, stores, loads) == (0, 0, 0), name
        most = 72 if name.startswith("slimgrad_gate_apply") else 64
        assert registers <= most, (name, registers)


def test_values_are_moved_in_16_bytes():
    """All arrays of values but those whose layout has four neighbours of 16 bits at most."""
    kernels = kernels_of(text_of("kernels.sm_80.ptx"))
    wide = re.compile(
        r"\b(ld|st)\.global(?:\.nc)?(?:\.L\S+)?\.v(?:4\.[bfu]32|2\.[bfu]64|8\.[bu]16)"
    )
    for kind in ("quantize", "prune", "prune_quantize", "drop", "max_magnitude", "pack", "unpack"):
        for suffix in TYPES:
            found = set(wide.findall(kernels[f"slimgrad_{kind}_{suffix}"]))
            if kind in ("max_magnitude",):
                assert "ld" in found, (kind, suffix)
            else:
                assert found == {"ld", "st"}, (kind, suffix, found)
    for kind in ("step_codes3", "step_backward3", "pack_saved4", "unpack_saved4"):
        assert wide.search(kernels[f"slimgrad_{kind}_f32"]), kind


def test_the_checks_see_what_they_look_for():
    for bad in (
        "fma.rn.f32 %f1, %f2, %f3, %f4;",
        "div.approx.f32 %f1, %f2, %f3;",
        "add.ftz.f32 %f1;",
    ):
        assert OTHER_BITS.search(f"\t{bad}\n")
    assert not OTHER_BITS.search("\tmad.lo.s32 %r1, %r2, %r3, %r4;\n\tdiv.rn.f32 %f1, %f2, %f3;\n")
    assert FLOAT.findall("\tmul.rz.f32 %f1, %f2, %f3;\n") == ["mul.rz.f32"]
