"""Lightning: a run that is interrupted and resumed is the run that was not, as far as the loop
itself goes on: it does not restore torch's random generator, so there is no dropout here."""

import os
import subprocess
import sys
import warnings

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy
from ranks import leave_group, run_ranks, store_for_others
from resume_samples import (
    COMPRESSIONS,
    callback_options,
    compress,
    differences,
    no_state_warning,
    run_of,
    weights_differ,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import slimgrad as sg
from slimgrad.integrations.lightning import SlimgradCallback

BATCH, BATCHES, EPOCHS = 8, 2, 4


def network():
    return nn.Sequential(
        nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)
    )


class Classifier(pl.LightningModule):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.net = network()

    def training_step(self, batch, _):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class CompressesItself(Classifier):
    def __init__(self, what, seed):
        super().__init__(seed)
        self.compression = compress(self.net, what, seed)


class CompressesLate(Classifier):
    """Its layers are not there before configure_model()."""

    def __init__(self, what, seed):
        super().__init__(seed)
        self.what, self.seed, self.net = what, seed, None

    def configure_model(self):
        if self.net is None:
            self.net = network()
            self.compression = compress(self.net, self.what, self.seed)


def batches(count=BATCHES, same=False):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(BATCH * count, 8, generator=generator)
    if same:
        x = x[:BATCH].repeat(count, 1)
    return DataLoader(TensorDataset(x, x.abs().argmax(1) % 4), BATCH)


def trainer_of(folder, callbacks, save={"every_n_epochs": 1}, **options):  # noqa: B006
    if save:
        checkpoints = ModelCheckpoint(folder, "{step}", save_top_k=-1, **save)
        callbacks = [*callbacks, checkpoints]
    return pl.Trainer(
        default_root_dir=folder,
        callbacks=callbacks,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=bool(save),
        **{"max_epochs": EPOCHS, "devices": 1, "logger": False} | options,
    )


def before(what, seed):
    module = Classifier(seed)
    return module, compress(module, what, seed)


def inside(what, seed):
    return CompressesItself(what, seed), None


def late(what, seed):
    return CompressesLate(what, seed), None


def by_callback(what, seed):
    return Classifier(seed), lambda module: compress(module.net, what, seed)


def run(folder, what, seed, resume=None, make=before, data=None, **options):
    """Everything in a new program: a model with other weights, a controller with other seeds."""
    module, controller = make(what, seed)
    callback = SlimgradCallback(controller, log_every=None, **callback_options(what))
    trainer = trainer_of(folder, [callback], **options)
    trainer.fit(module, data or batches(), ckpt_path=resume, weights_only=True)
    return run_of(module, callback.controller)


@pytest.mark.parametrize("what", COMPRESSIONS)
def test_a_resumed_run_is_the_run(what, tmp_path):
    whole = run(tmp_path, what, seed=1)
    with no_state_warning():
        resumed = run(tmp_path / "b", what, seed=2, resume=str(tmp_path / "step=4.ckpt"))
    assert differences(whole, resumed) == []


@pytest.mark.parametrize("make", [inside, late, by_callback], ids=lambda make: make.__name__)
def test_whoever_compresses(make, tmp_path):
    whole = run(tmp_path, "scheduled", seed=1, make=make)
    with no_state_warning():
        checkpoint = str(tmp_path / "step=4.ckpt")
        resumed = run(tmp_path / "b", "scheduled", seed=2, resume=checkpoint, make=make)
    assert differences(whole, resumed) == []


@pytest.mark.parametrize("what", ["scheduled", "every third step"])
def test_accumulation(what, tmp_path):
    options = {"accumulate_grad_batches": 2, "data": batches(4)}
    whole = run(tmp_path, what, seed=1, **options)
    with no_state_warning():
        checkpoint = str(tmp_path / "step=4.ckpt")
        resumed = run(tmp_path / "b", what, seed=2, resume=checkpoint, **options)
    assert differences(whole, resumed) == []


@pytest.mark.parametrize("what", ["scheduled", "once an epoch"])
def test_in_the_midst_of_an_epoch(what, tmp_path):
    """Lightning then begins the data anew: here all batches are the same."""
    options = {"data": batches(same=True), "save": {"every_n_train_steps": 1}}
    whole = run(tmp_path, what, seed=1, **options)
    with no_state_warning():
        checkpoint = str(tmp_path / "step=5.ckpt")
        resumed = run(tmp_path / "b", what, seed=2, resume=checkpoint, **options)
    assert differences(whole, resumed) == []


@pytest.mark.parametrize("what", ["scheduled", "warm-up", "loss scale"])
def test_a_checkpoint_without_our_state_is_told_once(what, tmp_path):
    whole = run(tmp_path, what, seed=1)
    saved = torch.load(tmp_path / "step=4.ckpt", weights_only=True)
    del saved["callbacks"]["SlimgradCallback"]
    torch.save(saved, tmp_path / "plain.ckpt")
    with pytest.warns(sg.StateWarning) as told:
        resumed = run(tmp_path / "b", what, 2, resume=str(tmp_path / "plain.ckpt"))
    told = [str(warning.message) for warning in told if warning.category is sg.StateWarning]
    assert len(told) == 1, told
    assert "plain.ckpt has no state" in told[0] and "start anew" in told[0]
    assert weights_differ(whole, resumed)


def test_the_plain_module_loads_the_checkpoint(tmp_path):
    whole = run(tmp_path, "sparse", seed=1)
    plain = Classifier.load_from_checkpoint(tmp_path / "step=8.ckpt", weights_only=True)
    assert all(torch.equal(value, whole[key]) for key, value in plain.state_dict().items())


def test_fitting_on_goes_on(tmp_path):
    """A second fit() of the same Trainer needs no checkpoint, and is no case for a warning."""
    module, controller = before("scheduled", 1)
    callback = SlimgradCallback(controller, schedule={0: 0.2, 7: 0.9})
    trainer = trainer_of(tmp_path, [callback], save=None, max_epochs=EPOCHS // 2)
    with no_state_warning():
        trainer.fit(module, batches())
        trainer.fit_loop.max_epochs = EPOCHS
        trainer.fit(module, batches())
    row = controller.report()["net.0"]
    assert (row["calls"], row["sparsity_wanted"]) == (BATCHES * EPOCHS, 0.9)


class Watcher(pl.Callback):
    def __init__(self, controller):
        self.controller, self.sparsities = controller, []

    def on_train_batch_end(self, trainer, *_):
        rows = self.controller.report().values()
        self.sparsities.append({round(row["sparsity_wanted"], 9) for row in rows})


def test_steps_of_the_optimizer_drive_the_schedule(tmp_path):
    module, controller = before("scheduled", 1)
    watcher = Watcher(controller)
    callback = SlimgradCallback(controller, schedule={1: 0.2, 3: 0.6})
    trainer = trainer_of(
        tmp_path, [callback, watcher], save=None, accumulate_grad_batches=2, max_epochs=2
    )
    trainer.fit(module, batches(5))  # The last batch of an epoch is a step of its own.
    expected = [0.2, 0.2, 0.2, 0.2, 0.4, 0.6, 0.6, 0.6, 0.6, 0.6]
    assert watcher.sparsities == [{sparsity} for sparsity in expected]


def test_statistics_go_to_the_loggers(tmp_path):
    module, controller = before("fp6", 1)
    callback = SlimgradCallback(controller, log_every=3)
    logger = CSVLogger(tmp_path)
    # Lightning's own log_every_n_steps does not matter.
    trainer_of(tmp_path, [callback], save=None, logger=logger, log_every_n_steps=1000).fit(
        module, batches()
    )
    header, *rows = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().split()
    columns = header.split(",")
    statistics = ("sparsity", "cosine", "relative_error", "log_std", "scale")
    names = {f"slimgrad/{key}/{name}" for key in statistics for name in controller.converted}
    assert names <= set(columns)
    assert [row.split(",")[columns.index("step")] for row in rows] == ["3", "6"]


def test_a_warning_is_said_once(tmp_path):
    module = Classifier()
    controller = sg.compress(module, sg.Prune(0.97), seed=1, min_elements=0)
    callback = SlimgradCallback(controller, log_every=1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer_of(tmp_path, [callback], save=None).fit(module, batches())
    harmed = [str(w.message).split(":")[0] for w in told if "leaves a cosine" in str(w.message)]
    assert harmed and len(set(harmed)) == len(harmed)


def test_a_module_without_a_controller_is_refused(tmp_path):
    trainer = trainer_of(tmp_path, [SlimgradCallback()], save=None)
    with pytest.raises(ValueError, match="one controller among its attributes, got none"):
        trainer.fit(Classifier(), batches())


def test_with_pytorch_lightning_alone(tmp_path):
    """The package under its other name."""
    pytest.importorskip("pytorch_lightning")
    script = """
import sys
sys.modules["lightning"] = None
import pytorch_lightning as pl, torch, slimgrad as sg
from slimgrad.integrations.lightning import SlimgradCallback
assert issubclass(SlimgradCallback, pl.Callback)

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 4)
        self.controller = sg.compress(self, "fp6", min_elements=0)

    def training_step(self, batch, _):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

module = Module()
trainer = pl.Trainer(
    max_steps=2, accelerator="cpu", logger=False, callbacks=[SlimgradCallback()],
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(module, torch.utils.data.DataLoader(torch.randn(8, 8), 4))
saved = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=True)
assert "net.plan" in saved["callbacks"]["SlimgradCallback"]["ranks"]["0"]
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, cwd=tmp_path)


def _two_ranks(rank, world, port, folder):
    os.environ.update(store_for_others(port), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    options = {"devices": world, "data": batches(2 * BATCHES)}
    options["strategy"] = DDPStrategy(process_group_backend="gloo")
    whole = run(folder, "every third step", seed=1, **options)
    options["strategy"] = DDPStrategy(process_group_backend="gloo")
    with no_state_warning():
        checkpoint = f"{folder}/step=4.ckpt"
        resumed = run(f"{folder}/b", "every third step", seed=2, resume=checkpoint, **options)
    assert differences(whole, resumed) == []
    torch.save(whole, f"{folder}/rank{rank}.pt")
    leave_group()


def test_two_processes(tmp_path):
    run_ranks(_two_ranks, (str(tmp_path),))
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]
    # One model, and two states: each rank measured what it saw.
    assert not weights_differ(*ranks) and differences(*ranks)
