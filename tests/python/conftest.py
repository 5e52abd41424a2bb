"""Fixtures for all tests."""

import pytest
import torch


@pytest.fixture(scope="module")
def one_thread():
    """Layers this small gain nothing from a second one, and lose much on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
