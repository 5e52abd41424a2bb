"""What newcomers do first: build against the installed package, and run the README's examples."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def readme_example(language):
    return re.search(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    project = tmp_path_factory.mktemp("uses_slimgrad")
    shutil.copytree(ROOT / "tests" / "install", project, dirs_exist_ok=True)
    (project / "readme_example.cc").write_text(readme_example("cpp"))
    build = project / "build"
    cmake_dir = run(sys.executable, "-m", "slimgrad", "--cmake-dir", cwd="/")
    run(
        *("cmake", "-S", str(project), "-B", str(build), "-G", "Ninja"),
        f"-Dslimgrad_DIR={cmake_dir}",
        f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}",
        "-DCMAKE_BUILD_TYPE=Release",
    )
    run("cmake", "--build", str(build))
    return build


def test_the_core_links_and_runs(built):
    version, sparsity, format = run(str(built / "uses_core")).split()
    assert version == "0.1.0"
    assert abs(float(sparsity) - 0.9) < 1e-3
    assert format == "1-5-2"


def test_the_torch_library_links_and_runs(built):
    assert run(str(built / "uses_torch")) == "1000 1000.0"


def test_the_readme_examples_run(built, tmp_path):
    assert re.search(r"zeros 0\.85", run(str(built / "readme_example")))
    assert "lognormal" in run(sys.executable, "-c", readme_example("python"), cwd=tmp_path)


def test_imports_and_runs_from_anywhere(tmp_path):
    run(sys.executable, "-c", "import slimgrad; slimgrad.FloatFormat('1-5-2')", cwd=tmp_path)
    assert "formats" in run(str(Path(sys.executable).parent / "slimgrad"), "--help", cwd=tmp_path)
