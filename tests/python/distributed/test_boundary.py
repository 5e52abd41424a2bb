"""A boundary between two processes trains, to the bit, what one process with the same gate does."""

import pytest
import torch
from ranks import join_group, leave_group, run_ranks
from stage_models import (
    GATE,
    MICROBATCHES,
    MODELS,
    STEPS,
    TREATMENTS,
    build,
    loss_of,
    microbatches,
    optimizer_of,
    options_of,
    same_bits,
    trained_in_one_process,
    weights,
)

import slimgrad as sg
from slimgrad.distributed import StageBoundary, StageInput, StageOutput

CASES = [(treatment, "linear") for treatment in TREATMENTS] + [
    (treatment, kind)
    for treatment in ("lossless", "fp6", "prune", "prune and fp6 packed", "fp8 activations")
    for kind in MODELS[1:]
]


def _first(treatment, kind, tag):
    """The first stage: all microbatches forward, then all backward."""
    output, _ = options_of(treatment)
    first, _ = build(kind)
    boundary = StageOutput(1, **output, tag=tag, timeout=60)
    optimizer = optimizer_of(first)
    for step in range(STEPS):
        optimizer.zero_grad()
        tokens = [boundary(first(x)) for x, _ in microbatches(step, kind)]
        for token in tokens:
            token.backward()
        optimizer.step()
    with torch.no_grad():
        boundary(first(microbatches(0, kind)[0][0]))
    boundary.flush()
    return {"weights": weights(first), "report": boundary.report()}


def _second(treatment, kind, tag):
    _, received = options_of(treatment)
    _, second = build(kind)
    boundary = StageInput(0, **received, tag=tag, timeout=60)
    optimizer = optimizer_of(second)
    for step in range(STEPS):
        optimizer.zero_grad()
        for _, target in microbatches(step, kind):
            loss_of(second(boundary()), target).backward()
        optimizer.step()
    evaluated = boundary()
    boundary.flush()
    return {
        "weights": weights(second),
        "report": boundary.report(),
        "needs gradient": evaluated.requires_grad,
        "state": sg.state_dict(boundary),
    }


def _train(rank, world, port, results):
    torch.set_num_threads(1)
    join_group(rank, world, port)
    found = {}
    for tag, (treatment, kind) in enumerate(CASES):
        found[treatment, kind] = (_second if rank else _first)(treatment, kind, tag)
    found["any order"] = (_any_order_second if rank else _any_order_first)()
    found["as compress"] = (_as_compress_second if rank else _as_compress_first)()
    torch.save(found, f"{results}/{rank}.pt")
    leave_group()


# ---- tokens in another order --------------------------------------------------------------------


def _any_order_first():
    first, _ = build()
    boundary = StageOutput(1, tag=1000, timeout=60)
    tokens = [boundary(first(x)) for x, _ in microbatches(0)]
    for token in reversed(tokens):
        token.backward()
    try:
        tokens[0].backward()
    except ValueError as error:
        again = str(error)
    return {"grads": [p.grad for p in first.parameters()], "again": again}


def _any_order_second():
    _, second = build()
    boundary = StageInput(0, "fp6", tag=1000, timeout=60, **GATE)
    for _, target in microbatches(0):
        loss_of(second(boundary()), target).backward()
    boundary.flush()


# ---- what compress() does -----------------------------------------------------------------------


def _as_compress_first():
    first, _ = build()
    boundary = StageOutput(1, tag=1001, timeout=60)
    boundary(first(microbatches(0)[0][0])).backward()
    return [p.grad for p in first.parameters()]


def _as_compress_second():
    _, second = build()
    seed = sg.derive_seed(9, "gate", "0.2")
    boundary = StageInput(0, sg.Prune(0.7), seed=seed, stream=2, min_elements=0, tag=1001)
    loss_of(second(boundary()), microbatches(0)[0][1]).backward()
    boundary.flush()


# ---- a stage in the middle, compiled ------------------------------------------------------------

MIDDLE = {"seed": 21, "stream": 3, "min_elements": 0}


def _three_stages():
    torch.manual_seed(4)
    return [torch.nn.Linear(12, 24), torch.nn.Linear(24, 24), torch.nn.Linear(24, 5)]


def _chain(rank, world, port, results):
    torch.set_num_threads(1)
    join_group(rank, world, port)
    stage = _three_stages()[rank]
    before = StageInput(rank - 1, [sg.Prune(0.5), "fp8"][rank - 1], **MIDDLE) if rank else None
    after = StageOutput(rank + 1, "lossless") if rank < 2 else None

    def run(x, target):
        y = stage(before() if before else x)
        return after(y) if after else loss_of(y, target)

    if rank == 1:
        run = torch.compile(run, backend="eager")
    ends = [run(x, target) for x, target in microbatches(0)]
    for end in ends:
        end.backward()
    for boundary in filter(None, (before, after)):
        boundary.flush()
    torch.save([p.grad for p in stage.parameters()], f"{results}/{rank}.pt")
    leave_group()


def test_three_stages(tmp_path, one_thread):
    run_ranks(_chain, (str(tmp_path),), world=3)
    stages = _three_stages()
    boundaries = [StageBoundary("lossless", g, **MIDDLE) for g in (sg.Prune(0.5), "fp8")]
    layers = [stages[0], boundaries[0], stages[1], boundaries[1], stages[2]]
    losses = [loss_of(torch.nn.Sequential(*layers)(x), target) for x, target in microbatches(0)]
    for loss in losses:
        loss.backward()
    for rank, stage in enumerate(stages):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert all(map(torch.equal, found, [p.grad for p in stage.parameters()])), rank


# ---- the tests ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("boundary")
    run_ranks(_train, (str(folder),))
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize(("treatment", "kind"), CASES)
def test_two_processes_train_as_one(trained, treatment, kind, one_thread):
    first, second = trained_in_one_process(treatment, kind)
    assert same_bits(trained[0][treatment, kind]["weights"], first)
    assert same_bits(trained[1][treatment, kind]["weights"], second)


def test_gates_do_something(trained):
    plain = trained[0]["as it is", "linear"]["weights"]
    for treatment in ("fp6", "fp4 packed", "prune", "warm-up", "schedule", "uniform6 activations"):
        assert not same_bits(trained[0][treatment, "linear"]["weights"], plain), treatment
    for treatment in ("lossless", "small"):
        assert same_bits(trained[0][treatment, "linear"]["weights"], plain), treatment


@pytest.mark.parametrize(("treatment", "kind"), CASES)
def test_both_sides_count_the_same_bytes(trained, treatment, kind):
    one, other = (rank[treatment, kind]["report"] for rank in trained)
    assert one == other
    assert one["gradients"]["messages"] == STEPS * MICROBATCHES
    assert one["activations"]["messages"] == STEPS * MICROBATCHES + 1


def test_fewer_bytes_travel(trained):
    """16 x 40 values a microbatch: 2,560 bytes plainly, plus a header of 512."""
    sizes = {
        name: row["report"]["gradients"]["bytes"] / row["report"]["gradients"]["messages"]
        for (name, kind), row in list(trained[0].items())[: len(CASES)]
        if kind == "linear"
    }
    assert sizes["as it is"] == 2560 + 512
    assert sizes["fp4 packed"] == 320 + 512
    assert sizes["prune and fp6 packed"] == 480 + 512
    assert sizes["fp6"] < 480 + 512 + 64
    assert sizes["prune and fp6"] < 364 + 512
    assert sizes["lossless"] < sizes["as it is"]


def test_no_gradient_is_expected_without_one(trained):
    assert not trained[1]["fp6", "linear"]["needs gradient"]


def test_the_gates_state_is_that_of_the_boundary(trained):
    state = trained[1]["fp6", "linear"]["state"]
    gate = StageInput.__new__(StageInput)  # only the names matter here
    torch.nn.Module.__init__(gate)
    gate.gate = StageBoundary(gradients="fp6", **GATE).gate
    assert sg.state_dict(gate).keys() == state.keys()
    sg.load_state_dict(gate, state)
    assert gate.gate.report()["calls"] == STEPS * MICROBATCHES


def test_tokens_may_run_backward_in_any_order(trained, one_thread):
    first, second = build()
    boundary = StageBoundary(gradients="fp6", **GATE)
    leaves = []
    for x, target in microbatches(0):
        leaves.append(first(x).detach().requires_grad_())
        loss_of(second(boundary(leaves[-1])), target).backward()
    first.zero_grad()
    for (x, _), leaf in reversed(list(zip(microbatches(0), leaves, strict=True))):
        first(x).backward(leaf.grad)
    found = trained[0]["any order"]
    assert all(map(torch.equal, found["grads"], [p.grad for p in first.parameters()]))
    assert "expected one backward pass for each token" in found["again"]


def test_the_gate_is_that_of_compress(trained, one_thread):
    first, second = build()
    model = torch.nn.Sequential(first, second)
    sg.compress(model, sg.Prune(0.7), include="0.2", seed=9, stream=2, min_elements=0)
    x, target = microbatches(0)[0]
    loss_of(model(x), target).backward()
    assert all(map(torch.equal, trained[0]["as compress"], [p.grad for p in first.parameters()]))
