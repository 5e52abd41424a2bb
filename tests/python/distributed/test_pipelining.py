"""Stages of torch.distributed.pipelining whose tensors travel as messages: as one process, to the
bit, under its schedules."""

import os
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import join_group, run_ranks
from stage_models import GATE, STEPS, build, same_bits, weights
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.nn import functional

import slimgrad as sg
from slimgrad.distributed import (
    CompressedPipelineStage,
    StageBoundary,
    StageInput,
    StageOutput,
    pipeline_stage,
)

ROWS, MICROBATCHES = 48, 4
SEED = GATE["seed"]
OPTIONS = {key: value for key, value in GATE.items() if key != "seed"}
TREATMENTS = {
    "as it is": (None, None, "coded"),
    "fp6": (None, "fp6", "coded"),
    "prune": ("lossless", sg.Prune(0.8), "coded"),
    "fp4 packed": ("fp8", "fp4", "packed"),
}
SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(ROWS, 12, generator=generator), torch.randint(
        5, (ROWS,), generator=generator
    )


def trained_in_one_process(treatment, seed=None):
    activations, gradients, coding = TREATMENTS[treatment]
    seed = sg.derive_seed(SEED, "stage", 1, 0) if seed is None else seed
    boundary = StageBoundary(activations, gradients, coding=coding, seed=seed, **OPTIONS)
    first, second = build()
    parameters = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, target = batch(step)
        for part, wanted in zip(x.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True):
            functional.cross_entropy(second(boundary(first(part))), wanted).backward()
        for parameter in parameters:
            parameter.grad.div_(MICROBATCHES)
        optimizer.step()
    return weights(first), weights(second)


def _run(schedule, stage, optimizer):
    for step in range(STEPS):
        optimizer.zero_grad()
        x, target = batch(step)
        if stage.is_first:
            schedule.step(x)
        else:
            schedule.step(target=target)
        optimizer.step()


def _train(rank, treatment, make_schedule):
    activations, gradients, coding = TREATMENTS[treatment]
    module = build()[rank]
    stage = CompressedPipelineStage(
        *(module, rank, 2, torch.device("cpu")),
        activations=activations,
        gradients=gradients,
        coding=coding,
        seed=SEED,
        gate_options=OPTIONS,
    )
    schedule = make_schedule(stage, MICROBATCHES, loss_fn=functional.cross_entropy)
    _run(schedule, stage, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))
    return {"weights": weights(module), "report": stage.report()}


def _train_plainly_with_a_gate(rank):
    """What plain modules allow: a gate at the head of a stage. Values are compressed, bytes not;
    and torch's own look at shapes runs one more backward pass through it."""
    module = build()[rank]
    if rank:
        module = torch.nn.Sequential(StageBoundary(gradients="fp6", **GATE), module)
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, MICROBATCHES, loss_fn=functional.cross_entropy)
    _run(schedule, stage, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))
    return module[0].gate.report()["calls"] if rank else None


class _FirstStage(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module, self.out = module, StageOutput(1)

    def forward(self, x):
        return self.out(self.module(x))


class _SecondStage(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module, self.inp = module, StageInput(0, gradients="fp6", **GATE)

    def forward(self, token):
        return self.module(self.inp()) + 0 * token


def _train_by_tokens(rank, make_schedule):
    """torch's own stage: its schedule moves the token of a StageOutput, which moves the tensor."""
    module = build()[rank]
    stage_module = (_FirstStage, _SecondStage)[rank](module)
    token = torch.zeros((), requires_grad=True)
    rows = ROWS // MICROBATCHES
    shapes = [
        {"input_args": (torch.zeros(rows, 12),), "output_args": (token,)},
        {"input_args": (token,), "output_args": (torch.zeros(rows, 5, requires_grad=True),)},
    ]
    stage = PipelineStage(stage_module, rank, 2, torch.device("cpu"), **shapes[rank])
    schedule = make_schedule(stage, MICROBATCHES, loss_fn=functional.cross_entropy)
    _run(schedule, stage, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))
    return weights(module)


def _interleaved(rank):
    """Two stages in each process: the messages of several go the same way."""
    torch.manual_seed(1)
    modules = [torch.nn.Linear(12, 12) for _ in range(3)] + [torch.nn.Linear(12, 5)]
    stages = [
        CompressedPipelineStage(
            *(modules[index], index, 4, torch.device("cpu")),
            gradients="fp6",
            seed=SEED,
            gate_options=OPTIONS,
        )
        for index in (rank, rank + 2)
    ]
    schedule = ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn=functional.cross_entropy)
    x, target = batch(0)
    schedule.step(*([x] if rank == 0 else []), target=target)
    return {index: [p.grad for p in modules[index].parameters()] for index in (rank, rank + 2)}


def _damaged(rank):
    module = build()[rank]
    stage = CompressedPipelineStage(module, rank, 2, torch.device("cpu"), gradients="fp6")
    if rank:
        plain = stage._counted

        def spoiled(message, x, what):
            message = plain(message, x, what)
            message[-20] ^= 4
            return message

        stage._counted = spoiled
    schedule = ScheduleGPipe(stage, MICROBATCHES, loss_fn=functional.cross_entropy)
    x, target = batch(0)
    try:
        schedule.step(x) if rank == 0 else schedule.step(target=target)
    except (sg.PayloadError, RuntimeError) as error:
        return str(error)
    return None


def _ranks(rank, world, port, results):
    torch.set_num_threads(1)
    join_group(rank, world, port)
    found = {
        (treatment, name): _train(rank, treatment, schedule)
        for treatment in TREATMENTS
        for name, schedule in SCHEDULES.items()
    }
    found["interleaved"] = _interleaved(rank)
    found["calls"] = _train_plainly_with_a_gate(rank)
    found["tokens"] = {
        name: _train_by_tokens(rank, schedule) for name, schedule in SCHEDULES.items()
    }
    torch.save(found, f"{results}/{rank}.pt")
    dist.barrier()
    torch.save(_damaged(rank), f"{results}/damaged{rank}.pt")
    os._exit(0)  # as a process ends that does not catch it; the other one notices


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipelining")
    run_ranks(_ranks, (str(folder),))
    return [
        torch.load(folder / f"{rank}.pt", weights_only=False)
        | {"damaged": torch.load(folder / f"damaged{rank}.pt")}
        for rank in range(2)
    ]


@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_train_as_one_process(trained, treatment, schedule, one_thread):
    first, second = trained_in_one_process(treatment)
    assert same_bits(trained[0][treatment, schedule]["weights"], first)
    assert same_bits(trained[1][treatment, schedule]["weights"], second)


def test_bytes_are_counted(trained):
    """12 x 40 values a microbatch."""
    header = 512
    for treatment, size in (("as it is", 1920), ("fp4 packed", 240)):
        report = trained[1][treatment, "GPipe"]["report"]
        count = STEPS * MICROBATCHES
        assert report["gradients"] == {
            "messages": count,
            "bytes": count * (size + header),
            "plain_bytes": count * 1920,
        }
        assert report["activations"]["messages"] == 0  # that of the last stage goes nowhere
    assert trained[0]["fp4 packed", "1F1B"]["report"]["activations"]["bytes"] == count * (
        480 + header
    )


def test_several_stages_in_a_process(trained, one_thread):
    torch.manual_seed(1)
    modules = [torch.nn.Linear(12, 12) for _ in range(3)] + [torch.nn.Linear(12, 5)]
    layers = [modules[0]]
    for module in modules[1:]:
        seed = sg.derive_seed(SEED, "stage", len(layers) // 2 + 1, 0)
        layers += [StageBoundary(gradients="fp6", seed=seed, **OPTIONS), module]
    model = torch.nn.Sequential(*layers)
    x, target = batch(0)
    for part, wanted in zip(x.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True):
        functional.cross_entropy(model(part), wanted).backward()
    for index, module in enumerate(modules):
        found = trained[index % 2]["interleaved"][index]
        for parameter, grad in zip(module.parameters(), found, strict=True):
            assert torch.equal(parameter.grad / MICROBATCHES, grad), index


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_torchs_own_stages_move_tokens(trained, schedule, one_thread):
    first, second = trained_in_one_process("fp6", seed=SEED)
    assert same_bits(trained[0]["tokens"][schedule], first)
    assert same_bits(trained[1]["tokens"][schedule], second)


def test_a_gate_in_a_plain_stage_sees_one_pass_more(trained):
    assert trained[1]["calls"] == STEPS * MICROBATCHES + 1


def test_a_damaged_message_is_named_and_stops_both(trained):
    first, second = (rank["damaged"] for rank in trained)
    assert first.startswith("[CompressedPipelineStage] gradient 0 for stage 0 from rank 1: ")
    assert "the checksum is wrong" in first
    assert "Connection" in second  # closed, or reset


@pytest.mark.parametrize("name", pipeline_stage._METHODS)
def test_a_torch_without_a_method_that_schedules_call_is_refused(monkeypatch, name):
    names = [other for other in pipeline_stage._METHODS if other != name]
    stand_in = type("PipelineStage", (), dict.fromkeys(names))
    monkeypatch.setattr(pipeline_stage, "PipelineStage", stand_in)
    with pytest.raises(RuntimeError, match=f"lacks {name}: write the loop"):
        CompressedPipelineStage(torch.nn.Identity(), 0, 2, torch.device("cpu"))


def test_no_private_name_of_torch_is_used():
    """A stage, a schedule or an operation of torch: nothing with an underscore."""
    source = Path(pipeline_stage.__file__).read_text()
    own = set(re.findall(r"def (_\w+)", source)) | set(re.findall(r"self\.(_\w+)(?: =|:)", source))
    used = set(re.findall(r"\.(_\w+)", source))
    assert used - own == {"__version__", "_library", "_support"}
    inherited = vars(CompressedPipelineStage).keys() & set(dir(PipelineStage))
    assert {name for name in inherited if name[0] != "_"} == set(pipeline_stage._METHODS)
