"""C++ gives what Python gives, to the bit: tests/torch/like_python.cc does the same calls."""

import subprocess
from pathlib import Path

import pytest
import torch

import slimgrad as sg

PROGRAM = (
    Path(__file__).resolve().parents[2] / "build" / "release" / "tests" / "slimgrad-like-python"
)
F = sg.functional


def swish(y: torch.Tensor) -> torch.Tensor:
    return y * y.sigmoid()


def float64(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def letters(text: str) -> torch.Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.int64)


# ---- what is given -------------------------------------------------------------------------------


def attentions() -> dict[str, sg.nn.MultiheadAttention]:
    prune = sg.Prune(weight=0.9, input=0.5, sparse_backward="always")
    options = {"gradients": prune, "seed": 3, "stream": 2}
    return {
        "attention": sg.nn.MultiheadAttention(32, 4, **options),
        "attention apart": sg.nn.MultiheadAttention(
            32, 4, kdim=24, vdim=24, add_bias_kv=True, add_zero_attn=True, **options
        ),
        "attention causal": sg.nn.MultiheadAttention(32, 4, dropout=0.2, **options),
    }


def layers() -> dict[str, torch.nn.Module]:
    prune = sg.Prune(weight=0.9, input=0.5, sparse_backward="always")
    torch.manual_seed(13)
    made = {"linear": sg.nn.Linear(48, 64, gradients=prune, seed=3, stream=2)}
    torch.manual_seed(13)
    made["linear drawn"] = sg.nn.Linear(48, 64, gradients=prune, stream=2)
    made["conv"] = sg.nn.Conv2d(3, 16, 3, padding=1, gradients=prune, seed=3, stream=2)
    return made | attentions()


def given(made: dict[str, torch.nn.Module]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def values(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    tensors = {
        "x": values(3, 4, 14, 15) * 2,
        "rows": values(128, 48),
        "images": values(4, 3, 12, 12),
        "words": values(40, 5, 32),
        "keys": values(30, 5, 24),
        "padding": (values(5, 40) > 1).to(torch.uint8),
        "causal": torch.ones(40, 40).triu(1).to(torch.uint8),
    }
    tensors["padding"][:, 0] = 0
    for name, layer in made.items():
        tensors |= {f"{name}.{key}": value.detach() for key, value in layer.named_parameters()}
    return tensors


# ---- what is done with it ------------------------------------------------------------------------


def decisions(x: torch.Tensor) -> dict[str, torch.Tensor]:
    stats = sg.measure(x)
    format = sg.best_format(6, stats)
    threshold = sg.threshold(stats, 0.8)
    lognormal = {"log_mean": -3, "log_std": 2, "zero_fraction": 0.1}
    results = {
        "measure": stats.tensor[:9],
        "decisions": float64(
            threshold,
            sg.expected_sparsity(stats, threshold),
            sg.expected_cosine(stats, threshold),
            format.exponent_bits,
            format.mantissa_bits,
            sg.gradient_scale(stats, format),
            sg.relative_error(format, 2.5),
            sg.best_format(8, (2.5, 4.5)).exponent_bits,
            sg.expected_error(stats, format, 0.5),
        ),
        "allocate": float64(*sg.allocate([stats, sg.measure(x * x)], 0.7)),
        "allocate lognormal": float64(*sg.allocate([stats, lognormal], 0.7)),
    }
    for family in sg.FAMILIES:
        law = sg.fit(x, family)
        results[f"fit {family}"] = float64(*law.params.values(), law.ks(x), law.wasserstein(x))
        results[f"cdf {family}"] = law.cdf(x.abs())
    for name, table in (
        ("steps", sg.steps("gelu")),
        ("steps normal", sg.steps("sigmoid", 2, (-5, 5), "normal")),
        ("steps function", sg.steps(swish, 2, (-4, 4))),
    ):
        results[name] = float64(*table.borders, *table.levels, table.error, table.even)
    return results


def applied(x: torch.Tensor) -> dict[str, torch.Tensor]:
    both = ("stochastic", "stochastic")
    results = {
        "quantize": sg.quantize(x, "1-4-1", 0.25),
        "quantize stochastic": sg.quantize(x, "1-4-1", 0.25, *both, seed=7),
        "prune": sg.prune(x, 1.5, seed=9),
        "prune_quantize": sg.prune_quantize(x, 1.5, "1-4-1", 0.25, *both, seed=3),
        "pack": sg.pack(x, "1-4-1", 0.25, *both, seed=7).data,
        "unpack": sg.pack(x, "1-4-1", 0.25).unpack(torch.float32),
    }
    torch.manual_seed(5)
    return results | {
        "drawn quantize": sg.quantize(x, "1-4-1", 0.25, "stochastic"),
        "not drawn": sg.quantize(x, "1-4-1", 0.25),
        "drawn prune": sg.prune(x, 1.5),
        "drawn prune_quantize": sg.prune_quantize(x, 1.5, "1-4-1", 0.25),
        "drawn pack": sg.pack(x, "1-4-1", 0.25, "nearest", "stochastic").data,
        "drawn encode": sg.encode(x, "uniform", rounding="stochastic"),
        "encode": sg.encode(x),
        "encode uniform": sg.encode(
            x, "uniform", 4, coder="huffman", model="gennorm", rounding="stochastic", seed=3
        ),
        "encode float": sg.encode(x, "float", format="1-3-2", scale=0.5),
        "encode pruned": sg.encode(sg.prune(x, 1.5, seed=9), "pruned"),
    }


SLOPES = torch.tensor([0.1, 0.2, 0.3, 0.4])
WIDE = {"bits": 4, "interval": (-6, 5), "weight": "uniform"}
FUNCTIONS = {
    "relu": F.relu,
    "relu inplace": lambda y: F.relu(y, True),
    "leaky_relu": F.leaky_relu,
    "rrelu": F.rrelu,
    "rrelu training": lambda y: F.rrelu(y, 0.1, 0.3, True),
    "threshold": lambda y: F.threshold(y, 0.5, 0.1),
    "relu6": F.relu6,
    "hardtanh": lambda y: F.hardtanh(y, -0.5, 2),
    "hardsigmoid": F.hardsigmoid,
    "hardshrink": F.hardshrink,
    "softshrink": lambda y: F.softshrink(y, 0.3),
    "gelu": F.gelu,
    "gelu tanh": lambda y: F.gelu(y, "tanh", bits=2),
    "gelu exact": lambda y: F.gelu(y, bits="exact"),
    "quick_gelu": lambda y: F.quick_gelu(y, **WIDE),
    "silu": lambda y: F.silu(y, True),
    "silu exact": lambda y: F.silu(y, bits="exact"),
    "mish": F.mish,
    "hardswish": F.hardswish,
    "sigmoid": lambda y: F.sigmoid(y, **WIDE),
    "logsigmoid": F.logsigmoid,
    "tanh": F.tanh,
    "tanhshrink": F.tanhshrink,
    "softsign": F.softsign,
    "softplus": lambda y: F.softplus(y, 2),
    "elu": lambda y: F.elu(y, 0.5),
    "celu": lambda y: F.celu(y, 0.5, True),
    "selu": F.selu,
    "stepwise": lambda y: F.stepwise(y, swish, sg.steps("silu", 2)),
    "prelu": lambda y: F.prelu(y, SLOPES),
    "dropout": lambda y: F.dropout(y, 0.3),
    "max_pool2d": lambda y: F.max_pool2d(y, 2),
    "max_pool2d overlapping": lambda y: F.max_pool2d(y, (3, 2), (2, 1), (1, 0), 1, True),
    "nn.Dropout": lambda y: sg.nn.Dropout(0.4)(y),
    "nn.MaxPool2d": lambda y: sg.nn.MaxPool2d(3, stride=2)(y),
    "nn.Stepwise": lambda y: sg.nn.Stepwise(swish, sg.steps("silu", 2))(y),
}


def functions(x: torch.Tensor) -> dict[str, torch.Tensor]:
    results = {}
    for name, call in FUNCTIONS.items():
        leaf = x.clone().requires_grad_()
        torch.manual_seed(11)
        y = call(leaf * 1)
        results[f"functional {name}"] = y.detach()
        (results[f"functional {name} gradient"],) = torch.autograd.grad((y * y).sum(), leaf)
    return results


def trained(
    made: dict[str, torch.nn.Module], given: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    words, keys = given["words"], given["keys"]
    padding, causal = given["padding"].bool(), given["causal"].bool()
    results = {}

    def attend():
        y, weights = made["attention"](words, words, words, padding, True, causal)
        results["attention weights"] = weights.detach()
        return y

    def hinted():
        torch.manual_seed(17)
        return made["attention causal"](words, words, words, None, False, causal, True, True)[0]

    forwards = {
        "linear": lambda: made["linear"](given["rows"]),
        "linear drawn": lambda: made["linear drawn"](given["rows"]),
        "conv": lambda: made["conv"](given["images"]),
        "attention": attend,
        "attention apart": lambda: made["attention apart"](words, keys, keys, None, False)[0],
        "attention causal": hinted,
    }
    for name, forward in forwards.items():
        y = forward()
        results[name] = y.detach()
        (y * y).sum().backward()
        for key, parameter in made[name].named_parameters():
            results[f"{name}.{key} gradient"] = parameter.grad
    names = sorted(sg.state_dict(made["attention"]))
    return results | {"attention state": letters("\n".join(names))}


def errors(x: torch.Tensor) -> dict[str, torch.Tensor]:
    calls = {
        "quantize type": lambda: sg.quantize(x.double(), "1-4-1", 1),
        "quantize scale": lambda: sg.quantize(x, "1-4-1", -1),
        "prune threshold": lambda: sg.prune(x, -1),
        "prune gradient": lambda: sg.prune(x.detach().requires_grad_(), 1),
        "pack nan": lambda: sg.pack(x / 0, "1-4-1", 1),
        "encode nan": lambda: sg.encode(x / 0, "uniform"),
        "encode type": lambda: sg.encode(x.long()),
        "encode bits": lambda: sg.encode(x, "uniform", 1),
        "measure type": lambda: sg.measure(x.long()),
        "fit zeros": lambda: sg.fit(x * 0, "normal"),
        "threshold": lambda: sg.threshold(sg.measure(x), 1.5),
        "steps bits": lambda: sg.steps("gelu", 9),
        "steps name": lambda: sg.steps("sine"),
        "dropout": lambda: F.dropout(x, 1.5),
        "hardtanh": lambda: F.hardtanh(x, 1, -1),
        "gelu type": lambda: F.gelu(x.long()),
        "meta": lambda: sg.encode(x.to("meta")),
    }
    texts = {}
    for name, call in calls.items():
        with pytest.raises(ValueError, match=r"^\[\w+\] expected ") as error:
            call()
        texts[f"error {name}"] = letters(str(error.value))
    return texts


@pytest.fixture(scope="module")
def of_both(tmp_path_factory) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    if not PROGRAM.is_file():
        pytest.skip("make build was not run here")
    folder = tmp_path_factory.mktemp("like_cpp")
    made = layers()
    tensors = given(made)
    sg.save(tensors, folder / "in.sg")
    subprocess.run([PROGRAM, folder / "in.sg", folder / "out.sg"], check=True)
    x = tensors["x"]
    ours = decisions(x) | functions(x) | trained(made, tensors) | errors(x)
    for kind, y in (("float32", x), ("bfloat16", x.bfloat16()), ("transposed", x.transpose(0, 3))):
        ours |= {f"{kind} {name}": value for name, value in applied(y).items()}
    theirs = sg.load(folder / "out.sg")
    names = bytes(theirs["attention state"].tolist()).decode().split()
    theirs["attention state"] = letters("\n".join(sorted(names)))
    return ours, theirs


def test_both_did_the_same_calls(of_both):
    ours, theirs = of_both
    assert ours.keys() == theirs.keys()
    assert len(ours) > 150


@pytest.mark.parametrize(
    "part",
    [
        *("measure", "decisions", "allocate", "fit", "cdf", "steps"),
        *("float32", "bfloat16", "transposed", "functional"),
        *("linear", "conv", "attention"),
    ],
)
def test_results_are_equal_to_the_bit(of_both, part):
    ours, theirs = of_both
    names = [name for name in ours if name.split(" ")[0].split(".")[0] == part]
    assert names
    for name in names:
        assert ours[name].dtype == theirs[name].dtype, name
        assert torch.equal(ours[name].contiguous(), theirs[name].contiguous()), name


def test_errors_have_the_same_words(of_both):
    ours, theirs = of_both
    names = [name for name in ours if name.startswith("error ")]
    texts = {
        name: [bytes(side[name].tolist()).decode() for side in (ours, theirs)] for name in names
    }
    assert {name: of_python for name, (of_python, _) in texts.items()} == {
        name: of_cpp for name, (_, of_cpp) in texts.items()
    }
