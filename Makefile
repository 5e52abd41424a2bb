# The two commands of the README, and what developers type. Every target sets up what it needs.
.PHONY: help demo test check test-cpp test-python test-clients build wheel test-wheel check-sdist check-torch-builds \
        check-clang check-arm64 check-device bench bench-distributed results lint format asan asan-torch tsan-torch fuzz setup setup-build clean
.DEFAULT_GOAL := build

PYTHON := .venv/bin/python
FLOWER := .venv-flower/bin/python
FUZZ_SECONDS ?= 30
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)

# configure PRESET: says nothing unless it fails.
configure = @cmake --preset $(1) >build/configure-$(1).log 2>&1 || { cat build/configure-$(1).log; exit 1; }

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what the build and the tests need: Debian packages, .venv
	@mkdir -p build
	@scripts/setup all

setup-build:
	@mkdir -p build
	@scripts/setup build

# One build tree for C++ and Python: CMake builds everything, then pip installs from the same tree.
install = $(PYTHON) -m pip install --quiet --no-build-isolation --no-deps --force-reinstall -C build-dir=build/release .

demo: setup-build ## Train a small network plainly and with compressed gradients, compare, and write report.html
	$(call configure,user)
	cmake --build --preset user
	$(install)
	build/release/slimgrad-train --probe-at 1 200 --out build/demo.jsonl
	@echo && echo "The page about these runs, which needs no network:"
	@$(PYTHON) -m slimgrad report build/demo.jsonl --title "slimgrad: the demo" -o report.html

build: setup ## Build everything and install the Python package into .venv
	$(call configure,release)
	cmake --build --preset release
	$(install)

test: test-cpp test-python ## Build once, run the C++ and the Python tests

check: lint asan check-device test-wheel ## Layout and types; the core under sanitizers and fuzzers; GPU code; the wheel

test-cpp: build
	ctest --preset release

# What calls ops one by one, and so is done again on the test device in little time; without names `pytest --device` runs all of
# apply, fewbit, measure and saved.
on_device = $(addprefix tests/python/,measure apply/test_prune.py apply/test_quantize.py apply/test_pack.py \
              fewbit/test_fewbit_ops.py saved/test_saved_ops.py)

# A file a core; threads that wait do not spin, or two programs with two threads would stand in each other's way. Tests of the test
# device have processes of their own: it must be there before the first backward pass.
pytest = OMP_WAIT_POLICY=passive $(PYTHON) -m pytest -q -n $(CMAKE_BUILD_PARALLEL_LEVEL) --dist loadfile
test-python: build
	$(pytest) --ignore tests/python/device
	$(pytest) tests/python/device
	$(pytest) --device $(on_device)

test-clients: build ## Tests with the packages that users bring (requirements-clients.txt, -flower.txt)
	@scripts/setup clients
	$(PYTHON) -m pytest -q tests/clients --ignore tests/clients/flower
	@rm -rf build/flower
	$(PYTHON) -m pip wheel --quiet --no-build-isolation --no-deps -C build-dir=build/release -w build/flower .
	$(FLOWER) -m pip install --quiet --no-deps --force-reinstall build/flower/slimgrad-*.whl
	$(FLOWER) -m pytest -q tests/clients/flower

asan: setup ## C++ tests of the core under AddressSanitizer and UBSan, and the fuzzer for a moment
	$(call configure,asan)
	cmake --build --preset asan
	ctest --preset asan
	scripts/fuzz 20

asan-torch: setup ## Tests of the op library, in C++ and Python, under AddressSanitizer and UBSan
	$(call configure,asan-torch)
	cmake --build --preset asan-torch
	scripts/sanitize-torch address

tsan-torch: setup ## C++ tests of the op library, from many threads, under ThreadSanitizer
	$(call configure,tsan-torch)
	cmake --build --preset tsan-torch
	scripts/sanitize-torch thread

fuzz: setup ## Feed damaged payloads and containers to the decoder for FUZZ_SECONDS (30)
	$(call configure,asan)
	cmake --build --preset asan --target slimgrad-payload-fuzz slimgrad-container-fuzz
	scripts/fuzz $(FUZZ_SECONDS)

# Without nvcc or clang it says so, and looks at what there is. AMD's GPUs are compiled for, and not supported.
check-device: build ## Compile the kernels for GPUs, and look at their code and what it takes
	cmake --build --preset release --target slimgrad-device-code
	if cmake --build --preset release --target help | grep -q slimgrad-device-amd; then cmake --build --preset release --target slimgrad-device-amd; fi
	$(PYTHON) -m pytest -q tests/device -rs

wheel: build ## A wheel in dist/ that needs nothing but torch, glibc and libstdc++
	scripts/make-wheel

test-wheel: wheel
	scripts/check-wheel

check-sdist: setup ## Build from the source distribution in a clean environment, and try it
	scripts/check-sdist

check-torch-builds: setup ## Repeat the tests with other builds and releases of torch (hours of a core, 20 GB)
	scripts/check-torch-builds

check-clang: setup ## Build everything with clang and run the C++ tests
	$(call configure,clang)
	cmake --build --preset clang
	ctest --preset clang

check-arm64: setup ## Cross-compile the core for 64-bit Arm and run its C++ tests under QEMU
	@scripts/check-arm64

bench: build ## Measure speed against what users would pick instead
	$(PYTHON) -m pip install --quiet -r requirements-bench.txt
	$(PYTHON) -m bench.run

# Half an hour at most. As root it limits links between network namespaces; otherwise loopback.
bench-distributed: build ## Seconds and bytes of gradients between processes, against what torch has
	$(PYTHON) -m bench.distributed --fresh --out results/distributed.json
	$(PYTHON) -m bench.distributed_page --page docs/distributed.md

# Data that the project does not carry: CIFAR-10's binary version in DATA, and any text as text.txt. It takes hours, and goes
# on where it was stopped.
results: build ## Train the runs of results/runs.txt that are missing, on DATA=folder, and write docs/results.md
	scripts/run-list results/runs.txt "$(DATA)"
	$(PYTHON) -m bench.fewbit_convergence --steps 500 --seeds 4 --out results/fewbit_convergence.json
	$(PYTHON) -m bench.papers
	$(PYTHON) -m bench.pictures

.PHONY: docs
docs: ## Build the site into build/site; it needs no network, and a warning is an error
	@mkdir -p build
	@scripts/setup docs
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet
	@echo "docs: build/site/index.html; with search: python3 -m http.server -d build/site"

lint: setup ## Check the layout of C++ and Python
	@scripts/lint

format: setup ## Repair what lint complains about
	clang-format -i $$(scripts/sources)
	.venv/bin/ruff format python tests bench examples scripts
	.venv/bin/ruff check --fix python tests bench examples scripts

clean: ## Remove build/
	rm -rf build
