"""python -m slimgrad doctor --device: every kernel is run, and what is wrong is found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import testdevice
import torch
from test_fake_driver import atens_operators
from test_fake_driver import run as run_with_fake_driver

from slimgrad.doctor import command, device_test
from slimgrad.doctor.checks import Check, device_checks

ops = torch.ops.slimgrad
COMMAND = """
import sys, testdevice
from slimgrad.__main__ import main
testdevice.load({name!r})
sys.argv[1:] = ["doctor", "--device", {name!r}, "--values", "30000", *{arguments!r}]
sys.exit(main())
"""


@pytest.fixture(scope="module")
def device():
    return testdevice.load()


@pytest.fixture(scope="module")
def outcome(device):
    return device_test.device_test(device, 30_000)


def test_every_kernel_of_the_list_has_a_check(outcome):
    assert outcome.failed == {}
    assert outcome.not_run == [], (
        "a kernel of src/device/kernel_list.h that no check of "
        "doctor/checks.py runs: give it one in device_checks()"
    )
    assert outcome.kernels == len(device_test.all_kernels()) > 80
    assert outcome.checks == len(list(device_checks()))


def test_every_kernel_is_timed(outcome):
    assert sorted(outcome.speeds) == sorted(device_test.all_kernels())
    assert outcome.copy_bandwidth > 0
    assert all(speed.bandwidth > 0 and speed.launches > 0 for speed in outcome.speeds.values())


def test_a_kernel_without_a_check_is_a_failure(device):
    found = device_test.device_test(device, 0, list(device_checks())[:1])
    assert not found.ok and "slimgrad_prune_f32" in found.not_run
    assert found.failed == {} and found.speeds == {}
    text = "\n".join(command._device_lines(found, lambda code, text: text))
    assert "slimgrad_prune_f32: no check ran it" in text and "FAILED" in text


def test_bits_that_differ_are_found(device):
    def wrong(where):
        return [torch.tensor([1.0, 2.0 if where.device.type == "cpu" else 2.5]).to(where.device)]

    def unfit(where):
        if where.device.type != "cpu":
            raise RuntimeError("out of order")
        return []

    bad = [Check("wrong", (), wrong), Check("unfit", (), unfit)]
    found = device_test.device_test(device, 0, bad)
    assert found.failed == {
        "wrong": "result 0: 1 bytes of 8 differ",
        "unfit": "RuntimeError: out of order",
    }


def test_nothing_is_recorded_unless_it_is_asked_for(device):
    x = torch.ones(1000, device=device)
    ops.prune(x, 0.5, 1)
    with device_test.recorded() as launches:
        ops.prune(x, 0.5, 1)
    ops.prune(x, 0.5, 1)
    assert [(name, moved) for name, moved, _ in launches] == [("slimgrad_prune_f32", 8000)]
    assert ops._record_launches(False) == ([], [], [], [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_described_bytes_are_those_of_the_tensors(device, dtype):
    """A description against the sizes of what an op is given and gives."""
    x = torch.randn(1 << 20).to(dtype).relu().to(device)  # half of it zeros

    def moved(call):
        with device_test.recorded() as launches:
            result = call()
        return result, [n for name, n, _ in launches if "measure" not in name]

    codes, [coded] = moved(lambda: ops.stepwise_codes(x, [-1.0, 0.0, 1.0], False))
    assert coded == x.nbytes + codes.nbytes
    _, [multiplied] = moved(lambda: ops.stepwise_backward(x, codes, [0.0, 0.1, 0.9, 1.0], (1,)))
    assert multiplied == 2 * x.nbytes + codes.nbytes
    words, [packed] = moved(lambda: ops.pack_saved(x, 4, 0, "nearest", 1, 2))
    assert packed == x.nbytes + words.nbytes
    _, [unpacked] = moved(lambda: ops.unpack_saved(words, x.shape, (1,), dtype, 4, 0))
    assert unpacked == x.nbytes + words.nbytes
    bytes6, [encoded] = moved(lambda: ops.pack(x, 3, 2, 0.5, "nearest", "zero", 5))
    assert encoded == x.nbytes + bytes6.nbytes
    (sent, _largest), [looked, encoded] = moved(lambda: ops._pack_uniform(x, 6, False, 0))
    assert (looked, encoded) == (x.nbytes, x.nbytes + sent.nbytes)
    exact, launched = moved(lambda: ops.pack_exact(x))
    assert launched[-1] == pytest.approx(x.nbytes + exact.nbytes, rel=0.01)
    _, [merged] = moved(lambda: ops.unpack_exact(exact, x.shape, (1,), dtype))
    assert merged == pytest.approx(x.nbytes + exact.nbytes, rel=0.01)


def test_report_of_the_test_device():
    program = COMMAND.format(name="testdevice", arguments=["--json"])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=Path(testdevice.__file__).parents[1],
    )
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert found["ok"] and found["device_test"]["not_run"] == []
    assert found["device_test"]["facts"] == {"device": "testdevice:0"}


@atens_operators
def test_report_by_the_launch_path_of_cuda(tmp_path):
    done, calls = run_with_fake_driver(tmp_path, program=COMMAND.format(name="cuda", arguments=[]))
    assert done.returncode == 0, done.stderr + done.stdout
    names = device_test.all_kernels()
    assert f"{len(names)} of {len(names)} kernels ran: ok" in done.stdout
    assert "paste all of this into a report" in done.stdout and "\x1b" not in done.stdout
    assert {call.split()[1] for call in calls if call.startswith("launch")} == set(names)
    for name in names:
        assert f"\n{name} " in done.stdout


@pytest.mark.parametrize(
    "name, why",
    [("cpu", "kernels of its own"), ("meta", "kernels of its own"), ("cuda:77", "can use")],
)
def test_what_is_no_device_is_refused_in_a_sentence(name, why):
    program = [sys.executable, "-m", "slimgrad", "doctor", "--device", name]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("[doctor] expected a device") and why in done.stderr
    assert len(done.stderr.splitlines()) == 1
