"""What newcomers do first: install it, and build against the installed package."""

import re
import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

import slimgrad

ROOT = Path(__file__).resolve().parents[2]
WANTS_TORCH = """\
cmake_minimum_required(VERSION 3.25)
project(p LANGUAGES CXX)
find_package(slimgrad REQUIRED COMPONENTS torch)
"""


def example(language):
    page = (ROOT / "docs" / "cpp.md").read_text()
    return re.search(rf"```{language}\n(.*?)```", page, re.DOTALL)[1]


def attempt(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


def run(*command, **options):
    done = attempt(*command, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def pip_copy():
    return run(sys.executable, "-m", "slimgrad", "--cmake-dir", cwd="/")


def configure(project, *options, package=None):
    found = f"-Dslimgrad_DIR={package or pip_copy()}"
    return attempt("cmake", "-B", "build", found, *options, cwd=project)


def built(project, *options, package=None):
    done = configure(project, *options, package=package)
    assert done.returncode == 0, done.stderr
    run("cmake", "--build", "build", cwd=project)
    return project / "build"


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """Where `cmake --install` put what the folder of `make build`, which pip has used, holds."""
    if not (ROOT / "build" / "release" / "cmake_install.cmake").exists():
        pytest.skip("make build was not run here")
    folder = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", str(ROOT / "build" / "release"), "--prefix", str(folder))
    return folder


@pytest.fixture(scope="module", params=["pip", "cmake"])
def uses_torch(request, tmp_path_factory):
    project = tmp_path_factory.mktemp("uses_slimgrad")
    shutil.copytree(ROOT / "tests" / "install", project, dirs_exist_ok=True)
    if request.param == "pip":
        return built(project)
    return built(project, package=request.getfixturevalue("prefix") / "lib" / "cmake" / "slimgrad")


def test_cmake_install_brings_programs_that_run_and_nothing_of_a_wheel(prefix):
    assert {entry.name for entry in prefix.iterdir()} == {"bin", "include", "lib"}
    assert "formats" in run(str(prefix / "bin" / "slimgrad"), "--help", cwd="/")
    assert "--model" in run(str(prefix / "bin" / "slimgrad-train"), "--help", cwd="/")


def test_the_core_is_configured_and_installed_without_torch_and_python(tmp_path):
    """Its library is an empty file here: compiling it takes minutes."""
    build = tmp_path / "core"
    run(
        *("cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", "-DSLIMGRAD_TORCH=OFF"),
        *("-DSLIMGRAD_PROGRAM=OFF", "-DPython3_EXECUTABLE=/nowhere"),
    )
    (build / "libslimgrad.a").touch()
    run("cmake", "--install", str(build), "--prefix", str(tmp_path / "prefix"))
    package = tmp_path / "prefix" / "lib" / "cmake" / "slimgrad"
    (tmp_path / "CMakeLists.txt").write_text(example("cmake"))
    (tmp_path / "ten_lines.cc").touch()
    assert configure(tmp_path, package=package).returncode == 0
    (tmp_path / "CMakeLists.txt").write_text(WANTS_TORCH)
    done = configure(tmp_path, package=package)
    assert done.returncode != 0
    assert "built without torch (-DSLIMGRAD_TORCH=OFF)" in " ".join(done.stderr.split())


def test_the_torch_component_links_and_runs(uses_torch):
    assert run(str(uses_torch / "uses_torch")) == "1000 1000.0"


def test_the_core_links_and_runs_beside_it(uses_torch):
    version, sparsity, format = run(str(uses_torch / "uses_core")).split()
    assert version == slimgrad.__version__
    assert abs(float(sparsity) - 0.9) < 1e-3
    assert format == "1-5-2"


def test_the_ten_lines_of_cpp_build_in_an_empty_folder_without_torch(tmp_path):
    (tmp_path / "ten_lines.cc").write_text(example("cpp"))
    (tmp_path / "CMakeLists.txt").write_text(example("cmake"))
    build = built(tmp_path, "-DSLIMGRAD_LIBTORCH=/nowhere")
    assert re.search(r"zeros 0\.85", run(str(build / "ten_lines")))
    assert "torch" not in run("ldd", str(build / "ten_lines"))


def test_a_missing_torch_is_named_and_what_to_set(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(WANTS_TORCH)
    done = configure(tmp_path, "-DSLIMGRAD_LIBTORCH=/nowhere")
    assert done.returncode != 0
    message = " ".join(done.stderr.split())
    assert "no libtorch in these folders: /nowhere" in message
    assert "with -DSLIMGRAD_LIBTORCH=FOLDER" in message


def test_scripts_run_the_tools_of_their_own_environment():
    """The first line of bin/pip and its like names the folder in which it was installed, which is
    another checkout's environment in one that was copied or moved."""
    files = [ROOT / "Makefile", *(f for f in (ROOT / "scripts").iterdir() if f.is_file())]
    for file in files:
        code = re.sub(r"(?m)^#.*", "", file.read_text())
        assert not re.search(r"(?m)venv[\w-]*/bin/(?!python|ruff)\w|^(pip|auditwheel) ", code), file


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
