"""The prediction of bench.device_cost: its rules, and that the record is of these kernels."""

import json

import pytest
import torch
from bench import device_cost as cost

A100, H100 = cost.GPUS


@pytest.mark.parametrize(
    "threads, registers, shared, expected",
    [
        # As NVIDIA's occupancy calculator has them for compute capability 8.0.
        (256, 32, 0, 2048),
        (256, 33, 0, 1536),
        (256, 64, 0, 1024),
        (256, 65, 0, 768),
        (128, 255, 0, 256),
        (1024, 64, 0, 1024),
        (32, 16, 0, 1024),  # 32 blocks
        (128, 32, 48 << 10, 384),  # 3 blocks of 49 KiB
        (128, 32, 0, 2048),
    ],
)
def test_threads_that_fit(threads, registers, shared, expected):
    assert cost.resident_threads(threads, registers, shared, A100) == expected


def test_more_shared_memory_has_room_for_more_blocks():
    assert cost.resident_threads(128, 32, 48 << 10, H100) == 512


def test_time_is_the_longer_of_two():
    n = 1 << 30
    assert cost.seconds(A100, n, n) == pytest.approx(2 * n / 2.039e12)
    many = {"threads": n, "resident": 2048, "in_flight": 16}
    assert cost.seconds(A100, n, n, **many) == cost.seconds(A100, n, n)
    # A block of 256 threads with 8 bytes each in flight: 2 KiB in half a microsecond.
    few = {"threads": 256, "resident": 2048, "in_flight": 8}
    assert cost.seconds(A100, n, 0, **few) == pytest.approx(n / 2048 * 0.5e-6)


def test_bytes_in_flight():
    ptx = """
        ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];
        ld.shared.f32 %f5, [%r1];
        @%p1 ld.global.nc.u16 %rs1, [%rd2];
        @%p2 bra $L__BB0_2;
        ld.global.u64 %rd3, [%rd2];
$L__BB0_2:
        ld.global.b32 %r3, [%rd2];
    """
    assert cost.bytes_in_flight(ptx) == 18


def test_bytes_of_operators():
    x = torch.zeros(1000)
    half = torch.zeros(1000, dtype=torch.bfloat16)

    def counted(call):
        with cost.CountBytes() as found:
            call()
        return found.bytes

    assert counted(lambda: x.abs()) == 8000
    assert counted(lambda: x.view(10, 100)[:5].t()) == 0
    assert counted(lambda: torch.rand_like(x)) == 4000  # reads nothing
    assert counted(lambda: x.add_(half)) == 4000 + 2000 + 4000
    assert counted(lambda: torch.where(x < 1, x, half)) == 5000 + (1000 + 4000 + 2000 + 4000)


@pytest.fixture(scope="module")
def record():
    return json.loads(cost.RECORD.read_text())


def test_the_record_is_of_these_kernels(record):
    """python -m bench.device_cost --out results/device_cost.json, after make check-device."""
    names, threads, _, read, written = cost.ops._device_kernel_costs(
        cost.VALUES, cost.BITS, cost.GROUP
    )
    assert list(record["kernels"]) == names
    for name, *described in zip(names, threads, read, written, strict=True):
        row = record["kernels"][name]
        assert [
            row["threads"],
            row["read"] * cost.VALUES,
            row["written"] * cost.VALUES,
        ] == described
        assert row["read"] > 0
    assert "prediction" in record["what"]


def test_every_kernel_of_values_is_in_the_table(record):
    named = {of.kernel for of in cost.OPERATIONS}
    stems = {name.removeprefix("slimgrad_").rsplit("_", 1)[0] for name in record["kernels"]}
    # One block that joins what others found, or plans; adding is decoding.
    assert stems - named == {"finish", "gate", "gate_compare", "uniform_add"}


def test_counts_of_torch_are_reproduced(record):
    assert cost.bytes_of_torch() == record["torch"]
