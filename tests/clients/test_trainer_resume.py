"""transformers.Trainer: a run that is interrupted and resumed is the run that was not."""

import os
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
import transformers
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

import slimgrad as sg
from slimgrad.integrations._steps import of_rank, without_figures
from slimgrad.integrations.transformers import SlimgradCallback

STEPS, BATCH, LENGTH, LABELS = 8, 4, 8, 3


def bert(dropout=0.0, seed=0):
    torch.manual_seed(seed)
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=32,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=LENGTH,
            num_labels=LABELS,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )


def sentences(count):
    generator = torch.Generator().manual_seed(5)
    words = torch.randint(32, (count, LENGTH), generator=generator)
    labels = torch.randint(LABELS, (count,), generator=generator)
    return [{"input_ids": w, "labels": y} for w, y in zip(words, labels, strict=True)]


def trainer_of(folder, model, callbacks, steps_an_epoch=3, accumulate=1, make=None, **options):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=accumulate,
        learning_rate=1e-2,
        **{"save_strategy": "steps", "save_steps": 4} | options,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    data = sentences(BATCH * accumulate * steps_an_epoch)
    return transformers.Trainer(
        model, arguments, train_dataset=data, callbacks=callbacks, model_init=make
    )


def run(folder, what, seed, resume=None, dropout=0.0, named=None, **options):
    """Everything in a new program: a model with other weights, a controller with other seeds."""
    model = bert(dropout, seed)
    controller = compress(model, what, seed)
    callback = SlimgradCallback(controller, log_every=None, **callback_options(what))
    trainer = trainer_of(folder, model, [callback], resume_from_checkpoint=named, **options)
    trainer.train(resume_from_checkpoint=resume)
    return run_of(model, controller)


@pytest.mark.parametrize("what", COMPRESSIONS)
def test_a_resumed_run_is_the_run(what, tmp_path):
    """Interrupted in the midst of an epoch, after the fourth of its steps."""
    whole = run(tmp_path, what, seed=1)
    with no_state_warning():
        resumed = run(tmp_path, what, seed=2, resume=str(tmp_path / "checkpoint-4"))
    assert differences(whole, resumed) == []


@pytest.mark.parametrize(
    "options",
    [{"dropout": 0.2}, {"accumulate": 2}, {"steps_an_epoch": 4}],
    ids=["dropout", "accumulation", "between two epochs"],
)
@pytest.mark.parametrize("what", ["scheduled", "sparse", "once an epoch"])
def test_a_resumed_run_is_the_run_with(what, options, tmp_path):
    whole = run(tmp_path, what, seed=1, **options)
    with no_state_warning():
        resumed = run(tmp_path, what, seed=2, resume=str(tmp_path / "checkpoint-4"), **options)
    assert differences(whole, resumed) == []


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A whole run, and a copy of it that ends with its fourth step."""
    folder = tmp_path_factory.mktemp("whole")
    return run(folder, "scheduled", seed=1), folder


def test_the_last_checkpoint_is_found(interrupted, tmp_path):
    whole, folder = interrupted
    shutil.copytree(folder / "checkpoint-4", tmp_path / "checkpoint-4")
    assert differences(whole, run(tmp_path, "scheduled", seed=2, resume=True)) == []


def test_a_checkpoint_named_by_the_arguments_may_be_anywhere(interrupted, tmp_path):
    """Neither where the run writes to nor named as the Trainer names it."""
    whole, folder = interrupted
    shutil.copytree(folder / "checkpoint-4", tmp_path / "saved")
    kept = str(tmp_path / "saved")
    resumed = run(tmp_path / "elsewhere", "scheduled", seed=2, resume=kept, named=kept)
    assert differences(whole, resumed) == []


def test_a_checkpoint_elsewhere_that_is_not_named_is_told(interrupted, tmp_path):
    checkpoint = str(interrupted[1] / "checkpoint-4")
    words = (
        r"checkpoint-4 has no state .* name that in TrainingArguments\(resume_from_checkpoint=\)"
    )
    with pytest.warns(sg.StateWarning, match=words):
        run(tmp_path, "scheduled", seed=2, resume=checkpoint)


@pytest.mark.parametrize("what", ["scheduled", "warm-up", "loss scale"])
def test_a_checkpoint_without_our_state_is_told_once(what, tmp_path):
    whole = run(tmp_path, what, seed=1)
    (tmp_path / "checkpoint-4" / "slimgrad.safetensors").unlink()
    with pytest.warns(sg.StateWarning) as told:
        resumed = run(tmp_path, what, seed=2, resume=str(tmp_path / "checkpoint-4"))
    told = [str(warning.message) for warning in told if warning.category is sg.StateWarning]
    assert len(told) == 1, told
    assert "checkpoint-4 has no state" in told[0] and "start anew" in told[0]
    assert weights_differ(whole, resumed)


def test_another_schedule_is_told(interrupted, tmp_path):
    model = bert(seed=2)
    controller = compress(model, "scheduled", seed=2)
    callback = SlimgradCallback(controller, schedule={0: 0.6})
    checkpoint = str(interrupted[1] / "checkpoint-4")
    trainer = trainer_of(tmp_path, model, [callback], resume_from_checkpoint=checkpoint)
    with pytest.warns(sg.StateWarning, match="sparsity 0.6, the state has"):
        trainer.train(resume_from_checkpoint=checkpoint)
    assert {row["sparsity_wanted"] for row in controller.report().values()} == {0.6}


def test_the_plain_model_loads_the_checkpoint(interrupted):
    plain = transformers.BertForSequenceClassification.from_pretrained(
        interrupted[1] / "checkpoint-8"
    )
    assert all(torch.equal(value, interrupted[0][key]) for key, value in plain.state_dict().items())


class Recorder(transformers.TrainerCallback):
    """Stands for what a Trainer reports to."""

    def __init__(self):
        self.logs, self.sparsities = [], []
        self.controller = None

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append((state.global_step, logs))

    def on_step_end(self, args, state, control, **kwargs):
        rows = self.controller.report().values()
        self.sparsities.append({round(row["sparsity_wanted"], 9) for row in rows})


def test_steps_of_the_optimizer_drive_the_schedule(tmp_path):
    model, recorder = bert(), Recorder()
    recorder.controller = controller = compress(model, "scheduled", seed=1)
    callback = SlimgradCallback(controller, schedule={1: 0.2, 5: 0.6, 6: 0.5})
    trainer_of(tmp_path, model, [callback, recorder], accumulate=2, save_strategy="no").train()
    expected = [0.2, 0.2, 0.3, 0.4, 0.5, 0.6, 0.5, 0.5]
    assert recorder.sparsities == [{sparsity} for sparsity in expected]
    assert {row["calls"] for row in controller.report().values()} == {2 * STEPS}


def test_a_product_that_is_not_pruned_stays_so(tmp_path):
    model = bert()
    controller = sg.compress(model, sg.Prune(weight=0.9, input=0), min_elements=0)
    callback = SlimgradCallback(controller, schedule={0: 0.0, 2: 0.5})
    trainer_of(tmp_path, model, [callback], save_strategy="no").train()
    assert controller.prune.products == {"weight": 0.5, "input": 0.0}


@pytest.mark.parametrize("is_given", [True, False])
def test_statistics_go_to_the_loggers_and_not_to_the_console(is_given, tmp_path, capsys):
    """To loggers if the callback is given the Trainer, to its history always."""
    model, recorder = bert(), Recorder()
    recorder.controller = controller = compress(model, "fp6", seed=1)
    trainer = trainer_of(tmp_path, model, [recorder], save_strategy="no")
    given = {"trainer": trainer} if is_given else {}
    trainer.add_callback(SlimgradCallback(controller, log_every=3, **given))
    trainer.train()
    ours = [(step, logs) for step, logs in recorder.logs if "slimgrad/cosine/classifier" in logs]
    assert [step for step, _ in ours] == ([3, 6] if is_given else [])
    statistics = ("sparsity", "cosine", "relative_error", "log_std", "scale")
    names = {f"slimgrad/{key}/{name}" for key in statistics for name in controller.converted}
    assert all(set(logs) == names for _, logs in ours)
    history = [row for row in trainer.state.log_history if "slimgrad/scale/classifier" in row]
    assert [row["step"] for row in history] == [3, 6]
    assert "slimgrad/" not in capsys.readouterr().out


def test_a_warning_is_said_once(tmp_path):
    """Its figures are others in every step."""
    model = bert()
    controller = sg.compress(model, sg.Prune(0.97), seed=1, min_elements=0)
    callback = SlimgradCallback(controller, log_every=1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer_of(tmp_path, model, [callback], save_strategy="no").train()
    harmed = [str(w.message).split(":")[0] for w in told if "leaves a cosine" in str(w.message)]
    assert harmed and len(set(harmed)) == len(harmed)


def test_a_trainer_that_makes_its_model(tmp_path):
    """One for each call of train(); the callback compresses it."""

    def train(seed, resume=None):
        callback = SlimgradCallback(lambda model: compress(model, "scheduled", seed), log_every=1)
        trainer = trainer_of(tmp_path, None, [callback], make=lambda: bert())
        trainer.train(resume_from_checkpoint=resume)
        return run_of(trainer.model, callback.controller)

    assert differences(train(1), train(2, str(tmp_path / "checkpoint-4"))) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"log_every": 0}, "log_every to be a number of steps"),
        ({"refresh": "step"}, "refresh to be a number of steps >= 1 or 'epoch'"),
        ({"schedule": {}}, "schedule={step: sparsity}"),
        ({"schedule": {0.5: 0.5}}, "whole steps"),
        ({"schedule": {0: 1.0}}, "0 <= sparsity < 1"),
        ({"schedule": {0: 0.5}}, "compressed with Prune"),
    ],
    ids=str,
)
def test_misuse(options, words):
    controller = compress(bert(), "fp6", seed=1)
    with pytest.raises(ValueError, match=words):
        SlimgradCallback(controller, **options)


def test_the_controller_of_another_model_is_refused(tmp_path):
    callback = SlimgradCallback(compress(bert(), "fp6", seed=1))
    with pytest.raises(ValueError, match="of another model"):
        trainer_of(tmp_path, bert(), [callback]).train()
    with pytest.raises(ValueError, match="expected controller to be"):
        SlimgradCallback(bert())


@pytest.mark.parametrize("package", ["transformers", "lightning"])
def test_without_the_package(package):
    """slimgrad imports neither, and says what is missing where it is needed."""
    script = f"""
import sys
import slimgrad
assert not {{"transformers", "lightning", "pytorch_lightning"}} & set(sys.modules)
sys.modules.update(transformers=None, lightning=None, pytorch_lightning=None)
try:
    import slimgrad.integrations.{package}
except ImportError as error:
    assert "pip install {package}" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_checkpoint_that_is_pushed_has_the_state(tmp_path):
    """The Trainer pushes before it tells that it has saved."""
    model = bert()
    callback = SlimgradCallback(compress(model, "fp6", seed=1))
    trainer = trainer_of(tmp_path, model, [callback])
    trainer.train()
    file = tmp_path / f"checkpoint-{STEPS}" / "slimgrad.safetensors"
    file.unlink()
    trainer.callback_handler.on_push_begin(trainer.args, trainer.state, trainer.control)
    assert file.is_file()


def test_a_rank_that_was_not_there_takes_the_state_of_rank_0():
    with no_state_warning():
        assert of_rank({0: "a", 1: "b"}, 1, "here") == "b"
        assert of_rank({}, 0, "here") is None
    with pytest.warns(sg.StateWarning, match="here has no state .* of rank 2"):
        assert of_rank({0: "a", 1: "b"}, 2, "here") == "a"


def test_figures_do_not_make_another_warning():
    same = [f"net.0: pruning to 0.9{n} leaves a cosine of 0.{n}; prune it less" for n in (1, 2)]
    assert len(set(map(without_figures, same))) == 1
    others = [f"{name}: pruning to 0.9" for name in ("net.0", "net.1", "0", "1")]
    assert len(set(map(without_figures, others))) == 4
    same = [f"{n} of 9 pruned gradients: Prune(weight=0.{n})" for n in (5, 6)]
    assert len(set(map(without_figures, same))) == 1


def _two_ranks(rank, world, port, folder):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    os.environ.update(store_for_others(port))
    torch.set_num_threads(1)
    whole = run(folder, "every third step", seed=1)
    with no_state_warning():
        resumed = run(folder, "every third step", seed=2, resume=f"{folder}/checkpoint-4")
    assert differences(whole, resumed) == []
    torch.save(whole, f"{folder}/rank{rank}.pt")
    leave_group()


def test_two_processes(tmp_path):
    run_ranks(_two_ranks, (str(tmp_path),))
    names = {path.name for path in (tmp_path / "checkpoint-4").glob("slimgrad*")}
    assert names == {"slimgrad.safetensors", "slimgrad-rank1.safetensors"}
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]
    # One model, and two states: each rank measured what it saw.
    assert not weights_differ(*ranks) and differences(*ranks)
