"""What the tests of compress() share: a small network, its training, and two layers alone."""

import torch
import torch.nn.functional as F
from gate_samples import lognormal
from torch import nn

import slimgrad as sg


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(width * 64, 10))

    def forward(self, x):
        x = F.relu(self.norm(self.conv1(x)), inplace=True)
        return self.head(F.relu(self.conv2(x)))


class Shared(nn.Module):
    """One layer that is called twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = self.first

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


GATED = ["conv1", "conv2", "head.1"]


def batch(step, size=16):
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(size, 3, 8, 8, generator=generator)
    return x, torch.randint(10, (size,), generator=generator)


def make(gradients="fp6", seed=3, width=16, **options):
    torch.manual_seed(0)
    model = Net(width)
    return model, sg.compress(model, gradients, seed=seed, **{"min_elements": 1, **options})


def train(model, steps, optimizer=None, first=0, forward=None, size=16, each=lambda: None):
    """The losses; ``each`` is called after every step."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    forward = model if forward is None else forward
    losses = []
    for step in range(first, first + steps):
        x, y = batch(step, size)
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        each()
    return losses


def whole_state(model):
    """The model's own state and that of its compression."""
    return model.state_dict() | {f"slimgrad:{k}": v for k, v in sg.state_dict(model).items()}


def equal_states(a, b):
    a, b = whole_state(a), whole_state(b)
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def snapshot(model):
    return {k: v.clone() for k, v in whole_state(model).items()}


def two_layers(gradients, scales=(1.0, 1.0), **options):
    """Two linear layers whose output gradients have spreads of their own; returns step()."""
    torch.manual_seed(0)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(32, 100), nn.Linear(32, 100)

        def forward(self, x):
            return self.a(x), self.b(x)

    model = Both()
    controller = sg.compress(model, gradients, **{"min_elements": 1, "seed": 1, **options})

    def step(number=0, scale=1.0):
        x = torch.randn(100, 32, generator=torch.Generator().manual_seed(number))
        outputs = model(x)
        gradients = [
            lognormal((100, 100), sigma=s, seed=2 * number + i, scale=scale)
            for i, s in enumerate(scales)
        ]
        torch.autograd.backward(outputs, gradients)
        return [row["sparsity"] for row in controller.report().values()]

    return model, controller, step


def equal_keys(model):
    return list(model.state_dict()) == list(Net().state_dict())
