"""Every block of docs/checkpoints.md runs, and a run that goes on by it is the run that was not
interrupted."""

import re
from pathlib import Path

import pytest
import torch
from ranks import join_group, leave_group, run_ranks
from resume_samples import differences, no_state_warning, run_of, weights_differ
from torch import nn

import slimgrad as sg

PAGE = Path(__file__).resolve().parents[2] / "docs" / "checkpoints.md"
BLOCKS = dict(re.findall(r"^```python (\S+)\n(.*?)^```$", PAGE.read_text(), re.M | re.S))

LOOPS = ["plain", "safetensors", "accelerate", "accelerate-ranks", "dcp"]
OTHERS = ["setup", "weights", "trainer", "lightning"]


def program(seed, *blocks):
    """What the blocks define, as in a new program."""
    torch.manual_seed(seed)
    names = {}
    for block in blocks:
        exec(compile(BLOCKS[block], f"{PAGE.name}: {block}", "exec"), names)
    return names


def train(names, first, last, rank=0):
    model, optimizer = names["model"], names["optimizer"]
    model.train()
    for step in range(first, last):
        x = torch.randn(64, 64, generator=torch.Generator().manual_seed(2 * step + rank))
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        optimizer.step()


def without_dropout(names):
    """Where the recipe does not restore torch's generator."""
    for module in names["model"].modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


def result(names):
    return run_of(names["model"], names["controller"])


def test_no_block_is_forgotten():
    assert list(BLOCKS) and set(BLOCKS) == {*LOOPS, *OTHERS}
    assert PAGE.read_text().count("```") == 2 * len(BLOCKS)


@pytest.mark.parametrize("recipe", LOOPS)
def test_a_resumed_run_is_the_run(recipe, tmp_path):
    path = tmp_path / "checkpoint"
    if recipe != "plain":
        path.mkdir()
    runs = []
    for seed, first in ((1, 0), (2, 4)):
        names = program(seed, "setup", recipe)
        if recipe == "dcp":
            without_dropout(names)
        if first == 0:
            train(names, 0, 4)
            names["save"](str(path))
        else:
            with no_state_warning():
                names["load"](str(path))
        with no_state_warning():
            train(names, 4, 8)
        runs.append(result(names))
    assert differences(*runs) == []


def test_without_the_state_it_is_another_run(tmp_path):
    """So that the others could fail."""
    whole, other = program(1, "setup", "plain"), program(2, "setup", "plain")
    train(whole, 0, 4)
    whole["save"](tmp_path / "checkpoint")
    saved = torch.load(tmp_path / "checkpoint", weights_only=True)
    other["model"].load_state_dict(saved["model"])
    other["optimizer"].load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["generator"])
    train(other, 4, 8)
    torch.set_rng_state(saved["generator"])
    train(whole, 4, 8)
    assert weights_differ(result(whole), result(other))


def test_weights_with_and_without(tmp_path):
    names = program(1, "setup", "weights")
    train(names, 0, 2)
    plain = names["to_plain"](tmp_path / "weights")
    assert differences(plain.state_dict(), names["model"].state_dict()) == []
    other = program(2, "setup", "weights")
    other["from_plain"](tmp_path / "weights")
    assert differences(plain.state_dict(), other["model"].state_dict()) == []


def _two_ranks(rank, world, port, folder):
    torch.set_num_threads(1)
    join_group(rank, world, port)
    runs = []
    for seed in (1, 2):
        names = program(seed, "setup", "dcp")
        without_dropout(names)
        names["model"] = nn.parallel.DistributedDataParallel(names["model"])
        if seed == 1:
            train(names, 0, 4, rank)
            names["save"](folder)
        else:
            with no_state_warning():
                names["load"](folder)
        train(names, 4, 8, rank)
        runs.append(result(names))
    assert differences(*runs) == []
    # Why every rank's state has a name of its own: under one name there is one of them.
    dcp = names["dcp"]
    dcp.save({"same name": torch.tensor([rank])}, checkpoint_id=f"{folder}/same")
    loaded = {"same name": torch.tensor([-1])}
    dcp.load(loaded, checkpoint_id=f"{folder}/same")
    both = [torch.empty(1, dtype=torch.int64) for _ in range(world)]
    torch.distributed.all_gather(both, loaded["same name"])
    assert both[0] == both[1]
    leave_group()


def test_dcp_with_two_ranks_and_then_with_one(tmp_path):
    """Each rank has its own state, and one rank alone loads that of rank 0."""
    run_ranks(_two_ranks, (str(tmp_path),))
    names = program(3, "setup", "dcp")
    with no_state_warning():
        names["load"](str(tmp_path))
    assert {row["calls"] for row in names["controller"].report().values()} == {4}


def test_trainer(tmp_path):
    transformers = pytest.importorskip("transformers")
    from test_trainer_resume import bert, sentences

    runs = []
    for seed, resume in ((1, None), (2, True)):
        model = bert(dropout=0.1, seed=seed)
        controller = sg.compress(model, sg.Prune(0.5), min_elements=0)
        names = {"model": model, "controller": controller, "resume": resume}
        names["arguments"] = transformers.TrainingArguments(
            *(str(tmp_path),),
            max_steps=8,
            per_device_train_batch_size=4,
            save_steps=6,
            **{"report_to": "none", "use_cpu": True, "disable_tqdm": True},
        )
        names["dataset"] = sentences(12)
        if resume:  # The end was saved, too.
            (tmp_path / "checkpoint-8").rename(tmp_path / "end")
        with no_state_warning():
            exec(BLOCKS["trainer"], names)
        runs.append(result(names))
    assert differences(*runs) == []


def test_lightning(tmp_path):
    pytest.importorskip("lightning")
    from test_lightning_resume import Classifier, batches

    runs = []
    for seed, resume in ((1, None), (2, str(tmp_path / "step=4.ckpt"))):
        module = Classifier(seed)
        controller = sg.compress(module, sg.Prune(0.5), min_elements=0)
        names = {"module": module, "controller": controller, "batches": batches()}
        names |= {"folder": tmp_path, "resume": resume}
        quiet = dict.fromkeys(["logger", "enable_progress_bar", "enable_model_summary"], False)
        names["options"] = {"accelerator": "cpu", "devices": 1} | quiet
        with no_state_warning():
            exec(BLOCKS["lightning"], names)
        runs.append(run_of(module, controller))
    assert differences(*runs) == []
