"""What each rank of the distributed tests does. A process costs seconds of imports: each runs
everything that its test module asks about, and writes what it saw to ``results``."""

import copy

import torch
import torch.distributed.checkpoint as dcp
from ranks import join_group, leave_group
from small_models import batch, build, calls, classes, compress, snapshot
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import slimgrad as sg

NAME = "bert"
ORDERS = ["before the group", "after the group", "after wrapping", "the wrapper"]
WHATS = ["prune", "sparse", "gates and activations"]
COMPILED = WHATS[1:]


def steps(model, forward, first=0, count=3, optimizer=None, shift=0):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(first, first + count):
        optimizer.zero_grad()
        forward(**batch(NAME, step + shift)).loss.backward()
        optimizer.step()


def whole(state):
    """Of sharded parameters, all of them."""
    return {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in state.items()}


def shard(model, each_layer=False):
    if each_layer:
        for module in list(model.modules()):
            if isinstance(module, torch.nn.Linear):
                fully_shard(module)
    for block in model.bert.encoder.layer:
        fully_shard(block)
    return fully_shard(model)


# ---- DistributedDataParallel ---------------------------------------------------------------------


def _own_gradients(model, wrapped):
    """What this rank alone makes of one batch, which is the same for all."""
    with wrapped.no_sync():
        wrapped(**batch(NAME, 50)).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def ddp(rank, world, port, results):
    torch.set_num_threads(1)
    early = {}
    for what in WHATS:
        for again in range(2):
            model = build(NAME)
            early[what, again] = model, compress(model, what)
    join_group(rank, world, port)
    found = {}
    for what in WHATS:
        for order in ORDERS:
            for again in range(2 if order == ORDERS[0] else 1):
                if order == "before the group":
                    model, controller = early[what, again]
                else:
                    model = build(NAME)
                if order == "after the group":
                    controller = compress(model, what)
                wrapped = DistributedDataParallel(model)
                if order == "after wrapping":
                    controller = compress(model, what)
                elif order == "the wrapper":
                    controller = compress(wrapped, what)
                steps(model, wrapped, shift=1000 * rank)  # data of its own
                weights = snapshot(model)
                model.zero_grad()
                own = _own_gradients(model, wrapped)
                found[what, order, again] = {
                    "weights": weights,
                    "own": own,
                    "calls": list(calls(controller).values()),
                    "buffers": [name for name, _ in model.named_buffers()],
                }
    found["compiled"] = {what: _compiled_ddp(what, rank) for what in COMPILED}
    found["allocated"] = _compiled_ddp(sg.Prune(0.8, allocation="min_cosine"), rank)
    torch.save(found, f"{results}/{rank}.pt")
    leave_group()


def _compiled_ddp(what, rank):
    """Its graphs are cut where buckets of gradients end: with such small ones, several times."""
    torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = 20_000
    torch._dynamo.reset()
    model = build(NAME)
    if isinstance(what, str):
        controller = compress(model, what)
    else:
        controller = sg.compress(model, what, seed=3, min_elements=0)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.02)
    steps(model, torch.compile(wrapped, backend="aot_eager"), shift=1000 * rank)
    return {
        "weights": snapshot(model),
        "calls": calls(controller),
        "wanted": [row["sparsity_wanted"] for row in controller.report().values()],
    }


# ---- FSDP2 ---------------------------------------------------------------------------------------


def _sharded(what, order, early=None):
    """The model and its controller; ``early`` has both from before there was a group."""
    each_layer = order.endswith("each layer")
    model = early[0] if early else build(NAME)
    if order.startswith("compress"):
        controller = early[1] if early else compress(model, what)
        shard(model, each_layer)
    else:
        shard(model, each_layer)
        controller = compress(model, what)
    return model, controller


def _names(cls):
    """Of a class and those that it is made of. FSDP's is called after what it was made from."""
    return [base.__name__.replace("FSDPGated", "FSDP") for base in cls.__mro__]


FSDP_ORDERS = [
    "compress, shard",
    "compress, shard each layer",
    "shard, compress",
    "shard each layer, compress each layer",
]


def fsdp(rank, world, port, results):
    torch.set_num_threads(1)
    early = {what: (m := build(NAME), compress(m, what)) for what in WHATS}
    join_group(rank, world, port)
    found = {}
    for what in WHATS:
        for order in [*FSDP_ORDERS, "before the group: compress, shard"]:
            try:
                if order.startswith("before"):
                    model, controller = _sharded(what, "compress, shard", early[what])
                else:
                    model, controller = _sharded(what, order)
                steps(model, model)
                row = {
                    "weights": whole(model.state_dict()),
                    "calls": calls(controller),
                    "left": controller.left,
                }
                controller.remove()
                steps(model, model, count=1)
                plain = shard(build(NAME), order.endswith("each layer"))
                row["classes"] = [_names(cls) for cls in classes(model).values()]
                row["plain classes"] = [_names(cls) for cls in classes(plain).values()]
            except Exception as error:  # told to the test, which knows the order
                row = {"error": repr(error)}
            found[what, order] = row
    found["ddp"] = _ddp_reference()
    torch.save(found, f"{results}/{rank}.pt")
    leave_group()


def _ddp_reference():
    reference = {}
    for what in WHATS:
        model = build(NAME)
        compress(model, what)
        steps(model, DistributedDataParallel(model))
        reference[what] = snapshot(model)
    return reference


# ---- distributed checkpoints ---------------------------------------------------------------------


def _checkpointed(model, optimizer, controller, rank):
    weights, moments = get_state_dict(model, optimizer)
    # Gradients differ by rank, and with them what gates have seen: each rank has its own entry.
    own = {f"slimgrad.{rank}": controller.state_dict()}
    return {"model": weights, "optimizer": moments, **own}


def checkpoints(rank, world, port, results):
    torch.set_num_threads(1)
    join_group(rank, world, port)
    found = {}
    settings = {
        "gates": ([sg.Prune(0.8), "fp6"], dict(refresh=3, warmup=1)),
        "sparse": (
            sg.Prune(weight=0.9, input=0.5, sparse_backward="always"),
            dict(refresh=3, schedule={0: 0.5, 6: 0.9}),
        ),
    }
    for how in ("ddp", "fsdp"):
        for what, (gradients, options) in settings.items():

            def make(seed, how=how, gradients=gradients, options=options):
                model = build(NAME, seed=seed)
                controller = sg.compress(model, gradients, seed=seed, min_elements=0, **options)
                wrapped = DistributedDataParallel(model) if how == "ddp" else shard(model)
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
                return model, controller, wrapped, optimizer

            model, controller, wrapped, optimizer = make(seed=0)
            steps(model, wrapped, 0, 2, optimizer, shift=1000 * rank)
            folder = f"{results}/{how}-{what}"
            dcp.save(_checkpointed(wrapped, optimizer, controller, rank), checkpoint_id=folder)
            steps(model, wrapped, 2, 3, optimizer, shift=1000 * rank)
            expected = whole(snapshot(model))

            model, controller, wrapped, optimizer = make(seed=7)
            state = _checkpointed(wrapped, optimizer, controller, rank)
            dcp.load(state, checkpoint_id=folder)
            set_state_dict(
                wrapped,
                optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
            controller.load_state_dict(copy.deepcopy(state[f"slimgrad.{rank}"]))
            steps(model, wrapped, 2, 3, optimizer, shift=1000 * rank)
            found[how, what] = {
                "expected": expected,
                "resumed": whole(snapshot(model)),
                "calls": calls(controller),
                "state": controller.state_dict(),
            }
    torch.save(found, f"{results}/{rank}.pt")
    leave_group()
