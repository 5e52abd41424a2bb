"""The same network with the same seed has the same gradients in C++ and in Python, to the bit:
tests/runtime/saved/saved_golden_test.cc reads the same file, and says more about it."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import slimgrad as sg

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "saved_gradients.txt"
LINES = [line for line in GOLDEN.read_text().splitlines() if line and not line.startswith("#")]


def numbers(first, *sizes):
    size = torch.Size(sizes).numel()
    index = torch.arange(first, first + size)
    return ((index * 7919) % 10007).float().div(4096).sub(1.2).view(sizes)


def checksum(tensors):
    total = 0xCBF29CE484222325
    for tensor in tensors:
        for byte in tensor.contiguous().numpy().tobytes():
            total = (total ^ byte) * 0x100000001B3 % (1 << 64)
    return total


def line_of(bits, rounding):
    x, w = numbers(0, 8, 32, 32).requires_grad_(), numbers(8192, 8, 32, 32).requires_grad_()
    mask = (numbers(16384, 8, 32, 32) > 0).float()
    packing = sg.saved_tensors(bits or "exact", rounding=rounding, seed=7, stream=3)
    gradients = []
    for step in range(2):
        with packing:
            a = x * 1.5
            b = (a * w).relu() * mask
            c = b.transpose(1, 2) * a
            d = (c.bfloat16() * w.bfloat16()).float()
            y = F.max_pool2d(c, 2) + (d * d)[:, :16, :16]
        gradients += torch.autograd.grad(y, [x, w], numbers(step, 8, 16, 16))
    tally = packing.tally
    counts = [tally.packed, tally.plain_bytes, tally.bytes]
    counts += [sum(count for count, _ in tally.left.values()), tally.left_bytes, tally.left_bytes]
    counts.append(packing.state_dict()["draws"][1].item())
    return f"{bits} {rounding} {checksum(gradients):x} {' '.join(map(str, counts))}"


@pytest.mark.parametrize("line", LINES)
def test_gradients_are_those_of_cpp_to_the_bit(line):
    bits, rounding = line.split()[:2]
    assert line_of(int(bits), rounding) == line


def test_the_file_has_all_widths():
    assert len(LINES) == 7
