"""torch's transformers with compressed attention: training, evaluation, compiled graphs."""

import copy

import pytest
import torch
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH = 16


def encoder(layers=2, **options):
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=True, dropout=0.1, **options)
    return nn.TransformerEncoder(layer, layers)


def encoder_inputs():
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[0, 3:] = True
    return (torch.randn(3, 5, WIDTH),), {"src_key_padding_mask": padding}


def decoder_layer():
    return nn.TransformerDecoderLayer(WIDTH, 4, 32, dropout=0.1)


def decoder_inputs():
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    inputs = torch.randn(5, 3, WIDTH), torch.randn(7, 3, WIDTH)
    return inputs, {"tgt_mask": causal, "tgt_is_causal": True}


def whole():
    return nn.Transformer(WIDTH, 4, 1, 1, 32, dropout=0.1)


def whole_inputs():
    return (torch.randn(5, 3, WIDTH), torch.randn(7, 3, WIDTH)), {}


MODELS = {
    "encoder": (encoder, encoder_inputs),
    "decoder layer": (decoder_layer, decoder_inputs),
    "transformer": (whole, whole_inputs),
}
each_model = pytest.mark.parametrize(("make", "inputs"), MODELS.values(), ids=MODELS)
PRUNED = [sg.Prune(0.5), sg.Prune(weight=0.5, input=0.5, sparse_backward="always")]
each_pruning = pytest.mark.parametrize("prune", PRUNED, ids=["gates", "sparse"])


def pair(make, gradients, **options):
    torch.manual_seed(0)
    plain = make()
    model = copy.deepcopy(plain)
    controller = sg.compress(model, gradients, **{"seed": 1, "min_elements": 1, **options})
    return plain, model, controller


def step(model, inputs):
    arguments, named = inputs
    model.zero_grad()
    torch.manual_seed(1)
    y = model(*arguments, **named)
    y.square().sum().backward()
    return [y, *(p.grad for p in model.parameters())]


@each_model
def test_with_idle_gates_training_is_torchs_to_the_bit(make, inputs):
    plain, model, controller = pair(make, "fp4", warmup=1000)
    sample = inputs()
    for a, b in zip(step(plain, sample), step(model, sample), strict=True):
        assert torch.equal(a, b)
    attentions = [name for name, m in plain.named_modules() if isinstance(m, nn.MultiheadAttention)]
    parts = {f"{name}.{which}" for name in attentions for which in ("q", "k", "v", "out_proj")}
    assert parts and parts < set(controller.converted) and controller.left == {}
    assert list(controller.report()) == controller.converted
    assert all(row["calls"] == 1 for row in controller.report().values())


@each_pruning
@each_model
def test_evaluation_is_torchs(make, inputs, prune):
    """With gates in the way or not: without gradients the fast path is taken."""
    plain, model, _ = pair(make, prune)
    plain.eval()
    model.eval()
    (arguments, named) = inputs()
    with torch.no_grad():
        assert torch.equal(plain(*arguments, **named), model(*arguments, **named))
    want, got = plain(*arguments, **named), model(*arguments, **named)
    if prune.is_sparse:
        assert torch.allclose(want, got, atol=1e-5)
    else:
        assert torch.equal(want, got)


@each_pruning
@each_model
def test_training_goes_on(make, inputs, prune):
    _, model, controller = pair(make, prune)
    sample = inputs()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    before = step(model, sample)[0].square().sum()
    for _ in range(10):
        step(model, sample)
        optimizer.step()
    after = step(model, sample)
    assert after[0].square().sum() < before
    assert all(torch.isfinite(x).all() for x in after)
    assert all(0.2 < row["sparsity"] < 0.8 for row in controller.report().values() if row["calls"])


@each_pruning
@pytest.mark.parametrize("name", ["encoder", "decoder layer"])
def test_compiled_without_a_break(name, prune):
    """Twice the same step, compiled or not: the same gradients but for rounding."""
    make, inputs = MODELS[name]
    _, model, controller = pair(make, prune)
    other = copy.deepcopy(model)
    model.eval()  # dropout draws other masks in a graph
    other.eval()
    sample = inputs()
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        want, got = step(model, sample), step(compiled, sample)
        for a, b in zip(want, got, strict=True):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)
    assert {row["calls"] for row in controller.report().values()} <= {0, 2}


@pytest.mark.parametrize("of_x", [[], [0], [1], [0, 1]])
@pytest.mark.parametrize("of_padding", [[], [0], [1], [0, 1]])
def test_compiled_with_sizes_that_vary(of_x, of_padding):
    """Sizes that dynamo has seen change are symbols from then on, in one input or in both."""
    torch._dynamo.reset()
    _, model, _ = pair(lambda: encoder(1), sg.Prune(0.5))
    other = copy.deepcopy(model)
    model.eval()
    other.eval()
    (x,), named = sample = encoder_inputs()
    for dim in of_x:
        torch._dynamo.maybe_mark_dynamic(x, dim)
    for dim in of_padding:
        torch._dynamo.maybe_mark_dynamic(named["src_key_padding_mask"], dim)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    for a, b in zip(step(model, sample), step(compiled, sample), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("which", "dim"), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)])
def test_compiled_with_sizes_of_one_input_that_vary(which, dim, packed):
    torch._dynamo.reset()
    torch.manual_seed(0)
    sizes = {} if packed else {"kdim": WIDTH, "vdim": WIDTH + 8}
    model = nn.ModuleDict({"attn": nn.MultiheadAttention(WIDTH, 4, **sizes)})
    inputs = [torch.randn(n, 3, WIDTH) for n in (5, 7, 7)]
    if not packed:
        inputs[2] = torch.randn(7, 3, WIDTH + 8)
    sg.compress(model, sg.Prune(0.5), seed=1, min_elements=1)
    torch._dynamo.maybe_mark_dynamic(inputs[which], dim)
    compiled = torch.compile(model["attn"], fullgraph=True, backend="aot_eager")
    y, weights = compiled(*inputs)
    want = model["attn"](*inputs)
    assert torch.allclose(y, want[0], atol=1e-5) and torch.allclose(weights, want[1], atol=1e-5)
    y.square().sum().backward()


def test_compiled_by_inductor():
    torch.manual_seed(0)
    model = nn.ModuleDict({"attn": nn.MultiheadAttention(WIDTH, 4)})
    sg.compress(model, sg.Prune(0.5), seed=1, min_elements=1)
    other = copy.deepcopy(model)
    x = torch.randn(5, 3, WIDTH)
    gradients = []
    for module in (model["attn"], torch.compile(other["attn"], fullgraph=True)):
        y, _ = module(x, x, x, need_weights=False)
        y.square().sum().backward()
        gradients.append([y, *(p.grad for p in module.parameters())])
    for a, b in zip(*gradients, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4)


def test_allocation_over_projections():
    _, model, controller = pair(encoder, sg.Prune(0.6, allocation="min_cosine"))
    sample = encoder_inputs()
    for _ in range(4):
        step(model, sample)
    rows = controller.report()
    wanted = [row["sparsity_wanted"] for row in rows.values()]
    elements = [row["elements"] for row in rows.values()]
    mean = sum(w * n for w, n in zip(wanted, elements, strict=True)) / sum(elements)
    assert len(set(wanted)) > 3 and mean == pytest.approx(0.6, abs=0.05)


@each_pruning
def test_mixed_precision(prune):
    _, model, controller = pair(encoder, prune)
    (x,), named = encoder_inputs()
    x.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        model(x, **named).float().square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    assert all(row["calls"] for row in controller.report().values())


def test_checkpointing_recomputes_through_the_gates():
    from torch.utils.checkpoint import checkpoint

    _, model, controller = pair(encoder, sg.Prune(0.5))
    x = torch.randn(3, 5, WIDTH, requires_grad=True)
    for reentrant in (False, True):
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    assert {row["calls"] for row in controller.report().values()} == {2}
