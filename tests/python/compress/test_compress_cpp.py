"""slimgrad::compress() for networks of torch::nn against compress() for the same in Python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import slimgrad as sg

PROJECT = Path(__file__).resolve().parents[2] / "runtime" / "compress"
STEPS = 4


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, stride=2, groups=4, bias=False)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.conv3 = nn.Conv1d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8 * 14 * 14, 300)

    def loss(self, x):
        y = torch.relu(self.norm(self.conv1(x)))
        y = self.up(self.conv2(y).relu_())
        y = torch.relu(self.conv3(y.flatten(2)))
        y = torch.tanh(self.conv3(y))
        return -torch.log_softmax(self.fc(y.flatten(1)), 1)[:, 0].mean()


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(60, 64)
        self.attention = nn.MultiheadAttention(64, 4)
        self.norm1 = nn.LayerNorm(64)
        self.linear1 = nn.Linear(64, 128)
        self.linear2 = nn.Linear(128, 64, bias=False)
        self.norm2 = nn.LayerNorm(64)
        self.cross = nn.MultiheadAttention(64, 4)
        # torch sums the gradient of this bias in another order in C++.
        self.apart = nn.MultiheadAttention(64, 4, bias=False)
        self.sizes = nn.MultiheadAttention(64, 4, kdim=32, vdim=32)
        self.head = nn.Linear(64, 60)
        self.frozen = nn.Linear(64, 64)
        self.frozen.weight.requires_grad_(False)
        self.head.weight = self.embedding.weight

    def loss(self, tokens):
        x = self.embedding(tokens)
        y = self.norm1(x + self.attention(x, x, x)[0])
        y = self.norm2(y + self.linear2(nn.functional.gelu(self.linear1(y))))
        y = y + self.cross(y, x, x)[0]
        y = y + self.apart(y, x, torch.tanh(x))[0]
        half = x.narrow(-1, 0, 32)
        y = y + self.sizes(y, half, half)[0]
        y = self.head(self.frozen(y))
        return -torch.log_softmax(y, -1)[:, :, 0].mean()


NETWORKS = {
    "cnn": (Cnn, lambda: torch.randn(4, 3, 16, 16)),
    "cnn, channels last": (
        Cnn,
        lambda: torch.randn(4, 3, 16, 16).contiguous(memory_format=torch.channels_last),
    ),
    "transformer": (Transformer, lambda: torch.randint(60, (12, 6))),
}
SETTINGS = {
    "prune": {"gradients": sg.Prune(0.6)},
    "quantize": {"gradients": "fp6"},
    "both": {"gradients": [sg.Prune(0.6), "fp6"]},
    "autocast": {"gradients": [sg.Prune(0.6), "fp6"]},
    "spread": {
        "gradients": sg.Prune(0.6, method="lognormal", allocation="min_cosine"),
        "exclude": {"cnn": ["conv2"], "transformer": ["linear1", "attention.k"]},
    },
    "scale": {
        "gradients": sg.Quantize(
            format="1-4-1", scale=sg.LossScale(2.0**16, dynamic=True, growth_interval=2)
        )
    },
    "schedule": {"gradients": sg.Prune(0.6), "schedule": {0: 0.5, 2: 0.9}},
}


def run(*command):
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # torch's sums depend on their number
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=one_thread)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cpp_networks")
    package = run(sys.executable, "-m", "slimgrad", "--cmake-dir").strip()
    run("cmake", "-S", PROJECT, "-B", folder, "-G", "Ninja", f"-Dslimgrad_DIR={package}")
    run("cmake", "--build", folder)
    return folder / "cpp_networks"


# Of a torch::nn::Linear under autocast, torch rounds before it adds the bias, unlike in Python.
CASES = [(k, s) for k in NETWORKS for s in SETTINGS if (k, s) != ("transformer", "autocast")]


@pytest.mark.parametrize(("network", "settings"), CASES)
def test_gradients_are_those_of_python(network, settings, program, tmp_path, one_thread):
    make, draw = NETWORKS[network]
    torch.manual_seed(1)
    model = make()
    inputs = {f"x.{step}": draw() for step in range(STEPS)}
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    torch.save(parameters | inputs, tmp_path / "in.pt")
    summary = run(program, network, settings, tmp_path / "in.pt", tmp_path / "out.pt")
    theirs = dict(torch.load(tmp_path / "out.pt", weights_only=False))

    told = dict(SETTINGS[settings])
    exclude = told.pop("exclude", {"cnn": [], "transformer": []})[network.partition(",")[0]]
    if network == "transformer":
        exclude = [*exclude, "frozen"]  # which only Python can compress
    controller = sg.compress(model, seed=7, stream=3, min_elements=1000, exclude=exclude, **told)
    ours = {}
    for step in range(STEPS):
        model.zero_grad()
        with torch.autocast("cpu", enabled=settings == "autocast"):
            loss = model.loss(inputs[f"x.{step}"])
        loss.backward()
        ours[f"loss.{step}"] = loss.detach()
        with torch.no_grad():
            for name, p in model.named_parameters():
                if p.grad is not None:
                    ours[f"grad.{step}.{name}"] = p.grad.clone()
                    p.sub_(p.grad, alpha=0.1)
    ours |= {f"state.{name}": tensor for name, tensor in controller.state_dict().items()}
    ours |= {f"left.{name}": torch.zeros(0) for name in controller.left}
    assert theirs.keys() == ours.keys()
    different = [k for k in ours if not torch.equal(ours[k].flatten(), theirs[k].flatten())]
    assert not different, summary
