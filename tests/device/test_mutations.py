"""Whether the tests of the kernels for devices see a kernel that is wrong.

Each mutation is a small mistake. The kernels are compiled with it, linked to the tests that were
built without it, and one of those must fail.
"""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/release"

MUTATIONS = [
    # The element that decides where 16 random bits do not: once in 65,536 values.
    (
        "apply.h",
        "rule.apply(drawn, x, at + static_cast<std::uint64_t>(j),",
        "rule.apply(drawn, x, at,",
    ),
    ("apply.h", "counts[thread].nonfinite << 20", "counts[thread].nonfinite << 21"),
    ("draws.h", "e / 8 % 2 == 0 ? word : word >> 16", "e / 8 % 2 != 0 ? word : word >> 16"),
    ("block.h", "int mask = 1; mask < size;", "int mask = 1; 2 * mask < size;"),
    ("fewbit.h", "return tops >> 3 * (row - 30);", "return tops >> 2 * (row - 30);"),
    ("fewbit.h", "(word.values[c] >> row & 1u) != 0", "(word.values[c] >> row & 1u) == 0"),
    ("saved.h", "e % kWindow < kWindow / 2", "e % kWindow <= kWindow / 2"),
    ("saved.h", "if (scale.is_bad()) add_to", "if (false) add_to"),
    ("measure.h", "if (kernels::sums::is_easy(largest, smallest)) {", "if (largest >= smallest) {"),
    ("measure.h", "choices >> 3 * group", "choices >> 2 * group"),
    (
        "coding.h",
        "shared.draws.at(codes.random, 8 * eight + j)",
        "shared.draws.at(codes.random, 8 * eight)",
    ),
    # Sums of a gate's sample, its plan, and the order of its report's.
    ("gate.h", "add_to(&high_log2_square, log2_square >> 32)", "add_to(&high_log2_square, 0)"),
    (
        "gate.h",
        "for (int i = 0; i < kThreads; ++i) sum += shared.terms",
        "for (int i = kThreads - 1; i >= 0; --i) sum += shared.terms",
    ),
    ("gate_decide.h", "shared.covered[k % kBinsAnOctave]", "shared.covered[0]"),
    ("gate_decide.h", "k <= last_bin(); ++k) {", "k < last_bin(); ++k) {"),
    ("gate_decide.h", "a.plan[kDueField] = 0;", "a.plan[kDueField] = 1;"),
    ("gate_decide.h", "range.last - range.first; ++i)", "range.last - range.first - 9; ++i)"),
    # A race: a thread writes what others of the same step read.
    ("exact.h", "sums[1 - now][thread] =", "sums[now][thread] ="),
    ("exact.h", "next != a.num_bytes", "next > a.num_bytes"),
]


def run(command):
    return subprocess.run(command, cwd=BUILD, capture_output=True, text=True)


def commands(target):
    lines = run(["ninja", "-t", "commands", target]).stdout.splitlines()
    return [line for line in lines if line]


@pytest.fixture(scope="module")
def build():
    if not (BUILD / "tests/slimgrad-device-tests").exists():
        pytest.skip("the tests of the kernels were not built: make build")
    compile_line = next(c for c in commands("slimgrad-host-kernels") if "host_kernels.cc" in c)
    link_line = commands("slimgrad-device-tests")[-1]
    return shlex.split(compile_line), link_line


def compiled(tmp_path, build, change):
    """The tests, with the kernels as `change` leaves their folder."""
    compile_words, link_line = build
    folder = tmp_path / "src/device"
    shutil.copytree(ROOT / "src/device", folder)
    change(folder)
    words = ["-O1" if word == "-O3" else word for word in compile_words]
    source = next(i for i, word in enumerate(words) if word.endswith("host_kernels.cc"))
    words[source] = str(folder / "host_kernels.cc")
    kernels = tmp_path / "host_kernels.o"
    words[words.index("-o") + 1] = str(kernels)
    # Before the folder that it was copied from.
    first = next(i for i, word in enumerate(words) if word.startswith("-I"))
    words.insert(first, f"-I{tmp_path / 'src'}")
    result = run(words)
    assert result.returncode == 0, result.stderr
    tests = tmp_path / "tests"
    link = link_line.replace("libslimgrad-host-kernels.a", str(kernels))
    link = link.replace("-o tests/slimgrad-device-tests", f"-o {tests}").split(" && cd ")[0]
    result = subprocess.run(link, cwd=BUILD, shell=True, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return subprocess.run([tests, "--gtest_fail_fast", "--gtest_brief=1"], capture_output=True)


def test_kernels_as_they_are_pass(tmp_path, build):
    assert compiled(tmp_path, build, lambda folder: None).returncode == 0


@pytest.mark.parametrize("file, right, wrong", MUTATIONS)
def test_a_mistake_is_seen(tmp_path, build, file, right, wrong):
    def change(folder):
        text = (folder / file).read_text()
        assert text.count(right) == 1, f"{file} has no longer one {right}"
        (folder / file).write_text(text.replace(right, wrong))

    result = compiled(tmp_path, build, change)
    assert result.returncode == 1 and b"FAILED" in result.stdout, result.stdout[-2000:]
