"""slimgrad on .npy files that are unusable, damaged or oddly named."""

import json
import os
import subprocess

import numpy as np
import pytest
from program_runs import PROGRAM, fail, run, save


@pytest.mark.parametrize("command", [["measure"], ["fit"], ["threshold", "--sparsity", "0.9"]])
def test_unusable_tensors(command, tmp_path):
    cases = {
        "empty": np.zeros((3, 0), np.float32),
        "all 4 values are zero\n": np.float32([0, -0.0, 0, 0]),
        "all 2 values are NaN": np.float32([np.nan, np.inf]),
        "all 3 values are zero, NaN": np.float32([0, np.nan, np.inf]),
        "'<i8'": np.arange(4),
        "'|b1'": np.array([True]),
        "'<c8'": np.zeros(2, np.complex64),
        "'<U1'": np.array(["x"]),
        "'|O'": np.array([None]),
        "little-endian": np.ones(3, ">f4"),
        "record type": np.zeros(2, [("a", "<f4")]),
    }
    for message, array in cases.items():
        assert message in fail(*command, save(tmp_path / "x.npy", array))


def test_every_truncation_is_an_error(tmp_path):
    path = save(tmp_path / "x.npy", np.float32([1, 2, 3]))
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        fail("measure", path)
    path.write_bytes(whole + b"\0")
    assert "1 bytes follow" in fail("measure", path)


def test_no_changed_byte_crashes(tmp_path):
    path = save(tmp_path / "x.npy", np.float32([[1, 2, 3]]))
    whole = path.read_bytes()
    rng = np.random.default_rng(11)
    for i in range(128):
        for byte in {whole[i] ^ 1 << int(rng.integers(8)), int(rng.integers(256))}:
            path.write_bytes(whole[:i] + bytes([byte]) + whole[i + 1 :])
            done = run("measure", path)
            assert done.returncode in (0, 2), (i, byte, done.stderr)
            assert (done.stdout == b"") == (done.returncode == 2)


def test_absurd_headers(tmp_path):
    path = tmp_path / "x.npy"
    for shape in ["(4611686018427387905,)", "(4294967296, 4294967296)", "(99999999999999999999,)"]:
        text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        path.write_bytes(b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text + b"1234")
        fail("measure", path)
    path.write_bytes(b"\x93NUMPY\x02\0\xff\xff\xff\xff{}")
    assert "4294967295 bytes" in fail("measure", path)


def test_file_names_that_are_not_utf8(tmp_path):
    name = os.fsencode(tmp_path) + b"/\xff.npy"
    with open(name, "wb") as file:
        np.save(file, np.float32([1, 2]))
    done = subprocess.run([PROGRAM, "measure", name, "--json"], capture_output=True)
    assert done.returncode == 0
    assert json.loads(done.stdout)["files"][0]["count"] == 2
