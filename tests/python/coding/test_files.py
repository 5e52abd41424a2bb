"""load and save: .sg files of one tensor and of several, from here and from the program."""

import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from program_runs import bfloat16, gradient, safetensors, save, succeed

import slimgrad as sg

TENSORS = {
    "weight": torch.from_numpy(gradient().astype("f4").reshape(100, 200)),
    "half": torch.from_numpy(gradient(999).astype("f2")),
    "brain": torch.from_numpy(gradient(1000).astype("f4")).bfloat16().reshape(10, 5, 20),
    "double": torch.from_numpy(gradient(10)),
    "scalar": torch.tensor(1.5),
    "odd": torch.tensor([True, False, True]),
    "codes": torch.arange(-3, 3, dtype=torch.int8),
    "steps": torch.arange(6).reshape(2, 3),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "shorts": torch.arange(5, dtype=torch.int16),
    "words": torch.arange(5, dtype=torch.int32).reshape(5, 1),
    "unsigned": torch.arange(5).to(torch.uint32),
    "complex": torch.tensor([1 + 2j, 3 - 4j]),
    "eighths": torch.randn(7).to(torch.float8_e4m3fn),
    "none": torch.zeros(0, 3),
    "no steps": torch.zeros(0, 4, dtype=torch.int64),
}


def same(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    bits = [x.contiguous().reshape(-1).view(torch.uint8) for x in (a, b)]
    return torch.equal(*bits)


def test_what_is_saved_is_loaded(tmp_path):
    path = tmp_path / "m.sg"
    sg.save(TENSORS, path, metadata={"format": "pt"})
    for file in (path, str(path), path.read_bytes(), memoryview(path.read_bytes())):
        loaded = sg.load(file)
        assert list(loaded) == list(TENSORS)
        assert all(same(loaded[name], x) for name, x in TENSORS.items())
    assert [f.name for f in tmp_path.iterdir()] == ["m.sg"]


def test_one_tensor(tmp_path):
    x = TENSORS["brain"]
    sg.save(x, tmp_path / "x.sg")
    assert same(sg.load(tmp_path / "x.sg"), x)
    assert same(sg.load(tmp_path / "x.sg"), sg.decode((tmp_path / "x.sg").read_bytes()))
    with pytest.raises(sg.PayloadError, match="at most max_bytes=100 "):
        sg.load(tmp_path / "x.sg", max_bytes=100)


def test_files_of_the_program(tmp_path):
    tensors = {
        "odd": ("BOOL", np.array([True, False, True])),
        "weight": ("F32", gradient().astype("f4").reshape(100, 200)),
        "half": ("F16", gradient(999).astype("f2")),
        "brain": ("BF16", bfloat16(gradient(1000))),
        "double": ("F64", gradient(10)),
        "codes": ("I8", np.arange(6, dtype="i1")),
        "steps": ("I64", np.arange(6).reshape(2, 3)),
        "none": ("F32", np.zeros((0, 3), "f4")),
    }
    source = safetensors(tmp_path / "m.safetensors", tensors, {"format": "pt"})
    succeed("encode", source, tmp_path / "m.sg")
    loaded = sg.load(tmp_path / "m.sg")
    assert list(loaded) == list(tensors)
    for name, (kind, array) in tensors.items():
        want = torch.from_numpy(array)
        want = want.view(torch.bfloat16) if kind == "BF16" else want
        assert same(loaded[name], want)
    succeed("encode", save(tmp_path / "x.npy", tensors["weight"][1]), tmp_path / "x.sg")
    assert same(sg.load(tmp_path / "x.sg"), torch.from_numpy(tensors["weight"][1]))


def test_the_program_reads_what_is_saved(tmp_path):
    tensors = {name: TENSORS[name] for name in ("weight", "steps", "odd")}
    sg.save(tensors, tmp_path / "m.sg", metadata={"made by": 'a "test"'})
    succeed("decode", tmp_path / "m.sg", tmp_path / "back.safetensors")
    kinds = {"weight": "F32", "steps": "I64", "odd": "BOOL"}
    want = {name: (kinds[name], x.numpy()) for name, x in tensors.items()}
    made = safetensors(tmp_path / "want.safetensors", want, {"made by": 'a "test"'})
    assert (tmp_path / "back.safetensors").read_bytes() == made.read_bytes()


def test_other_modes_keep_other_types(tmp_path):
    sg.save(TENSORS, tmp_path / "m.sg", mode="uniform", bits=6)
    loaded = sg.load(tmp_path / "m.sg")
    lossy = {"weight", "half", "brain"}
    assert all(same(loaded[name], x) for name, x in TENSORS.items() if name not in lossy)
    assert not same(loaded["weight"], TENSORS["weight"])
    with pytest.raises(ValueError, match=r"\[save\] .* in 'x'"):
        sg.save({"x": torch.tensor([1.0, float("nan")])}, tmp_path / "n.sg", mode="uniform")
    assert not (tmp_path / "n.sg").exists()


def test_max_bytes_is_of_all_tensors(tmp_path):
    tensors = {"a": torch.zeros(1000), "b": torch.zeros(1000)}
    sg.save(tensors, tmp_path / "m.sg")
    assert len(sg.load(tmp_path / "m.sg", max_bytes=8000)) == 2
    with pytest.raises(sg.PayloadError, match="at most max_bytes=7999 of values, got 8000 bytes"):
        sg.load(tmp_path / "m.sg", max_bytes=7999)


def small_file(tmp_path):
    sg.save({"a": torch.tensor([1.0, -2.0]), "b": torch.tensor([7])}, tmp_path / "m.sg")
    return (tmp_path / "m.sg").read_bytes()


def test_every_cut_and_every_changed_byte_is_found(tmp_path):
    whole = small_file(tmp_path)
    path = tmp_path / "bad.sg"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(sg.PayloadError):
            sg.load(path)
    for i in range(len(whole)):
        for change in (1 << i % 8, 0xFF):
            damaged = bytearray(whole)
            damaged[i] ^= change
            with pytest.raises(sg.PayloadError):
                sg.load(damaged)
    with pytest.raises(sg.PayloadError, match="bytes follow"):
        sg.load(whole + b"x")


def container(index: bytes, payloads: bytes = b"") -> bytes:
    coded = bytes(sg.encode(torch.frombuffer(bytearray(index), dtype=torch.int8)).tolist())
    return b"\x8dSGC\1\0\0\0" + struct.pack("<Q", len(coded)) + coded + payloads


def test_lies_in_the_index(tmp_path):
    payload = bytes(sg.encode(torch.tensor([1.0, -2.0])).tolist())
    entry = b'{"name":"a","dtype":"%s","shape":[%s],"bytes":%d}'
    index = b'{"metadata":null,"tensors":[%s]}'
    for kind, shape, works in [
        (b"F32", b"2", True),
        (b"F32", b"1", False),
        (b"F32", b"2,1", False),
        (b"F32", b"4611686018427387906", False),
        (b"F16", b"4", False),
        (b"I64", b"1", False),
    ]:
        file = container(index % (entry % (kind, shape, len(payload))), payload)
        if works:
            assert torch.equal(sg.load(file)["a"], torch.tensor([1.0, -2.0]))
        else:
            with pytest.raises(sg.PayloadError, match="than the index says"):
                sg.load(file)
    twice = entry % (b"F32", b"2", len(payload))
    with pytest.raises(sg.PayloadError, match="same name"):
        sg.load(container(index % (twice + b"," + twice), 2 * payload))
    with pytest.raises(sg.PayloadError, match="the index is invalid"):
        sg.load(container(b"[" * 60_000))
    odd = bytes(sg.encode(torch.zeros(3, dtype=torch.int8)).tolist())
    file = container(index % (entry % (b"F6_E2M3", b"4", len(odd))), odd)
    with pytest.raises(sg.PayloadError, match="expected types that torch has, got F6_E2M3"):
        sg.load(file)
    empty = bytes(sg.encode(torch.zeros(0, dtype=torch.int8)).tolist())
    for shape in (b"0,9223372036854775808", b"0,18446744073709551615", b"4611686018427387904,4,0"):
        for kind in (b"I64", b"F6_E2M3"):
            with pytest.raises(sg.PayloadError):
                sg.load(container(index % (entry % (kind, shape, len(empty))), empty))


def test_max_bytes_bounds_index_and_metadata():
    """Peak memory, of a process that has loaded torch: nothing of the index is made."""
    spaces = container(b'{"metadata":null,"tensors":[]}' + b" " * (100 << 20))
    pairs = b",".join(b'"%d":""' % i for i in range(1_000_000))
    many = container(b'{"metadata":{' + pairs + b'},"tensors":[]}')
    assert len(spaces) < 4096
    program = """
import resource, sys, slimgrad as sg
data = open(0, "rb").read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    sg.load(data, max_bytes=1000)
except sg.PayloadError as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error)
"""
    for file in (spaces, many):
        done = subprocess.run([sys.executable, "-c", program], input=file, capture_output=True)
        assert done.returncode == 0, done.stderr
        kib, message = done.stdout.decode().split(maxsplit=1)
        assert int(kib) < 16 * 1024
        assert "an index of more than 66536 bytes" in message


def test_metadata_has_no_key_twice():
    with pytest.raises(sg.PayloadError, match="same key twice"):
        sg.load(container(b'{"metadata":{"a":"1","a":"2"},"tensors":[]}'))


def test_a_file_of_much_metadata_is_read(tmp_path):
    """However few bytes it takes."""
    sg.save({"a": torch.ones(2)}, tmp_path / "m.sg", metadata={"note": "a" * 3_000_000})
    assert torch.equal(sg.load(tmp_path / "m.sg")["a"], torch.ones(2))


def test_misuse(tmp_path):
    with pytest.raises(sg.PayloadError, match=r"slimgrad\.load"):
        sg.decode(small_file(tmp_path))
    with pytest.raises(FileNotFoundError):
        sg.load(tmp_path / "missing.sg")
    (tmp_path / "empty.sg").touch()
    with pytest.raises(sg.PayloadError):
        sg.load(tmp_path / "empty.sg")
    for wrong in (None, [1, 2], 3.0):
        with pytest.raises(TypeError, match=r"\[load\] expected a path"):
            sg.load(wrong)
        with pytest.raises(TypeError, match=r"\[save\] expected tensors to be a tensor"):
            sg.save(wrong, tmp_path / "x.sg")
        with pytest.raises(TypeError, match=r"\[save\] expected 'a' to be a tensor"):
            sg.save({"a": wrong}, tmp_path / "x.sg")
    with pytest.raises(TypeError, match="names to be strings"):
        sg.save({1: torch.zeros(2)}, tmp_path / "x.sg")
    with pytest.raises(TypeError, match="dict of strings"):
        sg.save({"a": torch.zeros(2)}, tmp_path / "x.sg", metadata={"a": 1})
    with pytest.raises(ValueError, match="metadata"):
        sg.save(torch.zeros(2), tmp_path / "x.sg", metadata={})
    with pytest.raises(ValueError, match="complex128"):
        sg.save({"a": torch.zeros(2, dtype=torch.complex128)}, tmp_path / "x.sg")
    assert not (tmp_path / "x.sg").exists()


@pytest.mark.filterwarnings("ignore:.*quantiz")
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(3, device="meta"), "to have values, got a tensor on device meta"),
        (torch.eye(3).to_sparse(), "to be a dense tensor, got layout torch.sparse_coo"),
        (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "got a quantized one"),
    ],
    ids=["meta", "sparse", "quantized"],
)
def test_tensors_without_plain_values_are_refused_by_name(x, message, tmp_path):
    for tensors, name in ((x, "tensors"), ({"w": torch.ones(2), "v": x}, "'v'")):
        with pytest.raises(ValueError, match=rf"^\[save\] expected {name} .*{message}"):
            sg.save(tensors, tmp_path / "x.sg")
    assert list(tmp_path.iterdir()) == []
