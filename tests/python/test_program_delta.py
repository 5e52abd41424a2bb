"""slimgrad delta, patch and join, run as users run them, and what can go wrong."""

import os
import resource
import signal
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
from program_runs import PROGRAM, fail, read_json, succeed

NUMPY = {"F32": "<f4", "BF16": "<u2", "I64": "<i8", "BOOL": "?", "U8": "u1"}


def write_safetensors(path, tensors, metadata=None):
    import json

    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, array) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header).encode()
    values = b"".join(array.tobytes() for _, array in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + values)
    return path


def read_safetensors(path):
    import json

    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header, values = json.loads(data[8 : 8 + size]), data[8 + size :]
    metadata = header.pop("__metadata__", None)
    return metadata, {
        name: (e["dtype"], e["shape"], values[slice(*e["data_offsets"])])
        for name, e in header.items()
    }


def weights(step, n=300_000):
    """bfloat16 copies of weights that move by about a unit in the last place of a few."""
    rng = np.random.default_rng(0)
    master = rng.normal(0, 0.05, n).astype("f4")
    for _ in range(step):
        master += rng.normal(0, 3e-6, n).astype("f4")
    rounded = ((master.view("u4") + 0x8000) >> 16).astype("<u2")
    tensors = {
        "w": ("BF16", rounded.reshape(-1, 100)),
        "bias": ("F32", master[:1001]),
        "count": ("I64", np.array([step])),
    }
    if step < 2:
        tensors["old"] = ("U8", np.arange(7, dtype="u1"))
    else:
        tensors["new"] = ("BOOL", np.array([True, False, True]))
        tensors["w"] = ("BF16", rounded)
    return tensors


@pytest.fixture
def files(tmp_path):
    for step in range(4):
        write_safetensors(tmp_path / f"{step}.safetensors", weights(step), {"step": str(step)})
    for step in range(3):
        new = tmp_path / f"{step + 1}.safetensors"
        succeed("delta", tmp_path / f"{step}.safetensors", new, tmp_path / f"{step + 1}.sgd")
    return tmp_path


def same(a, b):
    return read_safetensors(a) == read_safetensors(b)


def test_patch_gives_back_every_tensor(files):
    for step in range(3):
        base = files / f"{step}.safetensors"
        assert "proven" in succeed(
            "patch", base, files / f"{step + 1}.sgd", files / "back.safetensors"
        )
        assert same(files / "back.safetensors", files / f"{step + 1}.safetensors")
    assert (files / "1.sgd").stat().st_size < (files / "1.safetensors").stat().st_size / 20


def test_deltas_in_a_row_and_joined(files):
    deltas = [files / f"{step}.sgd" for step in (1, 2, 3)]
    base, back = files / "0.safetensors", files / "back.safetensors"
    succeed("patch", base, *deltas, back)
    assert same(back, files / "3.safetensors")
    succeed("join", base, *deltas, files / "joined.sgd")
    succeed("patch", base, files / "joined.sgd", back)
    assert same(back, files / "3.safetensors")
    direct = read_json("delta", base, files / "3.safetensors", files / "direct.sgd")
    joined = read_json("inspect", files / "joined.sgd")
    assert (joined["base"], joined["result"]) == (direct["base_hash"], direct["result_hash"])
    assert (files / "joined.sgd").read_bytes() == (files / "direct.sgd").read_bytes()


def test_inspect(files):
    info = read_json("inspect", files / "2.sgd")
    kinds = {tensor["name"]: tensor["kind"] for tensor in info["tensors"]}
    assert kinds["w"] == "delta" and kinds["new"] == "raw" and "old" not in kinds
    assert len(info["base"]) == 32
    assert info["base"] == read_json("inspect", files / "1.sgd")["result"]
    assert info["base"] in succeed("inspect", files / "2.sgd")


def refused(files, message, *arguments):
    """Nothing is written, nothing is left over, and what was there stays."""
    out = arguments[-1]
    out.write_bytes(b"before")
    there = set(os.listdir(files))
    assert message in fail("patch", *arguments)
    assert out.read_bytes() == b"before"
    assert set(os.listdir(files)) == there


def test_another_base_or_order_is_refused(files):
    out = files / "out.safetensors"
    one, two = files / "1.sgd", files / "2.sgd"
    refused(files, "expected the base with hash", files / "1.safetensors", one, out)
    refused(files, "expected to follow a delta", files / "0.safetensors", one, files / "3.sgd", out)
    refused(files, "expected the base with hash", files / "0.safetensors", two, one, out)
    assert "one or more deltas" in fail("patch", files / "0.safetensors", out)
    assert "other than the input" in fail(
        "patch", files / "0.safetensors", one, files / "0.safetensors"
    )


def test_damage_is_refused(files):
    base, out, whole = (
        files / "0.safetensors",
        files / "out.safetensors",
        (files / "1.sgd").read_bytes(),
    )
    damaged = files / "damaged.sgd"
    for size in (0, 7, 47, 60, len(whole) // 2, len(whole) - 1):
        damaged.write_bytes(whole[:size])
        refused(files, "damaged.sgd: ", base, damaged, out)
    for i in range(0, len(whole), len(whole) // 40):
        damaged.write_bytes(whole[:i] + bytes([whole[i] ^ 16]) + whole[i + 1 :])
        refused(files, "damaged.sgd: ", base, damaged, out)
    damaged.write_bytes(b"no file of ours, nor of theirs")
    refused(files, "damaged.sgd: ", base, damaged, out)
    assert "damaged.sgd" in fail("delta", damaged, base, files / "x.sgd")


def test_a_full_disk_leaves_what_was_there(files):
    """A limit on the size of files stands for it: both are errors of the same call."""
    out = files / "out.safetensors"
    out.write_bytes(b"before")

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    done = subprocess.run(
        [PROGRAM, "patch", files / "0.safetensors", files / "1.sgd", out],
        capture_output=True,
        preexec_fn=limit,
    )
    assert done.returncode == 2 and b"cannot write" in done.stderr
    assert out.read_bytes() == b"before"
    assert not list(files.glob("*.part.*"))


def test_killed_while_patching_leaves_what_was_there(tmp_path):
    before, after = tmp_path / "0.safetensors", tmp_path / "1.safetensors"
    write_safetensors(before, weights(0, 6_000_000))
    write_safetensors(after, weights(1, 6_000_000))
    succeed("delta", before, after, tmp_path / "1.sgd")
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"before")
    for delay in (0.0, 0.005, 0.02):
        process = subprocess.Popen([PROGRAM, "patch", before, tmp_path / "1.sgd", out])
        deadline = time.time() + 20
        while not list(tmp_path.glob("*.part.*")) and process.poll() is None:
            assert time.time() < deadline
        time.sleep(delay)
        process.kill()
        process.wait()
        # All or nothing.
        assert out.read_bytes() == b"before" or same(out, after)


def test_what_a_killed_run_left_is_in_nobodys_way(files):
    """Its process had the number of the next one, as in a container."""
    out = files / "out.safetensors"
    leave = 'touch "$3.part.$$" && exec "$0" patch "$1" "$2" "$3"'
    arguments = [PROGRAM, files / "0.safetensors", files / "1.sgd", out]
    subprocess.run(["sh", "-c", leave, *arguments], check=True, stdout=subprocess.DEVNULL)
    assert same(out, files / "1.safetensors")
    assert len(list(files.glob("*.part.*"))) == 1  # nobody's


def test_two_writers_of_one_file(tmp_path):
    before, after = tmp_path / "0.safetensors", tmp_path / "1.safetensors"
    write_safetensors(before, weights(0, 1_000_000))
    write_safetensors(after, weights(1, 1_000_000))
    succeed("delta", before, after, tmp_path / "1.sgd")
    command = [PROGRAM, "patch", before, tmp_path / "1.sgd", tmp_path / "out.safetensors"]
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert same(tmp_path / "out.safetensors", after)
    assert not list(tmp_path.glob("*.part.*"))


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts private memory on Linux")
def test_memory_is_bounded_by_the_largest_tensor(tmp_path):
    """Thirty tensors of 4 MB, or one by twenty deltas: their sum would not fit."""
    parts = [weights(step, 2_000_000)["w"] for step in (0, 1)]
    files = [tmp_path / "0.safetensors", tmp_path / "1.safetensors"]
    for file, part in zip(files, parts, strict=True):
        write_safetensors(file, {f"w{i}": part for i in range(30)})
    limit = lambda: resource.setrlimit(resource.RLIMIT_DATA, (72 << 20, 72 << 20))  # noqa: E731
    there_and_back = [tmp_path / "1.sgd", tmp_path / "0.sgd"] * 10
    for command in (
        ["delta", *files, tmp_path / "1.sgd"],
        ["patch", files[0], tmp_path / "1.sgd", tmp_path / "back.safetensors"],
        ["delta", *files[::-1], tmp_path / "0.sgd"],
        ["patch", files[0], *there_and_back, tmp_path / "again.safetensors"],
        ["join", files[0], *there_and_back, tmp_path / "joined.sgd"],
    ):
        done = subprocess.run(
            [PROGRAM, *command, "--threads", "2"], capture_output=True, preexec_fn=limit
        )
        assert done.returncode == 0, done.stderr
    assert same(tmp_path / "back.safetensors", files[1])
    assert same(tmp_path / "again.safetensors", files[0])
