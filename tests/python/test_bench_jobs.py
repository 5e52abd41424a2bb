"""The jobs of bench.jobs run at a tiny size, and go on to the bit where they were interrupted."""

import json
import sys
from pathlib import Path

import pytest
import torch
from ranks import join_group, leave_group, run_ranks

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[2]))  # bench is not in the package

from bench import jobs

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = ["--steps", "6", "--log-every", "4", "--save-every", "2"]


def words(folder, job, name, *more):
    where = ["--out", str(folder / "runs"), "--checkpoints", str(folder / "checkpoints")]
    return [job, "--setting", name, "--seed", "1", *STEPS, *where, *more]


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(folder, job, name, *more):
    """The lines of the record."""
    jobs.main(words(folder, job, name, *more))
    return lines_of(folder / "runs" / job / f"{name}_seed1.jsonl")


def without(lines, *fields):
    return [{k: v for k, v in line.items() if k not in fields} for line in lines]


class Interrupted(Exception):
    pass


def interrupt_after(monkeypatch, steps):
    take_step = jobs.Run.take_step

    def limited(self):
        if self.step == steps:
            raise Interrupted
        take_step(self)

    monkeypatch.setattr(jobs.Run, "take_step", limited)


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("finetune", "plain"),
        ("finetune", "saved_4_activations_3"),
        ("finetune", "prune_weight_0.9"),
        ("finetune", "lora_saved_4_activations_3"),
        ("shakespeare", "plain"),
        ("shakespeare", "fp4"),
    ],
)
def test_a_resumed_run_gives_the_same_record(job, name, tmp_path, monkeypatch):
    if "lora" in name:
        pytest.importorskip("peft")
    whole = run(tmp_path / "whole", job, name)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interrupt_after(patch, 5)  # the last checkpoint is of step 4
        run(tmp_path / "parts", job, name)
    assert not list((tmp_path / "parts" / "runs").rglob("*.jsonl"))
    parts = run(tmp_path / "parts", job, name)
    assert without(parts, "resumed") == without(whole, "resumed")
    assert (whole[-1]["resumed"], parts[-1]["resumed"]) == (0, 1)
    assert not list((tmp_path / "parts" / "checkpoints").rglob("*.pt"))
    assert whole[0]["kind"] == "config" and whole[0]["data"] == "generated"
    assert [line["step"] for line in whole if line["kind"] == "epoch"] == [4, 6]
    end = whole[-1]
    assert ("test_accuracy" in end) == (job == "finetune")
    assert (end["saved_bytes"] < end["plain_saved_bytes"]) == ("saved" in name)


def _interrupted_rank(rank, world, port, folder, name):
    torch.set_num_threads(1)
    join_group(rank, world, port)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        interrupt_after(patch, 5)
        arguments = jobs.arguments_of(words(folder, "finetune", name))
        jobs.train(arguments, name, 1, folder / f"{name}_seed1.jsonl", rank)
    leave_group()


def test_ranks_resume_with_what_each_of_them_has(tmp_path):
    """Dropout, and draws of the exchange. A second run in one process would draw other numbers."""
    whole = run(tmp_path / "whole", "finetune", "ddp_fp4")
    run_ranks(_interrupted_rank, (tmp_path / "parts", "ddp_fp4"))
    parts = run(tmp_path / "parts", "finetune", "ddp_fp4")
    assert (whole[-1]["resumed"], parts[-1]["resumed"]) == (0, 1)
    assert without(parts, "resumed") == without(whole, "resumed")
    assert whole[0]["ranks"] == 2 and whole[-1]["sent_bytes"] > 0


def test_checkpointing_is_plain_training(tmp_path):
    plain, again = (run(tmp_path, "finetune", name) for name in ("plain", "checkpointing"))
    assert plain[-1]["weights"] == again[-1]["weights"]
    assert again[-1]["saved_bytes"] < plain[-1]["saved_bytes"] / 2


def test_a_checkpoint_of_another_run_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interrupt_after(patch, 5)
        run(tmp_path, "shakespeare", "plain")
    with pytest.raises(SystemExit, match=r"expected the checkpoint of this run, got .*'steps'"):
        run(tmp_path, "shakespeare", "plain", "--steps", "7")


def test_a_record_is_not_trained_again(tmp_path, monkeypatch, capsys):
    lines = run(tmp_path, "shakespeare", "plain")
    monkeypatch.setattr(jobs, "train", None)
    assert run(tmp_path, "shakespeare", "plain") == lines
    assert "plain_seed1: done before" in capsys.readouterr().out


def test_baselines_come_first(capsys):
    jobs.main(["finetune", "--list"])
    names = capsys.readouterr().out.split()
    assert names[:7] == [
        *(f"plain_seed{seed}" for seed in (1, 2, 3)),
        "checkpointing_seed1",
        *(f"lora_seed{seed}" for seed in (1, 2, 3)),
    ]
    jobs.main(["finetune", "--list", "--baselines"])
    assert capsys.readouterr().out.split() == names[:10]
    rest = [name.rpartition("_seed") for name in names[10:]]
    assert [seed for *_, seed in rest] == sorted(seed for *_, seed in rest)
    jobs.main(["shakespeare", "--list"])
    assert "lora" not in capsys.readouterr().out


def test_the_gpt_is_that_of_nanogpt():
    model = jobs.character_gpt(65, 64)
    assert model.head.weight is model.tokens.weight
    # nanoGPT prints 0.80 million, without the embeddings of places.
    count = sum(weight.numel() for weight in model.parameters()) - model.places.weight.numel()
    assert count == 4 * (12 * 128**2 + 2 * 128) + 65 * 128 + 128
    stds = [block[0].out.weight.std().item() for block in model.blocks]
    assert stds == pytest.approx([0.02 / 8**0.5] * 4, rel=0.03)
    tokens = torch.randint(65, (12, 64))
    assert model(tokens, tokens.roll(1)).item() == pytest.approx(4.17, abs=0.1)  # ln 65


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_measuring_adds_a_row_and_replaces_it(tmp_path):
    out = tmp_path / "measured.json"
    for _ in range(2):
        jobs.main(
            words(tmp_path, "shakespeare", "saved_4", "--seconds", "0", "--measure", str(out))
        )
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["job"], row["setting"]) == ("shakespeare", "saved_4")
    assert row["milliseconds"] > 0 and row["ratio"] > 0 and row["peak"] > row["idle"]
    jobs.main(["shakespeare", "--setting", "ddp", "--measure", str(out)])  # not in one process
    assert len(json.loads(out.read_text())["rows"]) == 1
