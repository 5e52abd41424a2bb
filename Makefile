# The two commands of the README, and what developers type. Every target sets up what it needs.
.PHONY: demo test build bench results lint format asan fuzz check-arm64 setup clean
.DEFAULT_GOAL := build

PYTHON := .venv/bin/python
FUZZ_SECONDS ?= 30
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)

setup:
	@scripts/setup
	@mkdir -p build

# One build tree for C++ and Python: CMake builds everything, then pip installs from the same tree.
build: setup
	cmake --preset release -DCMAKE_INSTALL_PREFIX=$(CURDIR)/build/prefix >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
	cmake --build --preset release
	$(PYTHON) -m pip install --quiet --no-build-isolation --no-deps --force-reinstall -C build-dir=build/release .

demo: build
	.venv/bin/slimgrad-train

test: build lint asan
	$(MAKE) fuzz FUZZ_SECONDS=20
	ctest --preset release
	$(PYTHON) -m pytest -q

asan: setup
	cmake --preset asan >build/configure-asan.log 2>&1 || { cat build/configure-asan.log; exit 1; }
	cmake --build --preset asan
	ctest --preset asan

# `make test` runs it for a few seconds, so that it cannot rot. New inputs stay in build/fuzz; a crash is kept there too and fails the run.
fuzz: setup
	cmake --preset fuzz >build/configure-fuzz.log 2>&1 || { cat build/configure-fuzz.log; exit 1; }
	cmake --build --preset fuzz
	mkdir -p build/fuzz/corpus
	cd build/fuzz && tests/fuzz/slimgrad-payload-fuzz -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -timeout=10 -print_final_stats=1 corpus ../../tests/fuzz/corpus

# The other architecture: the core, cross-compiled, its C++ tests under QEMU.
check-arm64: setup
	@scripts/check-arm64

bench: build
	$(PYTHON) -m pip install --quiet -r requirements-bench.txt
	$(PYTHON) -m bench.run

# Long experiments on data that the project does not carry: CIFAR-10's binary version in DATA.
results: build
	$(PYTHON) -m bench.time_to_accuracy --data "$(DATA)" --out results/time_to_accuracy.json

lint: setup
	@scripts/lint

format: setup
	clang-format -i $$(scripts/sources)
	.venv/bin/ruff format python tests bench examples
	.venv/bin/ruff check --fix python tests bench examples

clean:
	rm -rf build
