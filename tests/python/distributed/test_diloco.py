"""The example of seldom exchanges: ranks stay together, learn, and send little."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "diloco.py"


def run(*options):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    done = subprocess.run(
        [*command, str(EXAMPLE), "--rounds", "4", "--width", "96", *options],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr  # the ranks compare their weights
    accuracies = [float(x) for x in re.findall(r"accuracy ([\d.]+)", done.stdout)]
    times = float(re.search(r"(\d+) times as many", done.stdout)[1])
    return accuracies, re.findall(r"weights (\w+)", done.stdout), times


@pytest.mark.parametrize(
    ("options", "least"),
    [(["--codec", "lossless"], 15), (["--codec", "uniform4", "--error-feedback"], 40)],
    ids=["lossless", "uniform4"],
)
def test_diloco(options, least):
    """20 steps between exchanges send a twentieth, and a codec its part of that: of 4 bits an
    eighth and less, but three of the arrays are small and go as they are."""
    accuracies, digests, times = run(*options)
    assert len(accuracies) == len(set(digests)) == 4
    assert accuracies[-1] > max(accuracies[0], 0.5)
    assert times > least
