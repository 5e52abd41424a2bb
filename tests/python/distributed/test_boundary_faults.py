"""What goes wrong at a boundary is named on both sides, in bounded time."""

import copy
import os
import pickle
import time

import pytest
import torch
import torch.distributed as dist
from ranks import join_group, leave_group, run_ranks
from stage_models import GATE

import slimgrad as sg
from slimgrad._library import classes
from slimgrad.distributed import BoundaryError, StageBoundary, StageInput, StageOutput

X = torch.linspace(-1, 1, 24).reshape(4, 6)


def _error(run):
    """What it raised, and how many seconds it took."""
    began = time.monotonic()
    try:
        run()
    except (BoundaryError, sg.PayloadError) as error:
        return {"kind": type(error).__name__, "says": str(error), "took": time.monotonic() - began}
    return None


def _output(tag, **options):
    return StageOutput(1, tag=tag, timeout=30, **options)


def _input(tag, **options):
    return StageInput(0, tag=tag, timeout=30, **(GATE | options))


def _forward(boundary):
    return boundary(X.clone().requires_grad_())


# ---- what the second stage sends back -----------------------------------------------------------
# Each is a pair: the first stage's part and the second's; both return what they raised.


def _first(tag):
    output = _output(tag)
    token = _forward(output)
    return _error(token.backward)


def _second_of_bad_gradient(message):
    def run(tag):
        received = _input(tag)
        received()
        data = message()
        parts = data.split([512, data.numel() - 512])
        sent = [dist.isend(part, 0, tag=tag) for part in parts]  # a body may never be taken
        # It waits for the next activation, and hears of the refusal.
        return _error(received) | {"parts": len(sent)}

    return run


def _gradient(x, number=0):
    return classes.StageMessages.gradient(x, number, False, False, None, None, 0)


def _flipped():
    message = _gradient(X * 3)
    message[512 + 7] ^= 1
    return message


SPOILED = {
    "damaged": _flipped,
    "wrong shape": lambda: _gradient(X.reshape(6, 4)),
    "wrong type": lambda: _gradient(X.int()),
    "of another microbatch": lambda: _gradient(X, 17),
    "not a gradient": lambda: classes.StageMessages.activation(X, 0, None, False),
}


# ---- what the first stage sends; damage is in tests/runtime/exchange ----------------------------


def _second_of_bad_activation(**options):
    def run(tag):
        received = _input(tag, **options)
        found = _error(received)
        again = _error(received)  # The body of what was refused may still come.
        return found | {"again": again}

    return run


ANNOUNCED = {
    "more than max_bytes": {"max_bytes": 95},
    "shape not expected": {"shape": (-1, 7)},
    "type not expected": {"dtype": torch.float16},
}


def _faults(rank, world, port, results):
    torch.set_num_threads(1)
    join_group(rank, world, port)
    found = {}
    tag = 0
    for tag, (name, message) in enumerate(SPOILED.items()):
        run = _second_of_bad_gradient(message) if rank else _first
        found[name] = run(tag)
    for name, options in ANNOUNCED.items():
        tag += 1
        run = _second_of_bad_activation(**options) if rank else _first
        found[name] = run(tag)
    torch.save(found, f"{results}/{rank}.pt")
    leave_group()


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    run_ranks(_faults, (str(folder),))
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("damaged", "the checksum of the body does not fit"),
        ("wrong shape", "expected float32 of shape [4, 6], as the activation was, got float32 of"),
        ("wrong type", "expected float32 of shape [4, 6], as the activation was, got int32 of"),
        ("of another microbatch", "expected the gradient of one of 0, got gradient 17"),
        ("not a gradient", "expected the gradient of one of 0, got activation 0"),
    ],
)
def test_a_bad_gradient_stops_both_sides(faults, name, says):
    first, second = (rank[name] for rank in faults)
    assert first["kind"] == "PayloadError"
    assert (
        first["says"].startswith("[StageOutput] gradient 0 from rank 1: ") and says in first["says"]
    )
    assert second["kind"] == "BoundaryError"
    assert second["says"].startswith(
        "[StageInput] rank 0 stopped: it refused gradient 0 from rank 1: "
    )
    assert says in second["says"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("more than max_bytes", "expected at most max_bytes=95, got float32 of shape [4, 6]: 96"),
        ("shape not expected", "expected any type of shape [-1, 7], got float32 of shape [4, 6]"),
        ("type not expected", "expected float16 of any shape, got float32 of shape [4, 6]"),
    ],
)
def test_a_bad_activation_stops_both_sides(faults, name, says):
    first, second = (rank[name] for rank in faults)
    assert second["kind"] == "PayloadError"
    assert second["says"].startswith("[StageInput] activation 0 from rank 0: ")
    assert says in second["says"]
    assert second["again"]["kind"] == "BoundaryError"
    assert "[StageInput] stopped before: " in second["again"]["says"]
    assert first["kind"] == "BoundaryError"
    assert says in first["says"] and "[StageOutput] rank 1 stopped: it refused" in first["says"]


# ---- a process that is gone, or silent ----------------------------------------------------------


def _gone(rank, world, port, results):
    torch.set_num_threads(1)
    join_group(rank, world, port)
    if rank:
        _input(0)()
        os._exit(0)
    output = _output(0)
    token = _forward(output)
    torch.save(_error(token.backward), f"{results}/gone.pt")
    os._exit(0)  # The group has nobody left to say goodbye to.


def _silent(rank, world, port, results):
    torch.set_num_threads(1)
    join_group(rank, world, port)
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        output = _output(0)
        _forward(output)
        output.flush()
        store.wait(["said"])
    else:
        received = StageInput(0, tag=0, timeout=3)
        received()
        torch.save(_error(received), f"{results}/silent.pt")
        store.set("said", "")
    os._exit(0)  # A group in which a wait has ended early says no goodbye.


def test_a_process_that_is_gone_is_named(tmp_path):
    run_ranks(_gone, (str(tmp_path),))
    found = torch.load(tmp_path / "gone.pt")
    assert found["kind"] == "BoundaryError"
    assert found["says"].startswith("[StageOutput] expected rank 1 to send a tensor within 30 s")
    assert found["took"] < 30


def test_a_process_that_is_silent_is_named(tmp_path):
    run_ranks(_silent, (str(tmp_path),))
    found = torch.load(tmp_path / "silent.pt")
    assert found["kind"] == "BoundaryError"
    assert found["says"].startswith("[StageInput] expected rank 0 to send a tensor within 3 s, got")


# ---- arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"activations": "fp2"}, "expected activations to be None, 'lossless', 'fp3' to 'fp8', a"),
        ({"activations": "1-1-0"}, "a format of 3 to 8 bits such as '1-4-3', or 'uniform2' to"),
        ({"activations": "few"}, "expected activations to be None"),
        ({"coding": "zip"}, "expected coding to be 'coded' or 'packed', got 'zip'"),
        ({"gradients": "fp99"}, "expected gradients to be 'fp2' to 'fp8', a format such as"),
        ({"gradients": sg.Prune(0.8, allocation="min_cosine")}, "needs nothing but the gradient"),
        ({"gradients": sg.Prune(weight=0.8)}, "needs nothing but the gradient"),
        (
            {"gradients": sg.Quantize(8, scale=sg.LossScale(dynamic=True))},
            "expected a scale of the gradient's own",
        ),
        ({"gradients": "fp6", "schedule": {0: 0.5}}, "expected a schedule with Prune"),
        ({"gradients": "fp6", "stream": -1}, "expected stream to be a whole number >= 0"),
    ],
    ids=str,
)
def test_misuse_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        StageBoundary(**options)


def _ranks(rank, world, port, results):
    join_group(rank, world, port)
    if rank == 0:
        said = []
        for peer in (0, 2, -1, True):
            with pytest.raises(ValueError) as error:
                StageOutput(peer)
            said.append(str(error.value))
        with pytest.raises(ValueError) as error:
            StageOutput(1, timeout=0)
        end = StageOutput(1)
        for copied in (copy.deepcopy(end), pickle.loads(pickle.dumps(end))):
            assert copied.report() == end.report()
        torch.save([*said, str(error.value)], f"{results}/said.pt")
    leave_group()


def test_a_rank_that_there_is_not_is_refused_and_ends_can_be_copied(tmp_path):
    run_ranks(_ranks, (str(tmp_path),))
    *peers, timeout = torch.load(tmp_path / "said.pt")
    for said, peer in zip(peers, ("0", "2", "-1", "True"), strict=True):
        assert said == (
            f"[StageOutput] expected the rank of another of the 2 processes, got {peer} in rank 0"
        )
    assert timeout == "[StageOutput] expected timeout to be seconds > 0 or None, got 0"
