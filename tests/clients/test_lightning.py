"""Lightning's Trainer over compressed modules: it need not call their forward."""

import lightning
import pytest
import torch
import torch.nn.functional as F
from small_models import COMPRESSIONS, SPARSE, calls, equal_tensors, snapshot
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import slimgrad as sg


class Classifier(lightning.LightningModule):
    """Its training_step takes the layers themselves; nobody calls its forward."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.activation = nn.GELU()
        self.second = nn.Linear(64, 64)
        self.head = nn.Linear(64, 10)

    def training_step(self, batch, _):
        x, y = batch
        x = self.activation(self.first(x))
        return F.cross_entropy(self.head(torch.relu(self.second(x))), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def data(steps):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(32 * steps, 32, generator=generator)
    return DataLoader(TensorDataset(x, torch.randint(10, (32 * steps,), generator=generator)), 32)


def fit(gradients=(), steps=4, folder=None, **options):
    torch.manual_seed(0)
    module = Classifier()
    activations, compiler = options.pop("activations", None), options.pop("compiler", None)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )
    controller = None
    if gradients or activations:
        controller = sg.compress(module, gradients, activations, seed=3, min_elements=0)
    trainer.fit(torch.compile(module, backend=compiler) if compiler else module, data(steps))
    return module, controller, trainer


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("what", COMPRESSIONS)
def test_trains_and_a_seed_gives_the_same_bits(what, precision, tmp_path):
    one, controller, _ = fit(**COMPRESSIONS[what], precision=precision, folder=tmp_path, steps=3)
    assert all(value.isfinite().all() for value in one.state_dict().values())
    other, _, _ = fit(**COMPRESSIONS[what], precision=precision, folder=tmp_path, steps=3)
    assert equal_tensors(snapshot(one), snapshot(other))
    plain, _, _ = fit(precision=precision, folder=tmp_path, steps=3)
    assert not equal_tensors(snapshot(one), snapshot(plain))
    assert set(calls(controller).values()) <= {0, 3}


@pytest.mark.parametrize("sparse", [False, True])
def test_allocation_takes_effect_without_a_call_of_forward(sparse, tmp_path):
    prune = sg.Prune(0.85, allocation="min_cosine")
    if sparse:
        prune = sg.Prune(weight=0.85, input=0.85, allocation="min_cosine", sparse_backward="always")
    _, controller, _ = fit(prune, folder=tmp_path)
    rows = [row for row in controller.report().values() if row["calls"]]
    wanted = [round(row["sparsity_wanted"], 3) for row in rows]
    assert len(set(wanted)) == len(rows) > 2, wanted
    overall = sum(r["sparsity"] * r["elements"] for r in rows) / sum(r["elements"] for r in rows)
    assert overall == pytest.approx(0.85, abs=0.03)


def test_a_dynamic_loss_scale_takes_effect_without_a_call_of_forward(tmp_path):
    scale = sg.LossScale(2.0**4, dynamic=True, growth_interval=1)
    _, controller, _ = fit(sg.Quantize(format="1-4-1", scale=scale), folder=tmp_path)
    scales = {row["scale"] for row in controller.report().values()}
    assert len(scales) == 1 and scales != {2.0**-4}


def test_compress_within_configure_model(tmp_path):
    """Lightning's place for what changes a model before its strategy sets it up."""

    class Late(Classifier):
        controller = None

        def configure_model(self):
            if self.controller is None:
                self.controller = sg.compress(self, SPARSE, seed=3, min_elements=0)

    torch.manual_seed(0)
    module = Late()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(module, data(4))
    early, _, _ = fit(SPARSE, folder=tmp_path)
    assert equal_tensors(snapshot(module), snapshot(early))


def test_a_compiled_module_is_compressed(tmp_path):
    torch._dynamo.reset()
    prune = sg.Prune(0.8, allocation="min_cosine")
    eager, expected, _ = fit(prune, folder=tmp_path)
    compiled, controller, _ = fit(prune, folder=tmp_path, compiler="aot_eager")
    assert calls(controller) == calls(expected)
    for key, value in eager.state_dict().items():
        torch.testing.assert_close(compiled.state_dict()[key], value, rtol=0.05, atol=0.01)
    wanted = [
        [row["sparsity_wanted"] for row in one.report().values()] for one in (expected, controller)
    ]
    assert wanted[1] == pytest.approx(wanted[0], abs=0.02) and len(set(wanted[0])) > 1


def test_gradients_that_are_accumulated(tmp_path):
    _, controller, trainer = fit(sg.Prune(0.8), folder=tmp_path, accumulate_grad_batches=2)
    assert set(calls(controller).values()) == {4} and trainer.global_step == 2


def test_gradients_that_are_clipped(tmp_path):
    _, controller, _ = fit(sg.Prune(0.8), folder=tmp_path, gradient_clip_val=0.1)
    assert set(calls(controller).values()) == {4}


def test_what_training_step_saves_is_packed(tmp_path):
    plain, _, _ = fit(folder=tmp_path)
    torch.manual_seed(0)
    module = Classifier()
    controller = sg.compress(module, saved=sg.Saved(bits=8, min_elements=1), seed=3)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, default_root_dir=tmp_path, **options
    )
    trainer.fit(module, data(4))
    tally = controller.saved.tally
    assert tally.packed >= 4  # of the last step: GELU, ReLU, two linear layers, the loss
    # AdamW steps by signs at first, so that single weights may go the other way; the mean may not.
    torch.manual_seed(0)
    for a, b, start in zip(*(m.parameters() for m in (module, plain, Classifier())), strict=True):
        assert 0 < (a - b).abs().mean() < 0.2 * (b - start).abs().mean()
    assert controller.remove() == [] and type(module) is Classifier
