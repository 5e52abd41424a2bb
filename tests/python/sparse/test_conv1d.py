"""transformers' Conv1D, of which GPT-2 is made: gates behind it, and a sparse backward pass."""

import copy
import pickle

import pytest
import torch

import slimgrad as sg
from slimgrad.nn.layers import SparseState
from slimgrad.nn.sparse_classes import make_sparse

transformers = pytest.importorskip("transformers")
from transformers.pytorch_utils import Conv1D  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

VOCABULARY = 50
SPARSE = sg.Prune(weight=0.6, input=0.3, sparse_backward="always")
each_kind = pytest.mark.parametrize("gradients", ["fp6", SPARSE], ids=["gates", "sparse"])


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config)


def conv1ds(model):
    return [name for name, module in model.named_modules() if isinstance(module, Conv1D)]


def compressed(gradients, **options):
    model = gpt2()
    return model, sg.compress(model, gradients, **{"seed": 1, "min_elements": 1, **options})


def gradients_of(model):
    words = torch.randint(VOCABULARY, (4, 8), generator=torch.Generator().manual_seed(1))
    model.zero_grad()
    model(input_ids=words, labels=words).loss.backward()
    return {name: p.grad for name, p in model.named_parameters()}


@each_kind
def test_all_of_gpt2_is_converted_and_given_back(gradients):
    plain = gpt2()
    names = conv1ds(plain)
    assert len(names) == 8
    model, controller = compressed(gradients)
    assert set(names) <= set(controller.converted) and not set(names) & controller.left.keys()
    got = gradients_of(model)
    assert all(torch.isfinite(g).all() for g in got.values())
    assert all(row["calls"] == 1 for row in controller.report().values())
    want = gradients_of(plain)
    for name in names:
        weight = got[f"{name}.weight"]
        assert not torch.equal(weight, want[f"{name}.weight"])
        assert weight.shape == want[f"{name}.weight"].shape
        cosine = torch.cosine_similarity(weight.flatten(), want[f"{name}.weight"].flatten(), dim=0)
        assert cosine > 0.5, name
    controller.remove()
    assert {type(model.get_submodule(name)) for name in names} == {Conv1D}
    assert all(torch.equal(a, want[n]) for n, a in gradients_of(model).items())


def test_plain_gated_and_sparse_agree_where_nothing_is_pruned():
    want = gradients_of(gpt2())
    for gradients, options in [
        (sg.Prune(0.0), {}),
        (sg.Prune(0.5), {"warmup": 10}),
        (sg.Prune(weight=0, input=0), {}),
        (sg.Prune(weight=0, input=0, sparse_backward="always"), {}),
    ]:
        model, _ = compressed(gradients, **options)
        for name, gradient in gradients_of(model).items():
            torch.testing.assert_close(gradient, want[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", ["sparse", "dense"])
def test_products_of_a_turned_weight(way):
    """Results to the bit, gradients but for the order of sums, in the weight's own layout."""
    torch.manual_seed(0)
    plain = Conv1D(40, 24)
    turned = copy.deepcopy(plain)
    state = SparseState(seed=1)  # takes the gradient as it comes
    state.set_way(way)
    make_sparse(turned, state)
    x = torch.randn(3, 50, 24)
    gradient = torch.randn(3, 50, 40) * (torch.rand(3, 50, 40) > 0.8)
    results = []
    for module in (plain, turned):
        inputs = x.clone().requires_grad_()
        y = module(inputs)
        y.backward(gradient)
        results.append([y, inputs.grad, *(p.grad for p in module.parameters())])
    assert torch.equal(results[0][0], results[1][0])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
    assert turned.weight.grad.is_contiguous()
    assert {choice["way"] for choice in state.choices().values()} == {way}


@each_kind
def test_copies_pickles_and_resumed_runs_go_on_to_the_bit(gradients):
    model, controller = compressed(gradients)
    gradients_of(model)
    resumed, other = compressed(gradients, seed=2)
    other.load_state_dict(controller.state_dict())
    others = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), resumed]
    want = gradients_of(model)
    for one in others:
        assert all(torch.equal(g, want[name]) for name, g in gradients_of(one).items())


@each_kind
def test_compiled_without_a_break(gradients):
    model = torch.nn.Sequential(Conv1D(40, 24))
    sg.compress(model, gradients, seed=1, min_elements=1)
    other = copy.deepcopy(model)
    x = torch.randn(3, 50, 24)
    results = []
    for module in (model, torch.compile(other, fullgraph=True, backend="aot_eager")):
        module(x).square().sum().backward()
        results.append([p.grad for p in module.parameters()])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)


def test_a_subclass_has_gates_but_no_sparse_backward_pass():
    class Own(Conv1D):
        pass

    model = torch.nn.Sequential(Own(8, 8), Conv1D(8, 8))
    assert sg.compress(copy.deepcopy(model), "fp6").converted == ["0", "1"]
    controller = sg.compress(model, SPARSE)
    assert controller.converted == ["1"] and "not subclasses" in controller.left["0"]
