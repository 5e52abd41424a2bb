"""What looks at all layers, between two steps: when, and when not."""

import pytest
import torch
from controller_samples import batch, make, train
from torch import nn
from torch.utils.checkpoint import checkpoint

import slimgrad as sg

pytestmark = pytest.mark.usefixtures("one_thread")


class StepsWithoutForward(nn.Module):
    """As a LightningModule's training_step, which calls the layers and not the model."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 64), nn.Linear(64, 64)

    def training_step(self, x):
        return self.b(torch.relu(self.a(x)) ** 3).square().sum()


@pytest.mark.parametrize("sparse", [False, True])
def test_allocation_without_the_models_forward(sparse):
    torch.manual_seed(0)
    model = StepsWithoutForward()
    prune = sg.Prune(0.8, allocation="min_cosine", sparse_backward="always" if sparse else False)
    controller = sg.compress(model, prune, min_elements=1)
    for _ in range(3):
        model.training_step(torch.randn(64, 32, requires_grad=True)).backward()
    for product in [".weight", ".input"] if sparse else [""]:
        wanted = [controller.report()[name + product]["sparsity_wanted"] for name in "ab"]
        assert abs(wanted[0] - wanted[1]) > 0.01


@pytest.mark.parametrize("reentrant", [False, True])
def test_allocation_with_checkpointing(reentrant):
    """A pass that is recomputed inside backward is no other step."""

    def run(recompute):
        torch.manual_seed(0)
        model = StepsWithoutForward()
        controller = sg.compress(
            model, sg.Prune(0.8, allocation="min_cosine"), min_elements=1, seed=1
        )
        for step in range(4):
            x = torch.randn(64, 32, generator=torch.Generator().manual_seed(step)).requires_grad_()
            if recompute:
                checkpoint(model.training_step, x, use_reentrant=reentrant).backward()
            else:
                model.training_step(x).backward()
        return [p.grad for p in model.parameters()], controller.report()

    (plain, report), (recomputed, again) = run(False), run(True)
    assert all(torch.equal(a, b) for a, b in zip(plain, recomputed, strict=True))
    assert report == again


def test_evaluation_is_no_step():
    model, controller = make(sg.Prune(0.8, allocation="min_cosine"))
    train(model, 2)
    model.eval()
    before = controller.state_dict()
    with torch.no_grad():
        model(batch(0)[0])
        model(batch(1)[0])
    assert all(torch.equal(v, before[k]) for k, v in controller.state_dict().items())
