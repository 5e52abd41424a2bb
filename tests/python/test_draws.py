"""No two places draw the same numbers: keys are enumerated, and errors average out."""

import itertools

import pytest
import torch
from ranks import join_group, leave_group, run_ranks
from torch import nn

import slimgrad as sg
from slimgrad._library import classes, ops
from slimgrad.distributed.codec import Codec
from slimgrad.distributed.collectives import reduce_scatter
from slimgrad.saved.packer import Packer
from slimgrad.saved.settings import Saved

RANKS, STEPS = 4, 50
SPREAD, GATHER = 0, 1  # the phases of an exchange
SHAPES = {"batch": (4, 6, 16), "d_model": 16, "nhead": 2, "dim_feedforward": 32}


def test_derived_seeds_are_those_of_the_header():
    """tests/base/seed_test.cc has the same numbers."""
    assert sg.derive_seed(7, "encoder.0", 3, 11) % (1 << 64) == 0x868DDBDF86B8982A
    assert sg.derive_seed(0, -1) % (1 << 64) == 0x5DC20AA7B2A27137
    assert sg.derive_seed(7, "a", 3) == sg.derive_seed(sg.derive_seed(7, "a"), 3)
    assert sg.derive_seed(7) == 7


def _transformer(gradients):
    model = nn.Transformer(
        SHAPES["d_model"], SHAPES["nhead"], 2, 2, SHAPES["dim_feedforward"], batch_first=True
    )
    return sg.compress(model, gradients, saved=4)


def _gate_seeds(controller):
    for layer in controller.layers.values():
        for gate in layer.gates().values():
            fields = gate.fields()
            yield int(fields["seed_low"]) | int(fields["seed_high"]) << 32


def test_no_two_keys_are_equal():
    """A transformer with gates, one with a sparse backward pass, both packing what they save, in
    data parallelism and as 2 x 2 in HSDP, 4 ranks, 50 steps."""
    torch.manual_seed(1)
    keys = []
    for gradients in (sg.Prune(0.5), sg.Prune(weight=0.5, input=0.5)):
        controller = _transformer(gradients)
        seeds = list(_gate_seeds(controller))
        assert len(seeds) == (32 if not controller.prune.is_sparse else 64)
        for seed, step, rank in itertools.product(seeds, range(STEPS), range(RANKS)):
            keys.append(sg.derive_seed(seed, step, rank))
        seed = controller.saved.packer.tensors_by_name()["draws"][0].item()
        for rank, number in itertools.product(range(RANKS), range(40 * STEPS)):
            keys.append(sg.derive_seed(sg.derive_seed(seed, rank), number))
    names = [name for name, _ in controller.model.named_parameters()]
    for model, rank, step in itertools.product(range(2), range(RANKS), range(STEPS)):
        parameters = [sg.derive_seed(model, name) for name in names]  # as Plan has them
        of_ddp = (0, "all_reduce", "0", "step", step, rank)
        of_fsdp = (0, "reduce_scatter", "1", "step", step, rank)
        called = (0, "all_reduce", "0", "call", step, rank)
        seed = classes.Exchange.seed
        places = [seed(*of_ddp, SPREAD, peer) for peer in range(RANKS) if peer != rank]
        places += [seed(*of_ddp, GATHER, -1), seed(*called, GATHER, -1)]
        places += [seed(*of_fsdp, SPREAD, 1 - rank % 2)]
        pieces = [sg.derive_seed(key, first) for key in parameters[::8] for first in (0, 1024)]
        keys += [sg.derive_seed(*pair) for pair in itertools.product(places, pieces) if model == 0]
        keys += [sg.derive_seed(places[0], piece) for piece in pieces if model == 1]
    assert len(keys) > 50_000
    assert len(set(keys)) == len(keys)


# ---- errors average out -------------------------------------------------------------------------


def assert_independent(errors):
    """errors: a row for each place that draws. The variance of their mean, times their number, over
    that of one is 1 if they are independent, up to their number if all draw alike. The standard
    error is that of a mean over columns, which are (nearly) independent."""
    errors = torch.stack(errors).double()
    means = errors.mean(0).square() * len(errors)
    one = float(errors.square().mean())
    ratio, error = float(means.mean()) / one, float(means.std()) / one / len(means) ** 0.5
    assert error < 0.05
    assert abs(ratio - 1) < 5 * error, f"{ratio:.3f}, with a standard error of {error:.3f}"


def _values(count=1 << 13):
    return torch.randn(count, generator=torch.Generator().manual_seed(5))


def test_the_measure_of_independence_sees_a_coincidence():
    """One pair of equal rows in 16: the ratio is 1 + 2 / 16."""
    rows = list(torch.randn(16, 1 << 14, generator=torch.Generator().manual_seed(6)))
    assert_independent(rows)
    with pytest.raises(AssertionError):
        assert_independent([*rows[:15], rows[3]])


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("gradients", ["fp3", sg.Prune(0.6), sg.Prune(weight=0.6, input=0.6)])
def test_errors_of_gates_are_independent(ranks, gradients):
    """All gates of a decoder layer, whose attentions have projections by themselves."""
    torch.manual_seed(2)
    if gradients == "fp3":
        gradients = sg.Quantize(format="1-2-0")
    x, errors = _values(), []
    controller = sg.compress(nn.TransformerDecoderLayer(16, 2, 32), gradients)
    for layer in controller.layers.values():
        for gate in layer.gates().values():
            for rank in range(ranks):
                plan, stats = gate.plan.clone(), gate.stats.clone()  # each rank has its own
                for _ in range(8):
                    errors.append(ops.compress_gradient(x.clone(), plan, stats, rank) - x)
    assert_independent(errors)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_errors_of_saved_tensors_are_independent(ranks):
    """Two tensors in each of 8 steps: (rank, tensor) is not a sum."""
    x, errors = _values(), []
    for rank in range(ranks):
        packer = Packer(Saved(4), 3, rank, "saved_tensors")
        for _ in range(8 * 2):
            saved = packer.pack(x.clone().requires_grad_() * 1)
            errors.append(saved.unpack() - x)
    assert_independent(errors)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("codec", ["uniform3", "fp4", "pruned"])
def test_errors_of_codecs_are_independent(ranks, codec):
    """What ranks code for two readers in the first phase, and all in the second."""
    x, errors, held = _values(), [], Codec.parse(codec)._held()
    for rank, step in itertools.product(range(ranks), range(8)):
        for stage, reader in ((SPREAD, 8), (SPREAD, 9), (GATHER, -1)):
            piece = x.clone()
            out = torch.empty(held.frame_bound([piece]), dtype=torch.uint8)
            seed = classes.Exchange.seed(0, "all_reduce", "0", "step", step, rank, stage, reader)
            held.encode_frame([piece], [sg.derive_seed(0, "weight")], seed, True, out)
            errors.append(piece - x)
    assert_independent(errors)


def _replicas(rank, world, port, folder):
    """Two groups of two, as HSDP's shards, with one gradient on all ranks; two models on one group
    are two calls here, with keys of their own."""
    torch.set_num_threads(1)
    join_group(rank, world, port)
    groups = [torch.distributed.new_group([0, 1]), torch.distributed.new_group([2, 3])]
    group, x, errors = groups[rank // 2], _values(), []
    for step, key in itertools.product(range(8), (0, 1)):
        out = torch.empty_like(x)
        parts = [x.clone(), x.clone()]
        reduce_scatter(out, parts, "uniform3", group, step=step, keys=[key])
        errors.append(out - 2 * x)
    torch.save(errors, f"{folder}/{rank}.pt")
    leave_group()


def test_errors_of_replicas_are_independent(tmp_path):
    run_ranks(_replicas, (str(tmp_path),), world=4)
    assert_independent([e for rank in range(4) for e in torch.load(tmp_path / f"{rank}.pt")])
