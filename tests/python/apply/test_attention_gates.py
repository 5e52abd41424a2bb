"""compress() puts gates behind the projections of nn.MultiheadAttention."""

import copy
import pickle

import pytest
import torch
from attention_samples import (
    EMBED,
    LAYOUTS,
    MODULES,
    assert_unbiased,
    attention,
    in_a_model,
    inputs_of,
    run,
    ways_to_call,
)
from torch import nn

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")

PARTS = ["attn.q", "attn.k", "attn.v", "attn.out_proj"]
IDLE = {"gradients": "fp4", "warmup": 1_000_000, "min_elements": 1}  # measures only


def compressed(module, gradients="fp4", **options):
    model = in_a_model(module)
    return model, sg.compress(model, gradients, **{"seed": 1, "min_elements": 1, **options})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", MODULES.values(), ids=MODULES)
def test_results_are_torchs_to_the_bit_and_gradients_with_idle_gates_but_for_rounding(
    options, layout
):
    """A gate may lay a gradient out otherwise, and sums over it are then taken in another order."""
    plain = attention(options, layout)
    model, controller = compressed(plain, **IDLE)
    calls = 0
    for inputs, arguments in ways_to_call(plain, layout):
        want, got = (run(m, inputs, arguments) for m in (plain, model["attn"]))
        for a, b in zip(want[:2], got[:2], strict=True):
            assert (a is None and b is None) or (torch.equal(a, b) and a.stride() == b.stride())
        for a, b in zip(want[2:], got[2:], strict=True):
            torch.testing.assert_close(b, a, rtol=1e-5, atol=2e-6)
        calls += 1
    assert [row["calls"] for row in controller.report().values()] == [calls] * 4


def test_with_working_gates_results_are_torchs_and_gradients_are_not():
    plain = attention({"add_bias_kv": True})
    inputs = inputs_of(plain, "length first", "one")
    model, controller = compressed(plain)
    want, got = (run(m, inputs, {}) for m in (plain, model["attn"]))
    assert torch.equal(want[0], got[0]) and torch.equal(want[1], got[1])
    assert not torch.equal(want[2], got[2])
    assert controller.converted == PARTS and controller.left == {}
    assert list(controller.report()) == list(controller.gates) == PARTS
    elements = inputs[0].numel()
    for name, row in controller.report().items():
        assert row["elements"] == elements and row["compressed"], name
        assert name in controller.summary()


def test_each_projection_gets_the_gradient_that_its_gate_gives():
    """On a grid of powers of two times one scale there is one mantissa."""
    plain = attention({})
    model, controller = compressed(plain, sg.Quantize(format="1-5-0"))
    seen = {}

    def watch(gate, inputs):
        def keep(gradient):
            seen[gate] = gradient

        inputs[0].register_hook(keep)

    for gate in controller.gates.values():
        gate.register_forward_pre_hook(watch)
    run(model["attn"], inputs_of(plain, "length first", "one"), {})
    for name, gate in controller.gates.items():
        gradient = seen[gate]
        assert gradient.shape[-1] == EMBED
        mantissas, _ = torch.frexp(gradient[gradient != 0])
        assert len(mantissas.abs().unique()) == 1, name


@pytest.mark.parametrize("gradients", [sg.Prune(0.7), "fp4"], ids=["prune", "fp4"])
def test_unbiased_through_the_attention(gradients):
    plain = attention({}, "batch first")
    inputs = inputs_of(plain, "batch first", "one")
    model, _ = compressed(plain, gradients)
    assert_unbiased(model["attn"], plain, inputs)


def test_all_projections_draw_by_themselves():
    model, _ = compressed(attention({}), sg.Prune(0.5))
    gates = model["attn"].slimgrad_gate
    gradient = torch.randn(1000)
    draws = []
    for gate in gates.children():
        x = torch.zeros(1000, requires_grad=True)
        gate(x).backward(gradient)
        draws.append(x.grad)
    assert len({tuple(draw.tolist()) for draw in draws}) == 4


def test_layers_behind_an_attention_draw_as_they_did_without_its_gates():
    torch.manual_seed(0)
    layers = [nn.Linear(EMBED, EMBED), attention({}), nn.Linear(EMBED, EMBED)]
    plans = []
    for exclude in (None, "1"):
        model = nn.Sequential(*copy.deepcopy(layers))
        controller = sg.compress(model, sg.Prune(0.5), exclude=exclude, seed=3)
        plans.append([controller.gates[name].plan for name in ("0", "2")])
    assert all(torch.equal(a, b) for a, b in zip(*plans, strict=True))


@pytest.mark.parametrize(
    ("options", "converted", "reason"),
    [
        ({"exclude": "attn.out_proj"}, PARTS[:3], "excluded"),
        ({"exclude": ["attn.k", "attn.v"]}, [PARTS[0], PARTS[3]], "excluded"),
        ({"include": "attn.q"}, PARTS[:1], "not included"),
        ({"include": lambda _, module: isinstance(module, nn.Linear)}, PARTS[3:], "not included"),
        ({"include": "attn"}, PARTS, None),
    ],
    ids=["out_proj", "k and v", "q", "linear layers", "all"],
)
def test_projections_are_chosen_by_name(options, converted, reason):
    plain = attention({})
    model, controller = compressed(plain, **options)
    assert controller.converted == list(controller.report()) == converted
    assert controller.left == {name: reason for name in PARTS if name not in converted}
    run(model["attn"], inputs_of(plain, "length first", "two"), {})
    assert all(row["calls"] == 1 for row in controller.report().values())


def test_an_excluded_attention_stays_torchs():
    model = nn.ModuleDict({"attn": attention({}), "fc": nn.Linear(2, 2)})
    controller = sg.compress(model, "fp6", exclude="attn")
    assert controller.converted == ["fc"] and controller.left == dict.fromkeys(PARTS, "excluded")
    assert type(model["attn"]) is nn.MultiheadAttention


def test_subclasses_are_left_with_the_reason():
    class Own(nn.MultiheadAttention):
        pass

    model = nn.ModuleDict({"attn": Own(EMBED, 2), "fc": nn.Linear(2, 2)})
    controller = sg.compress(model, "fp6")
    assert controller.converted == ["fc"] and list(controller.left) == PARTS
    assert "subclass" in controller.left["attn.q"] and type(model["attn"]) is Own


def test_compressed_twice():
    plain = attention({})
    model, first = compressed(plain)
    model["fc"] = nn.Linear(2, 2)
    second = sg.compress(model, "fp6")
    assert second.converted == ["fc"] and second.left["attn.q"] == "compressed already"
    first.remove()
    assert type(model["attn"]) is nn.MultiheadAttention


def test_targets_know_the_projections():
    plain = attention({})
    for target in ("attn", "attn.q", "attn.out_proj"):
        prune = sg.Prune(0.5, allocation="targets", targets={target: 0.9})
        compressed(plain, prune)
    with pytest.raises(ValueError, match=r"targets, got 'attn.z'.*attn\.q"):
        compressed(plain, sg.Prune(0.5, allocation="targets", targets={"attn.z": 0.9}))


def test_remove():
    plain = attention({})
    model, controller = compressed(plain)
    inputs = inputs_of(plain, "length first", "one")
    run(model["attn"], inputs, {})
    assert controller.remove() == []
    assert type(model["attn"]) is nn.MultiheadAttention
    assert not any("slimgrad" in name for name, _ in model.named_modules())
    for a, b in zip(run(plain, inputs, {}), run(model["attn"], inputs, {}), strict=True):
        assert torch.equal(a, b)


def test_copies_and_pickles_go_on_by_themselves():
    plain = attention({})
    model, _ = compressed(plain, sg.Prune(0.7))
    inputs = inputs_of(plain, "length first", "one")
    run(model["attn"], inputs, {})
    others = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    want = run(model["attn"], inputs, {})
    for other in others:
        got = run(other["attn"], inputs, {})
        assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


def test_a_resumed_run_goes_on_to_the_bit():
    plain = attention({})
    inputs = inputs_of(plain, "length first", "one")
    model, controller = compressed(plain, sg.Prune(0.7))
    run(model["attn"], inputs, {})
    state = controller.state_dict()
    assert {f"{name}.{key}" for name in PARTS for key in ("plan", "stats")} < state.keys()
    want = run(model["attn"], inputs, {})
    model, controller = compressed(plain, sg.Prune(0.7), seed=2)
    controller.load_state_dict(state)
    got = run(model["attn"], inputs, {})
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
    assert list(model.state_dict()) == list(in_a_model(plain).state_dict())


def test_frozen_attention_and_no_gradients():
    plain = attention({}, "batch first").eval()
    model, controller = compressed(plain)
    module = model["attn"]
    x = torch.randn(2, 5, EMBED)
    with torch.no_grad():
        assert torch.equal(plain(x, x, x)[0], module(x, x, x)[0])
    plain.requires_grad_(False)
    module.requires_grad_(False)
    assert torch.equal(plain(x, x, x)[0], module(x, x, x)[0])  # the fast path
    x.requires_grad_()
    module(x, x, x)[0].sum().backward()
    assert [row["calls"] for row in controller.report().values()] == [1] * 4


def test_exported_models_are_plain_and_transforms_are_refused():
    model, _ = compressed(attention({}, "batch first"))
    x = torch.randn(2, 5, EMBED)
    with pytest.warns(UserWarning, match="exported"):
        graph = str(torch.export.export(model["attn"], (x, x, x)).graph)
    assert "slimgrad" not in graph
    model.requires_grad_(False)
    with pytest.raises(RuntimeError, match=r"torch\.func"):
        torch.func.grad(lambda x: model["attn"](x, x, x)[0].sum())(x)


def test_a_forward_of_the_objects_own_is_left():
    model = nn.ModuleDict({"attn": attention({}), "fc": nn.Linear(2, 2)})
    model["attn"].forward = model["attn"].forward
    controller = sg.compress(model, "fp6")
    assert controller.converted == ["fc"] and "accelerate" in controller.left["attn.q"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"is_causal": True}, "attn_mask with is_causal"),
        ({"attn_mask": torch.zeros(5, 6)}, r"attn_mask of shape \(5, 5\) or \(8, 5, 5\), got"),
        ({"key_padding_mask": torch.zeros(5, 2)}, r"key_padding_mask of shape \(2, 5\), got"),
    ],
)
def test_misuse(arguments, message):
    model, _ = compressed(attention({}, "batch first"))
    x = torch.randn(2, 5, EMBED)
    with pytest.raises((RuntimeError, ValueError), match=message):
        model["attn"](x, x, x, **arguments)


def test_keys_of_another_batch():
    model, _ = compressed(attention({}))
    with pytest.raises(ValueError, match="key and value of one shape and a batch of 2"):
        model["attn"](torch.randn(5, 2, EMBED), *[torch.randn(5, 3, EMBED)] * 2)


def test_parametrized_weights():
    plain = attention({})
    model = in_a_model(plain)
    torch.nn.utils.parametrizations.weight_norm(model["attn"], "in_proj_weight")
    controller = sg.compress(model, sg.Prune(0.5), min_elements=1, seed=1)
    run(model["attn"], inputs_of(plain, "length first", "two"), {})
    assert [row["calls"] for row in controller.report().values()] == [1] * 4
    controller.remove()
    torch.nn.utils.parametrize.remove_parametrizations(model["attn"], "in_proj_weight")
    assert type(model["attn"]) is nn.MultiheadAttention
