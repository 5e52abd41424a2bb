"""What all tests with the packages of others share."""

import os

import pytest
import torch

# Before anything imports them: nothing is looked up on the network, nothing is told to anybody.
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    TOKENIZERS_PARALLELISM="false",
    TRANSFORMERS_VERBOSITY="error",
)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Layers this small gain nothing from a second one, and lose much on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
