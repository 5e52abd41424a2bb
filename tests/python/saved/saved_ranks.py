"""One rank of the distributed tests of packed tensors."""

import torch
from ranks import join_group, leave_group
from saved_samples import Gpt, error, gradients, texts
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import slimgrad as sg


def _step(model, _):
    return model(texts(0))  # the same on every rank, so that only the draws can differ


def _whole(tensors):
    return [t.full_tensor() if isinstance(t, DTensor) else t for t in tensors]


def _sharded(model):
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def train(rank, world, port, results, kind):
    torch.set_num_threads(1)
    join_group(rank, world, port)
    torch.manual_seed(0)
    plain = gradients(Gpt(), _step)
    torch.manual_seed(0)
    model = Gpt()
    if kind == "fsdp, converted after":
        _sharded(model)
    controller = sg.compress(model, saved=8, seed=5)
    if kind == "fsdp":
        _sharded(model)
    wrapped = model
    if kind == "ddp":
        wrapped = DistributedDataParallel(model)
    elif kind == "ddp, compiled":  # in several graphs, of which the first has the state as an input
        torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = 1 << 14
        wrapped = torch.compile(DistributedDataParallel(model, bucket_cap_mb=0.1))
    own = []
    if kind == "ddp":  # without the wrapper nothing is averaged
        own = gradients(model, _step)
    found = _whole(gradients(wrapped, _step))
    losses = []
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for number in range(5):
        optimizer.zero_grad()
        loss = wrapped(texts(number))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    tally = controller.saved.tally
    torch.save(
        {
            "error": error(found, plain),
            "gradients": found,
            "own": own,
            "losses": losses,
            "parameters": [p.detach() for p in _whole(model.parameters())],
            "packed": tally.packed,
            "share": tally.bytes / tally.plain_bytes,
            "draws": controller.state_dict()["slimgrad_saved.draws"],
            "removed": controller.remove(),
        },
        f"{results}/{rank}.pt",
    )
    leave_group()
