"""slimgrad measure, fit and threshold of .safetensors files, tensor by tensor."""

import struct

import numpy as np
import pytest
from program_runs import bfloat16, fail, gradient, read_json, run, safetensors, save, succeed

COMMANDS = [["measure"], ["fit"], ["threshold", "--sparsity", "0.9"]]
# What the values of these types are, as .npy files have them.
FLOATS = {
    "layers.0.weight": ("F32", gradient(3000).astype("f4").reshape(30, 100)),
    "layers.0.half": ("F16", (100 * gradient(999)).astype("f2")),
    "layers.1.brain": ("BF16", bfloat16(gradient(1000, 2))),
    "layers.1.double": ("F64", gradient(100, 3)),
}
OTHERS = {
    "odd bytes": ("BOOL", np.array([True, False, True])),
    "codes": ("I8", np.arange(4, dtype="i1")),
    "steps": ("I64", np.arange(7)),
    "bias": ("F32", np.zeros(10, "f4")),
    "nothing": ("F32", np.zeros((0, 3), "f4")),
    "broken": ("F16", np.full(3, np.nan, "f2")),
}


@pytest.fixture
def model(tmp_path):
    # The first has three bytes, so that the others lie at odd places.
    tensors = {"odd bytes": OTHERS["odd bytes"], **FLOATS, **OTHERS}
    return safetensors(tmp_path / "m.safetensors", tensors, {"format": "pt"})


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_each_tensor_is_reported_as_from_a_file_of_its_own(command, model, tmp_path):
    found = read_json(*command, model)
    assert [entry["tensor"] for entry in found["files"]] == list(FLOATS)
    for entry, (name, (kind, array)) in zip(found["files"], FLOATS.items(), strict=True):
        alone = save(tmp_path / "alone.npy", array)
        flags = ["--bfloat16"] if kind == "BF16" else []
        (want,) = read_json(*command, alone, *flags)["files"]
        assert (entry.pop("file"), entry.pop("tensor")) == (str(model), name)
        want.pop("file")
        assert entry == want


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_the_rest_is_skipped_with_the_reason(command, model):
    skipped = {entry["tensor"]: entry for entry in read_json(*command, model)["skipped"]}
    assert set(skipped) == set(OTHERS)
    assert all(entry["file"] == str(model) for entry in skipped.values())
    assert "got I64" in skipped["steps"]["reason"]
    assert "got I8" in skipped["codes"]["reason"]
    assert skipped["bias"]["reason"] == "all 10 values are zero"
    assert "empty" in skipped["nothing"]["reason"]
    assert "NaN" in skipped["broken"]["reason"]
    text = succeed(*command, model)
    assert all(name in text for name in [*FLOATS, *OTHERS])
    assert "all 10 values are zero" in text


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_tensors_can_be_chosen_by_name(command, model):
    names = ["layers.1.double", "layers.0.half"]
    chosen = [flag for name in names for flag in ("--tensor", name)]
    found = read_json(*command, *chosen, model)
    assert sorted(entry["tensor"] for entry in found["files"]) == sorted(names)
    assert found["skipped"] == []
    text = succeed(*command, model, *chosen)
    assert "m.safetensors, layers.0.half: float16, 999" in text
    assert "layers.0.weight" not in text


def test_a_name_that_does_not_exist_brings_near_ones(model):
    message = fail("measure", model, "--tensor", "layers.0.wieght")
    assert "'layers.0.wieght'" in message
    assert "'layers.0.weight'" in message
    assert "'layers.1.brain'" in fail("measure", model, "--tensor", "brain")
    assert "10" in fail("measure", model, "--tensor", "completely different")
    for name, reason in [("steps", "got I64"), ("bias", "all 10 values are zero")]:
        message = fail("fit", model, "--tensor", name)
        assert f"tensor '{name}'" in message
        assert reason in message


def test_several_files(model, tmp_path):
    other = safetensors(tmp_path / "n.safetensors", {"head": ("F32", np.float32([1, 2]))})
    array = save(tmp_path / "g.npy", np.float32([1, 2, 3]))
    found = read_json("measure", other, array, model)["files"]
    assert [entry.get("tensor") for entry in found] == ["head", None, *FLOATS]
    text = succeed("measure", other, array, model)
    assert f"{array}: float32, 3" in text
    assert all(str(path) in text for path in (other, model))
    # A name has to be in one of them.
    (entry,) = read_json("measure", other, model, "--tensor", "head")["files"]
    assert entry["file"] == str(other)
    assert "g.npy" in fail("measure", model, array, "--tensor", "layers.0.weight")


def test_a_file_with_nothing_to_measure_is_an_error(tmp_path):
    path = safetensors(tmp_path / "i.safetensors", {"steps": OTHERS["steps"]})
    assert "'steps': expected F16, BF16, F32 or F64, got I64" in fail("measure", path)
    assert "no tensors" in fail("measure", safetensors(tmp_path / "e.safetensors", {}))


def test_names_are_printed_without_control_characters(tmp_path):
    path = safetensors(tmp_path / "x.safetensors", {"a\x1b[2J\n": ("F32", np.float32([1, 2]))})
    for command in COMMANDS:
        assert "\x1b" not in succeed(*command, path)
    assert read_json("measure", path)["files"][0]["tensor"] == "a\x1b[2J\n"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_damage_is_one_line_and_status_2(command, model, tmp_path):
    whole = model.read_bytes()
    (size,) = struct.unpack("<Q", whole[:8])
    path = tmp_path / "bad.safetensors"
    for length in [0, 7, 8, 9, 8 + size // 2, 8 + size, len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert "bad.safetensors: damaged .safetensors file" in fail(*command, path)
    path.write_bytes(whole + b"\0")
    assert "bytes after the last tensor" in fail(*command, path)
    path.write_bytes(b"\xff" * 8 + whole[8:])
    assert "longer than the file" in fail(*command, path)
    for metadata in ["text", [], {"a": 1}]:
        safetensors(path, {"a": ("F32", np.ones(2, "f4"))}, metadata)
        assert "metadata" in fail(*command, path)


def test_no_changed_byte_of_the_header_crashes(tmp_path):
    path = safetensors(tmp_path / "x.safetensors", {"a": ("F32", np.ones((2, 3), "f4"))})
    whole = path.read_bytes()
    rng = np.random.default_rng(5)
    for i in range(len(whole) - 24):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 1 << int(rng.integers(8))]) + whole[i + 1 :])
        done = run("measure", path)
        assert done.returncode in (0, 2), (i, done.stderr)
        assert (done.stdout == b"") == (done.returncode == 2)
