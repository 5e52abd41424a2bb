"""What of torch takes a model apart or runs it in its own way, over a compressed model."""

import warnings

import pytest
import torch
from small_models import SPARSE, calls, classes, equal_tensors, snapshot
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import remove_parametrizations

import slimgrad as sg

GATES = {"prune": {"gradients": sg.Prune(0.8)}, "sparse": {"gradients": SPARSE}}
ALL = GATES | {"activations": {"activations": 3}}

X = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))


def plain_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.Linear(64, 8))


def net(what):
    model = plain_net()
    return model, sg.compress(model, seed=1, min_elements=0, **ALL[what])


def gradients(model, forward=None):
    model.zero_grad()
    (forward or model)(X).square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


# ---- torch.func ----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ALL)
def test_functional_call_compresses_as_the_model_does(what):
    model, controller = net(what)
    parameters = {k: v.detach().clone().requires_grad_() for k, v in model.named_parameters()}
    torch.func.functional_call(model, parameters, (X,)).square().mean().backward()
    other, same = net(what)
    assert equal_tensors({k: p.grad for k, p in parameters.items()}, gradients(other))
    assert calls(controller) == calls(same)


@pytest.mark.parametrize("what", ALL)
@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp", "jacrev"])
def test_transforms_that_differentiate_are_refused(what, transform):
    model, controller = net(what)
    parameters = {k: v.detach() for k, v in model.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).square().mean()

    func = torch.func
    run = {
        "grad": lambda: func.grad(loss)(parameters, X),
        "vmap": lambda: func.vmap(func.grad(loss), (None, 0))(parameters, X),
        "jvp": lambda: func.jvp(model, (X,), (torch.ones_like(X),)),
        "jacrev": lambda: func.jacrev(model)(X[0]),
    }[transform]
    with pytest.raises(RuntimeError, match=r"torch.func|functorch"):
        run()
    controller.remove()
    run()


@pytest.mark.parametrize("what", ALL)
def test_vmap_without_gradients(what):
    model, _ = net(what)
    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(model)(X), plain_net()(X))


@pytest.mark.parametrize("what", ALL)
def test_a_second_derivative_is_refused(what):
    model, _ = net(what)
    weight = model[0].weight
    with pytest.raises(RuntimeError, match="expected"):
        loss = model(X).square().mean()
        (first,) = torch.autograd.grad(loss, weight, create_graph=True)
        first.square().sum().backward()


# ---- graphs for use elsewhere --------------------------------------------------------------------


@pytest.mark.parametrize("what", ALL)
def test_a_traced_model_is_the_plain_one_and_says_so(what):
    model, controller = net(what)
    with pytest.warns(UserWarning, match="traced or exported model is the plain one"):
        traced = torch.jit.trace(model, (X,))
    assert "slimgrad::" not in str(traced.inlined_graph)
    assert list(traced.state_dict()) == list(plain_net().state_dict())
    assert torch.equal(traced(X), plain_net()(X))
    assert equal_tensors(gradients(traced), gradients(plain_net()))
    assert set(calls(controller).values()) <= {0}


@pytest.mark.parametrize("what", ALL)
def test_an_exported_model_is_the_plain_one_and_says_so(what):
    model, _ = net(what)
    with pytest.warns(UserWarning, match="traced or exported model is the plain one"):
        exported = torch.export.export(model, (X,))
    assert not [node for node in exported.graph.nodes if "slimgrad" in str(node.target)]
    assert list(exported.state_dict) == list(plain_net().state_dict())
    assert torch.equal(exported.module()(X), plain_net()(X))


SCRIPTING_ERRORS = (RuntimeError, ValueError, torch.jit.frontend.NotSupportedError)


@pytest.mark.parametrize("what", ALL)
def test_scripting_fails_aloud(what):
    model, _ = net(what)
    with warnings.catch_warnings(), pytest.raises(SCRIPTING_ERRORS):
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(model)


# ---- replicas ------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", GATES)
def test_replicas_in_threads_are_refused(what):
    """nn.DataParallel makes one of every module for each device; without any it calls the model."""
    model, controller = net(what)
    with pytest.raises(RuntimeError, match="expected one process for each device"):
        for module in model.modules():
            module._replicate_for_data_parallel()
    assert gradients(model, nn.DataParallel(model))
    assert 1 in calls(controller).values()


# ---- weights that are computed -------------------------------------------------------------------

NORMS = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
}


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("what", GATES)
def test_parametrized_layers(what, norm, order):
    def parametrized(model):
        torch.manual_seed(2)  # spectral_norm's vectors
        NORMS[norm](model[2])
        return model

    plain, model = parametrized(plain_net()), plain_net()
    if order == "before":
        parametrized(model)
    controller = sg.compress(model, seed=1, min_elements=0, **GATES[what])
    if order == "after":
        parametrized(model)
    assert list(model.state_dict()) == list(plain.state_dict())
    before = snapshot(plain)
    got, exact = gradients(model), gradients(plain)
    assert not torch.equal(got["2.bias"], exact["2.bias"]) or what == "sparse"
    key = "2" if what == "prune" else "2.weight"
    assert controller.left == {} and controller.report()[key]["calls"] == 1
    controller.remove()
    model.load_state_dict(before)
    plain.load_state_dict(before)
    assert equal_tensors(gradients(model), gradients(plain))
    remove_parametrizations(model[2], "weight")
    assert classes(model) == classes(plain_net())


# ---- mixed precision -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("what", ALL)
def test_autocast_and_a_gradient_scaler(what, dtype):
    def run():
        model, controller = net(what)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype):
                loss = model(X).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert loss.isfinite() and scaler.get_scale() == 1024
        return snapshot(model), calls(controller)

    state, counts = run()
    assert equal_tensors(state, run()[0])
    assert not equal_tensors(state, snapshot(plain_net())) and set(counts.values()) <= {0, 3}
    for gate in net(what)[1].gates.values():
        assert gate.plan.dtype == torch.float64


@pytest.mark.parametrize("what", ALL)
def test_a_step_that_overflowed_is_skipped_and_the_next_is_sound(what):
    model, controller = net(what)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = snapshot(model)
    scaler.scale(model(1e10 * X).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update(new_scale=1.0)
    assert equal_tensors(before, snapshot(model))  # skipped
    optimizer.zero_grad()
    scaler.scale(model(X).square().mean()).backward()
    scaler.step(optimizer)
    assert not equal_tensors(before, snapshot(model))
    assert all(value.isfinite().all() for value in model.state_dict().values())
    assert set(calls(controller).values()) <= {0, 2}
