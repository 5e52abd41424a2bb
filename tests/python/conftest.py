"""Fixtures for all tests."""

import os
import sys

import pytest
import torch

# `make test-python` runs a file a core. What is about several threads asks for them itself.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


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
