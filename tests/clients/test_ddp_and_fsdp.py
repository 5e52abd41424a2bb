"""Two processes: DistributedDataParallel, FSDP2, distributed checkpoints of compressed models."""

import pytest
import rank_workers
import torch
from rank_workers import COMPILED, FSDP_ORDERS, ORDERS, WHATS
from ranks import run_ranks
from small_models import build, equal_tensors

WHAT = pytest.mark.parametrize("what", WHATS)


def run(worker, folder):
    run_ranks(worker, (str(folder),))
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def ddp(tmp_path_factory):
    return run(rank_workers.ddp, tmp_path_factory.mktemp("ddp"))


@pytest.fixture(scope="module")
def fsdp(tmp_path_factory):
    return run(rank_workers.fsdp, tmp_path_factory.mktemp("fsdp"))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return run(rank_workers.checkpoints, tmp_path_factory.mktemp("checkpoints"))


@WHAT
@pytest.mark.parametrize("order", ORDERS)
def test_ddp_ranks_draw_differently_and_have_the_same_weights(ddp, what, order):
    one, other = (rank[what, order, 0] for rank in ddp)
    assert equal_tensors(one["weights"], other["weights"])
    assert not equal_tensors(one["own"], other["own"])  # of the same weights and the same batch
    assert set(one["calls"]) == set(other["calls"]) == {4}
    assert one["buffers"] == [name for name, _ in build("bert").named_buffers()]


@WHAT
def test_ddp_a_seed_gives_the_same_bits_on_each_rank_in_every_order(ddp, what):
    for rank in ddp:
        first, *others = (row for key, row in rank.items() if key[0] == what)
        assert len(others) == len(ORDERS)  # the first one twice
        for row in others:
            assert equal_tensors(row["weights"], first["weights"])
            assert equal_tensors(row["own"], first["own"])


@pytest.mark.parametrize("what", COMPILED)
def test_ddp_compiled_trains_as_eager_does(ddp, what):
    one, other = (rank["compiled"][what] for rank in ddp)
    assert equal_tensors(one["weights"], other["weights"])
    assert set(one["calls"].values()) == set(other["calls"].values()) == {3}
    eager = ddp[0][what, ORDERS[0], 0]["weights"]
    same = [torch.allclose(value, one["weights"][key], atol=1e-3) for key, value in eager.items()]
    assert sum(same) > len(same) / 2, sum(same)


def test_ddp_compiled_in_several_graphs_allocates(ddp):
    for rank in ddp:
        assert len({round(wanted, 3) for wanted in rank["allocated"]["wanted"]}) > 3


@WHAT
@pytest.mark.parametrize("order", [*FSDP_ORDERS, "before the group: compress, shard"])
def test_fsdp_trains_as_ddp_does(fsdp, what, order):
    for rank in fsdp:
        row = rank[what, order]
        assert "error" not in row, row["error"]
        assert all("Embedding" in why for why in row["left"].values())
        assert set(row["calls"].values()) == {3}
        reference = rank["ddp"][what]
        assert row["weights"].keys() == reference.keys()
        for key, value in reference.items():  # sums of two are exact up to the order of the mean
            torch.testing.assert_close(row["weights"][key], value, msg=key)


@WHAT
@pytest.mark.parametrize("order", [*FSDP_ORDERS, "before the group: compress, shard"])
def test_fsdp_remove_gives_the_classes_back(fsdp, what, order):
    for rank in fsdp:
        assert rank[what, order]["classes"] == rank[what, order]["plain classes"]


@pytest.mark.parametrize("what", ["gates", "sparse"])
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_a_distributed_checkpoint_resumes_to_the_bit(checkpoints, how, what):
    one, other = (rank[how, what] for rank in checkpoints)
    for row in (one, other):
        assert equal_tensors(row["resumed"], row["expected"])
        assert set(row["calls"].values()) == {5}
    assert equal_tensors(one["expected"], other["expected"])
    assert not equal_tensors(one["state"], other["state"])  # what gates have seen is each rank's
