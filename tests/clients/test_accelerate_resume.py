"""accelerate: the controller among the registered objects, with gradient accumulation and mixed
precision, and every rank's own state."""

import os

import pytest
import torch
from accelerate import Accelerator
from ranks import leave_group, run_ranks, store_for_others
from resume_samples import COMPRESSIONS, compress, differences, no_state_warning, run_of
from test_checkpoint_recipes import program, result, train
from torch import nn


def run(folder, what, seed, resume=False, **options):
    torch.manual_seed(seed)
    accelerator = Accelerator(cpu=True, **options)
    plain = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 16))
    controller = compress(plain, what, seed)
    model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2))
    accelerator.register_for_checkpointing(controller)
    if resume:
        accelerator.load_state(folder)
    for step in range(4 if resume else 0, 8):
        if step == 4 and not resume:
            accelerator.save_state(folder)
        for half in range(2):
            x = torch.randn(8, 8, generator=torch.Generator().manual_seed(2 * step + half))
            with accelerator.accumulate(model):
                accelerator.backward((model(x).float() - x.repeat(1, 2)).square().mean())
                optimizer.step()
                optimizer.zero_grad()
    return run_of(plain, controller)


@pytest.mark.parametrize("what", COMPRESSIONS)
def test_a_resumed_run_is_the_run(what, tmp_path):
    options = {"gradient_accumulation_steps": 2}
    whole = run(str(tmp_path), what, seed=1, **options)
    with no_state_warning():
        assert differences(whole, run(str(tmp_path), what, seed=2, resume=True, **options)) == []


def _two_ranks(rank, world, port, folder):
    """With every rank's own state, and with that of rank 0 on both."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    os.environ.update(store_for_others(port))
    torch.set_num_threads(1)
    for recipe in ("accelerate-ranks", "accelerate"):
        runs = []
        for seed in (1, 2):
            names = program(seed, "setup", recipe)
            if seed == 1:
                train(names, 0, 4, rank)
                names["save"](f"{folder}/{recipe}")
            else:
                names["load"](f"{folder}/{recipe}")
            with no_state_warning():
                train(names, 4, 8, rank)
            runs.append(result(names))
        assert differences(*runs) == []
    leave_group()


def test_two_processes(tmp_path):
    """By the recipes of docs/checkpoints.md. There each pass plans anew, so that the plans of rank
    0 do not matter to rank 1."""
    run_ranks(_two_ranks, (str(tmp_path),))
    files = (tmp_path / "accelerate-ranks").glob("slimgrad-rank*.safetensors")
    assert len(list(files)) == 2
