"""Packed tensors under DistributedDataParallel and FSDP2."""

import pytest
import saved_ranks
import torch
from ranks import run_ranks
from saved_samples import same


@pytest.mark.parametrize("kind", ["ddp", "ddp, compiled", "fsdp", "fsdp, converted after"])
def test_ranks_draw_differently_and_stay_together(tmp_path, kind):
    run_ranks(saved_ranks.train, (str(tmp_path), kind))
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert 0 < first["error"] < 0.02
    assert same(first["gradients"], second["gradients"])
    assert same(first["parameters"], second["parameters"])
    assert first["losses"][-1] < first["losses"][0]
    assert first["packed"] == second["packed"] > 10
    assert torch.equal(first["draws"], second["draws"])
    assert max(first["share"], second["share"]) < 0.27
    if kind == "ddp":
        assert not same(first["own"], second["own"])
    assert first["removed"] == []
