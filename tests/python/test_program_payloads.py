"""slimgrad encode, decode and inspect, run as users run them."""

import re
import resource
import struct
import subprocess
import time

import numpy as np
import pytest
import torch
from program_runs import PROGRAM, bfloat16, fail, gradient, read_json, safetensors, save, succeed

import slimgrad as sg


def words_with_everything(dtype):
    """Random bits: every exponent, NaN payloads, -0."""
    rng = np.random.default_rng(1)
    return rng.integers(0, 256, 8000, dtype=np.uint8).view(dtype)


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "i1"])
@pytest.mark.parametrize("coder", ["rans", "huffman"])
def test_lossless_gives_back_the_file(tmp_path, dtype, coder):
    arrays = [
        gradient(300_000).astype(dtype).reshape(3, 100_000),
        words_with_everything(dtype),
        np.zeros((0, 4), dtype),
        np.zeros((), dtype),
    ]
    for array in arrays:
        source = save(tmp_path / "x.npy", array)
        succeed("encode", source, tmp_path / "x.sg", "--coder", coder)
        succeed("decode", tmp_path / "x.sg", tmp_path / "back.npy")
        assert (tmp_path / "back.npy").read_bytes() == source.read_bytes()


def test_bfloat16(tmp_path):
    source = save(tmp_path / "x.npy", bfloat16(gradient()))
    assert "--bfloat16" in fail("encode", source, tmp_path / "x.sg")
    succeed("encode", source, tmp_path / "x.sg", "--bfloat16")
    assert read_json("inspect", tmp_path / "x.sg")["tensors"][0]["dtype"] == "bfloat16"
    succeed("decode", tmp_path / "x.sg", tmp_path / "back.npy")
    assert (tmp_path / "back.npy").read_bytes() == source.read_bytes()


def test_fortran_order(tmp_path):
    x = np.asfortranarray(gradient(60_000).astype("f4").reshape(20, 30, 100))
    source = save(tmp_path / "x.npy", x)
    succeed("encode", source, tmp_path / "x.sg")
    assert read_json("inspect", tmp_path / "x.sg")["tensors"][0]["shape"] == [20, 30, 100]
    succeed("decode", tmp_path / "x.sg", tmp_path / "back.npy")
    assert (tmp_path / "back.npy").read_bytes() == source.read_bytes()
    assert np.load(tmp_path / "back.npy").flags.f_contiguous
    payload = torch.from_numpy(np.fromfile(tmp_path / "x.sg", np.uint8))
    assert np.array_equal(sg.decode(payload).numpy(), x)


def test_inspect_shows_the_model(tmp_path):
    source = save(tmp_path / "x.npy", gradient().astype("f4"))
    for model, shape in [("counted", None), ("laplace", 1), ("normal", 2)]:
        succeed("encode", source, tmp_path / "x.sg", "--mode", "uniform", "--model", model)
        shown = read_json("inspect", tmp_path / "x.sg")["tensors"][0]
        known = sg.inspect(torch.from_numpy(np.fromfile(tmp_path / "x.sg", np.uint8)))
        assert shown.get("model_shape") == known.get("model_shape") == shape
        assert shown.get("model_scale") == known.get("model_scale")
        assert (shown.get("model_scale") is None) == (model == "counted")


def test_threads_do_not_change_the_bytes(tmp_path):
    source = save(tmp_path / "x.npy", gradient(5_000_000).astype("f4"))
    for threads in (1, 3):
        succeed("encode", source, tmp_path / f"{threads}.sg", "--threads", threads)
    assert (tmp_path / "1.sg").read_bytes() == (tmp_path / "3.sg").read_bytes()
    succeed("decode", tmp_path / "1.sg", tmp_path / "back.npy", "--threads", 3)
    assert (tmp_path / "back.npy").read_bytes() == source.read_bytes()
    assert "--threads" in fail("encode", source, tmp_path / "x.sg", "--threads", 0)


def test_lossy_modes(tmp_path):
    x = gradient().astype("f4")
    source = save(tmp_path / "x.npy", x)
    for flags, tolerance in [
        (["--mode", "uniform"], np.abs(x).max() / 127 / 2),
        (["--mode", "float", "--format", "1-5-2"], np.abs(x).max() / 8),
    ]:
        succeed("encode", source, tmp_path / "x.sg", *flags)
        succeed("decode", tmp_path / "x.sg", tmp_path / "back.npy")
        assert np.abs(np.load(tmp_path / "back.npy") - x).max() <= tolerance * 1.0001


@pytest.fixture
def model_file(tmp_path):
    tensors = {
        "odd bytes": ("BOOL", np.array([True, False, True])),
        "weight": ("F32", gradient().astype("f4").reshape(100, 200)),
        "half": ("F16", gradient(999).astype("f2")),
        "brain": ("BF16", bfloat16(gradient(1000))),
        "steps": ("I64", np.arange(7)),
        "empty": ("F32", np.zeros((0, 3), "f4")),
    }
    return safetensors(tmp_path / "m.safetensors", tensors, {"format": "pt"})


def test_safetensors_come_back_whole(tmp_path, model_file):
    succeed("encode", model_file, tmp_path / "m.sg")
    succeed("decode", tmp_path / "m.sg", tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == model_file.read_bytes()
    tensors = read_json("inspect", tmp_path / "m.sg")["tensors"]
    assert [t["name"] for t in tensors][:2] == ["odd bytes", "weight"]
    assert tensors[1]["shape"] == [100, 200]
    assert tensors[1]["payload_bytes"] < 0.9 * 80_000


def test_encode_says_what_it_saved(tmp_path, model_file):
    found = read_json("encode", model_file, tmp_path / "m.sg")
    before, after = model_file.stat().st_size, (tmp_path / "m.sg").stat().st_size
    assert (found["input_file_bytes"], found["output_file_bytes"]) == (before, after)
    by_type = {row["type"]: row for row in found["types"]}
    assert {name: row["tensors"] for name, row in by_type.items()} == {
        "BF16": 1,
        "BOOL": 1,
        "F16": 1,
        "F32": 2,
        "I64": 1,
    }
    for name, row in by_type.items():
        tensors = [t for t in found["tensors"] if t["type"] == name]
        for key in ("bytes", "payload_bytes"):
            assert row[key] == sum(t[key] for t in tensors)
    for key in ("bytes", "payload_bytes"):
        assert found[key] == sum(row[key] for row in by_type.values())
    text = succeed("encode", model_file, tmp_path / "m.sg")
    assert re.search(rf"^all +6 +{found['bytes']} +{found['payload_bytes']} ", text, re.MULTILINE)
    saved = f"{100 * (1 - after / before):.1f} % saved"
    assert text.endswith(f"m.sg: {after} bytes for {before}, {saved}\n")
    nothing = safetensors(tmp_path / "e.safetensors", {})
    assert re.search(r"\d % more\n$", succeed("encode", nothing, tmp_path / "e.sg"))


def test_lossy_modes_leave_other_types_alone(tmp_path, model_file):
    succeed("encode", model_file, tmp_path / "m.sg", "--mode", "uniform")
    tensors = {t["name"]: t for t in read_json("inspect", tmp_path / "m.sg")["tensors"]}
    assert tensors["weight"]["kind"] == "uniform"
    assert tensors["steps"]["kind"] in ("raw", "lossless")


NUM_LARGE = 24 << 20  # values; 96 MiB


def large_file(folder, kind):
    """Noise in the mantissas, a few zeros, one exponent in eight other than the rest."""
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 32, NUM_LARGE, dtype=np.uint32)
    values = (bits & 0x803FFFFF | 0x3C000000 | (bits >> 3 & 0x00400000)).view("f4")
    if kind == "pruned":
        values[::20] = 0
    if kind == "incompressible":
        values = bits.view("f4")
    if kind == "safetensors":
        # The first tensor moves the others to odd addresses.
        parts = {"flags": ("BOOL", np.ones(3, bool)), "a": ("F32", values[: NUM_LARGE // 2])}
        parts |= {"b": ("F32", values[NUM_LARGE // 2 :])}
        return safetensors(folder / "x.safetensors", parts)
    return save(folder / "x.npy", values)


@pytest.mark.parametrize("kind", ["plain", "pruned", "incompressible", "safetensors"])
def test_memory_does_not_grow_with_the_file(tmp_path, kind):
    """RLIMIT_DATA counts what a process has for itself, and no pages of files."""
    source = large_file(tmp_path, kind)
    back = tmp_path / f"back{source.suffix}"

    def in_little_memory(*args):
        limit = lambda: resource.setrlimit(resource.RLIMIT_DATA, (48 << 20, 48 << 20))  # noqa: E731
        done = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, preexec_fn=limit)
        assert done.returncode == 0, done.stderr.decode()

    flags = ["--mode", "pruned"] if kind == "incompressible" else []
    in_little_memory("encode", source, tmp_path / "x.sg", "--threads", 2, *flags)
    in_little_memory("decode", tmp_path / "x.sg", back, "--threads", 2)
    in_little_memory("inspect", tmp_path / "x.sg")
    assert back.stat().st_size == source.stat().st_size
    assert np.array_equal(np.memmap(back, np.uint8), np.memmap(source, np.uint8))
    back.unlink()
    assert {f.name for f in tmp_path.iterdir()} == {"x.sg", source.name}


def test_one_tensor_at_a_time_is_in_memory(tmp_path):
    """Forty of 4 MiB, in less than a third of what they take together."""
    values = gradient(1 << 20).astype("f4")
    path = safetensors(tmp_path / "x.safetensors", {f"t{i}": ("F32", values) for i in range(40)})
    limit = lambda: resource.setrlimit(resource.RLIMIT_DATA, (48 << 20, 48 << 20))  # noqa: E731
    done = subprocess.run([PROGRAM, "measure", path], capture_output=True, preexec_fn=limit)
    assert done.returncode == 0, done.stderr
    assert b"t39" in done.stdout


def test_a_file_that_becomes_shorter(tmp_path):
    """It is found out in the middle of the work, or too late; either way nothing else is left."""
    source = save(tmp_path / "x.npy", np.arange(8 << 20, dtype="f4"))
    run = subprocess.Popen(
        [PROGRAM, "encode", source, tmp_path / "x.sg", "--threads", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while run.poll() is None and not list(tmp_path.glob("x.sg*")):
        time.sleep(0.001)
    with open(source, "r+b") as file:
        file.truncate(4096)
    _, message = run.communicate(timeout=60)
    assert run.returncode in (0, 2)
    if run.returncode == 2:
        assert message.startswith(b"slimgrad: a file became shorter")
        assert message.count(b"\n") == 1
    left = ["x.npy"] if run.returncode == 2 else ["x.npy", "x.sg"]
    assert sorted(f.name for f in tmp_path.iterdir()) == left


def test_damage_is_status_2_and_leaves_no_file(tmp_path, model_file):
    save(tmp_path / "x.npy", gradient(500).astype("f4"))
    succeed("encode", tmp_path / "x.npy", tmp_path / "x.sg")
    succeed("encode", model_file, tmp_path / "m.sg")
    rng = np.random.default_rng(2)
    for name, out in [("x.sg", "back.npy"), ("m.sg", "back.safetensors")]:
        whole = (tmp_path / name).read_bytes()
        damaged = [whole[: int(n)] for n in rng.integers(0, len(whole), 15)] + [whole + b"x"]
        for at in [*range(17), *rng.integers(0, len(whole), 30)]:
            flipped = bytearray(whole)
            flipped[at] ^= 1 << int(rng.integers(8))
            damaged.append(bytes(flipped))
        for data in damaged:
            (tmp_path / "bad.sg").write_bytes(data)
            before = sorted(tmp_path.iterdir())
            assert "bad.sg" in fail("decode", tmp_path / "bad.sg", tmp_path / out)
            assert "bad.sg" in fail("inspect", tmp_path / "bad.sg")
            assert sorted(tmp_path.iterdir()) == before


def test_a_failed_run_keeps_the_old_output(tmp_path):
    (tmp_path / "old.npy").write_bytes(b"old")
    (tmp_path / "bad.sg").write_bytes(b"nothing")
    fail("decode", tmp_path / "bad.sg", tmp_path / "old.npy")
    assert (tmp_path / "old.npy").read_bytes() == b"old"


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b"[]",
        b'{"a": 1}',
        b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "I64", "shape": [2], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "C64", "shape": [7], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}',
        b'{"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}',
    ],
)
def test_damaged_safetensors(tmp_path, header):
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    assert "m.safetensors" in fail("encode", path, tmp_path / "m.sg")
    assert not (tmp_path / "m.sg").exists()


def test_misuse(tmp_path):
    source = save(tmp_path / "x.npy", gradient().astype("f4"))
    out = tmp_path / "x.sg"
    assert "2 to 8 bits" in fail("encode", source, out, "--mode", "uniform", "--bits", 9)
    assert "lossless" in fail("encode", source, out, "--mode", "tiny")
    for flag, mode in (
        ("--bits", "uniform"),
        ("--scale", "float"),
        ("--threshold", "pruned"),
        ("--threads", "lossless"),
    ):
        assert "-1" in fail("encode", source, out, flag, -1, "--mode", mode)
    # What would have no effect in the mode.
    for flag, value in (
        ("--bits", 4),
        ("--format", "1-5-2"),
        ("--scale", 1),
        ("--threshold", 1),
        ("--survivors", "float"),
    ):
        assert f"expected {flag} with --mode" in fail("encode", source, out, flag, value)
    assert "or --list" in fail("steps", "gelu", "--list")
    assert not out.exists()
    succeed("encode", source, out)
    assert ".npy" in fail("decode", out, tmp_path / "x.safetensors")


def test_the_input_is_never_overwritten(tmp_path):
    source = save(tmp_path / "g.npy", gradient(1000).astype("f4"))
    before = source.read_bytes()
    (tmp_path / "link.npy").symlink_to(source)
    for other in (source, tmp_path / "link.npy", tmp_path / "." / "g.npy"):
        assert "other than the input" in fail("encode", source, other)
    payload = tmp_path / "g.sg"
    succeed("encode", source, payload)
    (tmp_path / "back.npy").symlink_to(payload)
    assert "other than the input" in fail("decode", payload, tmp_path / "back.npy")
    assert source.read_bytes() == before
    succeed("inspect", payload)


def test_steps_at_zero_are_shown_there():
    assert "e-1" not in succeed("steps", "silu", "--bits", "2")
    assert read_json("steps", "silu", "--bits", "2")["borders"][1] == 0
