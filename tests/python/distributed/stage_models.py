"""Two stages of a small model, and their training in one process: what the boundary between two is
compared with."""

import torch
from torch import nn
from torch.nn import functional

import slimgrad as sg
from slimgrad.distributed import StageBoundary

ROWS, MICROBATCHES, STEPS = 48, 3, 4
GATE = {"seed": 11, "stream": 5, "min_elements": 0}

# What is asked of the boundary: of StageOutput, of StageInput, and of both.
TREATMENTS = {
    "as it is": ({}, {}),
    "lossless": ({"activations": "lossless"}, {"gradients": "lossless"}),
    "fp6": ({}, {"gradients": "fp6"}),
    "fp4 packed": ({}, {"gradients": "fp4", "coding": "packed"}),
    "prune": ({"activations": "lossless"}, {"gradients": sg.Prune(0.8)}),
    "topk": ({}, {"gradients": sg.Prune(0.8, kind="topk")}),
    "prune and fp6": ({}, {"gradients": [sg.Prune(0.8), "fp6"]}),
    "prune and fp6 packed": ({}, {"gradients": [sg.Prune(0.8), "fp6"], "coding": "packed"}),
    "odd loss scale": ({}, {"gradients": sg.Quantize(8, scale=sg.LossScale(3.0))}),
    "warm-up": ({}, {"gradients": "fp6", "warmup": 4}),
    "schedule": ({}, {"gradients": sg.Prune(0.9), "schedule": {0: 0.1, 6: 0.9}}),
    "refresh": ({}, {"gradients": sg.Prune(0.9), "refresh": 3}),
    "small": ({}, {"gradients": "fp6", "min_elements": 4096}),
    "fp8 activations": ({"activations": "fp8"}, {"gradients": "fp8"}),
    "fp8 activations packed": ({"activations": "fp8", "coding": "packed"}, {"gradients": "fp8"}),
    "uniform6 activations": ({"activations": "uniform6"}, {"gradients": sg.Prune(0.5)}),
}
MODELS = ["linear", "images", "bfloat16"]


def build(kind="linear"):
    torch.manual_seed(3)
    if kind == "images":  # the boundary is in channels_last
        first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        second = nn.Sequential(nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 5))
        return [m.to(memory_format=torch.channels_last) for m in (first, second)]
    first = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 40))
    second = nn.Sequential(nn.ReLU(), nn.Linear(40, 5))
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    return [first.to(dtype), second.to(dtype)]


def batch(step, kind="linear"):
    generator = torch.Generator().manual_seed(step)
    shape = (ROWS, 3, 8, 8) if kind == "images" else (ROWS, 12)
    x = torch.randn(shape, generator=generator)
    if kind == "images":
        x = x.to(memory_format=torch.channels_last)
    x = x.bfloat16() if kind == "bfloat16" else x
    return x, torch.randint(5, (ROWS,), generator=generator)


def microbatches(step, kind="linear", count=MICROBATCHES):
    x, target = batch(step, kind)
    return list(zip(x.chunk(count), target.chunk(count), strict=True))


def loss_of(output, target):
    return functional.cross_entropy(output.float(), target) / MICROBATCHES


def optimizer_of(*modules):
    parameters = [p for module in modules for p in module.parameters()]
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def weights(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def options_of(treatment):
    """(of StageOutput, of StageInput)."""
    output, received = TREATMENTS[treatment]
    return output, GATE | received


def trained_in_one_process(treatment, kind="linear"):
    """The weights of both stages after STEPS, with a StageBoundary between them."""
    output, received = options_of(treatment)
    boundary = StageBoundary(**(received | output))
    first, second = build(kind)
    optimizer = optimizer_of(first, second)
    for step in range(STEPS):
        optimizer.zero_grad()
        for x, target in microbatches(step, kind):
            loss_of(second(boundary(first(x))), target).backward()
        optimizer.step()
    return weights(first), weights(second)


def same_bits(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
