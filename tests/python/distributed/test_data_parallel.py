"""DDP and FSDP2 with coded gradients."""

import pytest
import torch
from ranks import run_ranks
from torch import nn
from training_workers import CODECS, ddp, feedback, fsdp

import slimgrad as sg

LOSSY = [name for name in CODECS if name not in ("float32", "lossless")]


def run(worker, world, tmp_path_factory):
    results = tmp_path_factory.mktemp(worker.__name__)
    run_ranks(worker, (str(results),), world)
    return [torch.load(results / f"{rank}.pt") for rank in range(world)]


@pytest.fixture(scope="module", params=[2, 3])
def trained(request, tmp_path_factory):
    return run(ddp, request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    return run(fsdp, 2, tmp_path_factory)


def close(a, b, tolerance):
    return all(torch.allclose(x, y, rtol=0, atol=tolerance) for x, y in zip(a, b, strict=True))


def test_gradients_are_bit_identical_at_every_step(trained):
    for name in CODECS:
        for of_rank in trained:
            assert of_rank[name][1] == trained[0][name][1], name
            assert len(set(of_rank[name][1])) == 12


def test_lossless_trains_as_torch_does(trained):
    """To the bit with two ranks, where the mean of two has one order and halving is exact."""
    for own, plain in (("lossless", "float32"), ("unused", "unused plain")):
        if len(trained) == 2:
            assert trained[0][own][1] == trained[0][plain][1]
        assert close(trained[0][own][2], trained[0][plain][2], 1e-5)


@pytest.mark.parametrize("name", LOSSY)
def test_lossy_codecs_train_nearly_as_well(trained, name):
    plain, coded = trained[0]["float32"][0], trained[0][name][0]
    assert coded[-1] < 0.8 * plain[0]
    assert coded[-1] == pytest.approx(plain[-1], abs=0.25)
    assert coded != plain


def test_fewer_bytes_travel(trained):
    sent = {name: trained[0][name + " plan"][1] for name in CODECS}
    assert sent["float32"] == 0  # not by us
    assert sent["rate4"] < sent["uniform8"]
    assert sent["uniform4 fed back"] < sent["uniform8"] < sent["lossless"]
    assert all(trained[0][name + " plan"][0] == 12 for name in CODECS)


def test_memory_of_error_feedback_is_reported(trained):
    """Four bytes for each value of the two weights that are large enough to be coded."""
    assert trained[0]["uniform4 fed back plan"][2] == 4 * 2 * 100 * 100
    assert trained[0]["uniform8 plan"][2] == 0


def test_accumulated_gradients_are_exchanged_once(trained):
    plain, coded = trained[0]["accumulated float32"], trained[0]["accumulated lossless"]
    assert close(plain[2], coded[2], 1e-5)


def test_warmup_and_schedule(trained):
    sizes = trained[0]["schedule"]
    assert sizes[:3] == [0, 0, 0]
    assert all(size > 0 for size in sizes[3:])
    assert max(sizes[6:]) < 0.8 * min(sizes[3:6])


def test_a_plan_in_words(trained):
    fresh, after, sent, of_codec, of_schedule = trained[0]["in words"]
    steps = "float32 (torch's own exchange), from step 3 on uniform8, from step 6 on uniform4"
    where = f"gradients between {len(trained)} ranks"
    assert fresh == f"{where}: {steps}; 0 steps done, 0 bytes sent by this rank"
    assert after.endswith(f"; 9 steps done, {sent:,} bytes sent by this rank")
    assert "expected codec to be one of auto, float32, lossless, fp8," in of_codec
    assert of_codec.endswith("; got 'uniform9'")
    assert "expected codecs of a schedule to be one of float32, lossless," in of_schedule


def test_an_overflow_on_one_rank_skips_the_step_on_all(trained):
    for of_rank in trained:
        skipped, scale = of_rank["scaler"]
        assert skipped
        assert scale == 512.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gradients(trained, dtype):
    for coded, plain in zip(trained[0][str(dtype)], trained[0][f"{dtype} plain"], strict=True):
        assert coded.dtype == dtype
        step = float(plain.abs().max()) / 127
        assert float((coded.float() - plain.float()).abs().max()) < 4 * step + 1e-3


def test_fsdp_divides_and_cuts_as_torch_does(sharded):
    assert close(sharded[0]["float32"][1], sharded[0]["untouched"][1], 0)
    assert close(sharded[0]["lossless"][1], sharded[0]["untouched"][1], 1e-6)
    assert close(sharded[0]["float16"][1], sharded[0]["float16 plain"][1], 1e-4)


@pytest.mark.parametrize("name", LOSSY)
def test_fsdp_trains_with_lossy_codecs(sharded, name):
    plain, coded = sharded[0]["float32"][0], sharded[0][name][0]
    assert coded[-1] == pytest.approx(plain[-1], abs=0.25)
    assert 0 < sharded[0][name + " plan"][1] < sharded[0]["lossless plan"][1] / 2
    for of_rank in sharded:
        assert close(of_rank[name][1], sharded[0][name][1], 0)


def test_resuming_to_the_bit_with_as_many_ranks(tmp_path):
    for name, resume, first, steps in (("a", "", 0, 6), ("b", "a", 6, 4), ("all", "", 0, 10)):
        run_ranks(feedback, (str(tmp_path), name, resume, first, steps, True), world=2)
    resumed, whole = (torch.load(tmp_path / f"{name}-0.pt") for name in ("b", "all"))
    assert resumed["plan"]["step"] == whole["plan"]["step"] == 10
    assert all(map(torch.equal, resumed["parameters"], whole["parameters"]))
    for name, residual in whole["residual"].items():
        assert torch.equal(resumed["residual"][name], residual)
    for rank in range(2):
        refused = torch.load(tmp_path / f"b-refused-{rank}.pt")
        assert f"expected the state of rank {rank} of 2, got that of rank {rank} of 3" in refused


def test_resuming_with_another_number_of_ranks_keeps_what_is_owed(tmp_path):
    run_ranks(feedback, (str(tmp_path), "two", "", 0, 6, False), world=2)
    ranks = [torch.load(tmp_path / f"two-{rank}.pt") for rank in range(2)]
    for name, mean in ranks[0]["plan"]["residuals"].items():
        own = [of_rank["residual"][name] for of_rank in ranks]
        assert torch.allclose(mean, (own[0] + own[1]) / 2)
        assert torch.equal(mean, ranks[1]["plan"]["residuals"][name])
    run_ranks(feedback, (str(tmp_path), "three", "two", 6, 6, False), world=3)
    resumed = torch.load(tmp_path / "three-0.pt")
    assert resumed["plan"]["step"] == 12
    assert resumed["losses"][-1] < ranks[0]["losses"][0]


def test_register_refuses_what_it_cannot_serve():
    with pytest.raises(TypeError, match=r"\[register\] expected a DistributedDataParallel or a"):
        sg.distributed.register(nn.Linear(2, 2))
