"""Fixtures for all tests."""

import os
import sys

import pytest
import torch

# `make test-python` runs a file a core. What is about several threads asks for them itself.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


# Their ops have device kernels.
ROOMS_ON_DEVICE = {"apply", "fewbit", "measure", "saved"}


def pytest_addoption(parser):
    parser.addoption(
        "--device",
        action="store_true",
        help="run the suites of apply, fewbit, measure and saved, and repeat every call of an op "
        "on the test device, where it must give the same bits (tests/testdevice/repeat.h)",
    )


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--device"):
        return
    others = [item for item in items if not ROOMS_ON_DEVICE & {item.path.parent.name}]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if ROOMS_ON_DEVICE & {item.path.parent.name}]


@pytest.fixture(autouse=True)
def on_device(request):
    """Under --device: ops are repeated on the test device."""
    if not request.config.getoption("--device"):
        yield
        return
    import testdevice

    with testdevice.repeated_ops():
        yield


def pytest_terminal_summary(terminalreporter, config):
    if config.getoption("--device") and hasattr(torch.ops.testdevice, "repeated"):
        import testdevice

        calls = testdevice.repeated()
        terminalreporter.write_line(
            f"test device: {sum(calls.values())} calls of {len(calls)} ops, all with the CPU's bits"
        )


@pytest.fixture(scope="module")
def one_thread():
    """Layers this small gain nothing from a second one, and lose much on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", autouse=True)
def no_graphs_of_other_files():
    """Dynamo remembers the sizes that a function of torch was called with, and makes symbols of
    those that change: which files ran before in the same process must not matter."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
