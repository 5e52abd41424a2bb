"""What newcomers do first: install it, and build against the installed package."""

import re
import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def example(language):
    page = (ROOT / "docs" / "cpp.md").read_text()
    return re.search(rf"```{language}\n(.*?)```", page, re.DOTALL)[1]


def attempt(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


def run(*command, **options):
    done = attempt(*command, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def configure(project, *options):
    cmake_dir = run(sys.executable, "-m", "slimgrad", "--cmake-dir", cwd="/")
    return attempt("cmake", "-B", "build", f"-Dslimgrad_DIR={cmake_dir}", *options, cwd=project)


def built(project, *options):
    done = configure(project, *options)
    assert done.returncode == 0, done.stderr
    run("cmake", "--build", "build", cwd=project)
    return project / "build"


@pytest.fixture(scope="module")
def uses_torch(tmp_path_factory):
    project = tmp_path_factory.mktemp("uses_slimgrad")
    shutil.copytree(ROOT / "tests" / "install", project, dirs_exist_ok=True)
    return built(project)


def test_the_torch_component_links_and_runs(uses_torch):
    assert run(str(uses_torch / "uses_torch")) == "1000 1000.0"


def test_the_core_links_and_runs_beside_it(uses_torch):
    version, sparsity, format = run(str(uses_torch / "uses_core")).split()
    assert version == "0.1.0"
    assert abs(float(sparsity) - 0.9) < 1e-3
    assert format == "1-5-2"


def test_the_ten_lines_of_cpp_build_in_an_empty_folder_without_torch(tmp_path):
    (tmp_path / "ten_lines.cc").write_text(example("cpp"))
    (tmp_path / "CMakeLists.txt").write_text(example("cmake"))
    build = built(tmp_path, "-DSLIMGRAD_LIBTORCH=/nowhere")
    assert re.search(r"zeros 0\.85", run(str(build / "ten_lines")))
    assert "torch" not in run("ldd", str(build / "ten_lines"))


def test_a_missing_torch_is_named(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\n"
        "find_package(slimgrad REQUIRED COMPONENTS torch)\n"
    )
    done = configure(tmp_path, "-DSLIMGRAD_LIBTORCH=/nowhere")
    assert done.returncode != 0
    assert "no libtorch in these folders: /nowhere" in " ".join(done.stderr.split())


def test_imports_and_runs_from_anywhere(tmp_path):
    run(sys.executable, "-c", "import slimgrad; slimgrad.FloatFormat('1-5-2')", cwd=tmp_path)
    assert "formats" in run(str(Path(sys.executable).parent / "slimgrad"), "--help", cwd=tmp_path)


def test_a_library_built_for_another_torch_says_so_in_a_sentence(tmp_path):
    done = attempt(
        *(sys.executable, "-c"),
        "import torch; torch.__version__ = '2.1.0'; import slimgrad",
        cwd=tmp_path,
    )
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert re.match(r"ImportError: slimgrad was built for torch 2\.\d+, found torch 2\.1\.0:", last)


def test_a_source_install_keeps_the_torch_that_is_there():
    oldest = re.search(r"SLIMGRAD_OLDEST_TORCH ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    assert f"torch>={oldest}" in requires("slimgrad")


def test_an_isolated_build_says_what_to_type(tmp_path):
    """pip's isolated environment is one with a Python and no torch."""
    run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv"))
    done = attempt(
        *("cmake", "-S", str(ROOT), "-B", str(tmp_path / "build"), "-G", "Ninja", "-DSKBUILD=2"),
        f"-DPython3_EXECUTABLE={tmp_path / 'venv' / 'bin' / 'python'}",
    )
    assert done.returncode != 0
    assert "pip install --no-build-isolation ." in " ".join(done.stderr.split())


def test_the_source_distribution_holds_what_a_build_reads(tmp_path):
    build = (sys.executable, "-m", "build", "--sdist", "--no-isolation", "-o", str(tmp_path))
    run(*build, cwd=ROOT)
    (archive,) = tmp_path.glob("slimgrad-*.tar.gz")
    held = {name.partition("/")[2] for name in run("tar", "-tf", str(archive)).splitlines()}
    folders = ("include", "src", "program", "trainer", "cmake", "python/slimgrad")
    needed = set(run("git", "ls-files", *folders, cwd=ROOT).splitlines())
    needed |= {"CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", "scripts/setup"}
    assert needed - held == set()
