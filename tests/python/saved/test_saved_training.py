"""Training with packed tensors: it learns, and a seed is a run."""

import pytest
import torch
from saved_samples import Gpt, cnn, cnn_step, gpt_step, run

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")

RUNS = [(Gpt, gpt_step, 60), (cnn, cnn_step, 25)]


@pytest.mark.parametrize(("make", "step", "steps"), RUNS)
def test_learns_as_without(make, step, steps):
    plain = run(make, step, steps)[0]
    end = sum(plain[-5:]) / 5
    assert end < 0.8 * plain[0]
    for saved, share in ((8, 0.05), (4, 0.15)):
        losses = run(make, step, steps, saved=saved)[0]
        # The share of what was learnt that may be missing: runs of other seeds differ by as much.
        assert sum(losses[-5:]) / 5 < end + share * (plain[0] - end), saved


@pytest.mark.parametrize("saved", [8, 2])
@pytest.mark.parametrize(("make", "step", "steps"), RUNS)
def test_a_seed_is_a_run(make, step, steps, saved):
    first, model, _, _ = run(make, step, 5, saved=saved)
    second, other, _, _ = run(make, step, 5, saved=saved)
    assert first == second
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_exact_is_the_plain_run():
    assert run(cnn, cnn_step, 5, saved="exact")[0] == run(cnn, cnn_step, 5)[0]


def test_everything_at_once():
    gradients = sg.Prune(weight=0.9, sparse_backward=True)
    how = {"saved": 4, "activations": 3, "gradients": gradients}
    losses, _, _, controller = run(Gpt, gpt_step, 40, **how)
    assert losses[-1] < 0.9 * losses[0]
    assert controller.saved.tally.packed > 0
