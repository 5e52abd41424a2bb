"""Tensor parallelism: gates work on the part of the gradient that a rank has."""

import distributed_worker
import torch
from ranks import run_ranks


def test_gates_behind_parallel_layers(tmp_path):
    run_ranks(distributed_worker.tensor_parallel, (str(tmp_path),))
    a, b = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert a["calls"] == b["calls"] == [1, 1]
    # With a stream of their own for data-parallel ranks, of which there is one, replicated
    # gradients are compressed alike.
    assert torch.equal(a["bias"], b["bias"])
    # A gate that does nothing changes nothing.
    for rank in (a, b):
        assert torch.allclose(rank["idle"], rank["plain"], rtol=1e-5, atol=1e-6)
