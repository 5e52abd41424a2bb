"""Runs of the `slimgrad` program, and files for it.

The binary is the one installed beside this Python, or the one that SLIMGRAD_PROGRAM names; ctest
runs the files of tests that need no torch on the binary of its own build, which is how the
sanitizers get to see it.
"""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

PROGRAM = os.environ.get("SLIMGRAD_PROGRAM") or str(Path(sys.executable).parent / "slimgrad")


def run(*args, cwd=None):
    return subprocess.run([PROGRAM, *map(str, args)], capture_output=True, cwd=cwd, timeout=60)


def succeed(*args, cwd=None):
    done = run(*args, cwd=cwd)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    return done.stdout.decode()


def read_json(*args):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(succeed(*args, "--json"), parse_constant=refuse)


def fail(*args, cwd=None):
    """The one line on stderr of a run that must end with status 2 and print nothing."""
    done = run(*args, cwd=cwd)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stdout == b""
    message = done.stderr.decode(errors="replace")
    assert message.startswith("slimgrad: ")
    assert message.endswith("\n")
    assert message.count("\n") == 1
    return message


def gradient(num_values=20_000, seed=0):
    """Lognormal magnitudes, a third zeros, as behind a ReLU."""
    rng = np.random.default_rng(seed)
    x = np.exp(rng.normal(-9, 2, num_values)) * rng.choice([-1, 1], num_values)
    x[rng.random(num_values) < 1 / 3] = 0
    return x


def save(path, array):
    np.save(path, array)
    return path


def safetensors(path, tensors, metadata=None):
    """``tensors``: {name: (type, array)}."""
    header = {} if metadata is None else {"__metadata__": metadata}
    offset = 0
    for name, (dtype, array) in tensors.items():
        end = offset + array.nbytes
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(array.tobytes() for _, array in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def bfloat16(x):
    """The upper halves of float32."""
    return (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
