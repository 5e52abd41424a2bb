"""Every module with weights that compress() does not know is named, with the reason."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from slimgrad.compression.leftovers import left_layers
from slimgrad.compression.selection import LAYERS


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))


class Block(nn.Module):
    """Weights beside layers. A token and a scale are rows of numbers, not weights."""

    def __init__(self):
        super().__init__()
        self.mix, self.other = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))
        self.scale, self.token = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(1, 1, 4))
        self.fc = nn.Linear(4, 4)


class OwnLSTM(nn.LSTM):
    pass


def reasons(module):
    """By name below "it", with all layers that compress() knows taken as known."""
    model = nn.ModuleDict({"it": module})
    known = [name for name, m in model.named_modules() if isinstance(m, LAYERS)]
    return left_layers(model, known)


@pytest.mark.parametrize(
    ("make", "name", "reason"),
    [
        (lambda: nn.LSTM(3, 4), "nn.LSTM", "inside one call of torch"),
        (lambda: nn.GRU(3, 4, 2), "nn.GRU", "inside one call of torch"),
        (lambda: nn.RNN(3, 4), "nn.RNN", "inside one call of torch"),
        (lambda: OwnLSTM(3, 4), "OwnLSTM", "inside one call of torch"),
        (lambda: nn.LSTMCell(3, 4), "nn.LSTMCell", "made of nn.Linear layers"),
        (lambda: nn.Bilinear(2, 2, 2), "nn.Bilinear", "two inputs"),
        (lambda: nn.Embedding(3, 3), "nn.Embedding", "no product"),
        (lambda: nn.EmbeddingBag(3, 3), "nn.EmbeddingBag", "no product"),
        (Own, "Own", "not a class that compress() knows; nn.Linear"),
        (lambda: parametrizations.spectral_norm(Own()), "parametrized Own", "not a class that"),
        (Block, "Block holds mix, other itself", "if it multiplies"),
        (lambda: nn.ParameterList([torch.ones(2, 2)]), "nn.ParameterList", "a forward uses itself"),
    ],
)
def test_each_is_named_once_with_its_reason(make, name, reason):
    (found,) = reasons(make()).items()
    assert found[0] == "it" and found[1].startswith(name) and reason in found[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(2, 2),
        lambda: parametrizations.orthogonal(nn.Linear(3, 3)),
        lambda: parametrizations.weight_norm(nn.Conv2d(3, 3, 3)),
        lambda: nn.LayerNorm((3, 3)),
        lambda: nn.RMSNorm((3, 3)),
        lambda: nn.BatchNorm2d(3),
        lambda: nn.GroupNorm(1, 3),
        lambda: nn.LazyBatchNorm2d(),
        lambda: nn.PReLU(4),
        lambda: nn.MultiheadAttention(4, 2),
        lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=3),
        lambda: nn.ParameterDict(),
        lambda: nn.Sequential(nn.ReLU(), nn.Dropout(0.1)),
    ],
)
def test_what_is_known_or_has_no_weights_is_not_listed(make):
    assert reasons(make()) == {}


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_learn_or_change():
    scripted = reasons(torch.jit.script(nn.Linear(3, 3)))
    assert "Linear: TorchScript" in scripted["it"]
    engines = [e for e in torch.backends.quantized.supported_engines if e != "none"]
    if not engines:
        pytest.skip("no engine for quantized layers")
    torch.backends.quantized.engine = engines[-1]
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    quantized = reasons(torch.ao.quantization.quantize_dynamic(model, {nn.Linear}))
    assert quantized == {"it.0": "quantized Linear: its weight does not learn"}


def test_the_model_itself_and_what_is_known_by_name():
    assert list(left_layers(nn.LSTM(3, 4), known=[])) == [""]
    assert left_layers(nn.LSTM(3, 4), known=[""]) == {}
    model = nn.ModuleDict({"a": Own(), "b": Own()})
    assert list(left_layers(model, known={"a"})) == ["b"]


def test_gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=8,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    left = left_layers(model, known=["lm_head"])
    kinds = {name: why.split(":")[0] for name, why in left.items()}
    block = "transformer.h.0"
    layers = [f"{block}.{name}" for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc")]
    assert kinds == {
        **dict.fromkeys(["transformer.wte", "transformer.wpe"], "nn.Embedding"),
        **dict.fromkeys([*layers, f"{block}.mlp.c_proj"], "Conv1D"),
    }
