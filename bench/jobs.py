"""Jobs of users, trained with every way to save memory, bytes or time beside plain training.

    python -m bench.jobs finetune --data DIR --weights DIR --setting plain --seed 1
    python -m bench.jobs shakespeare --data FILE            all settings and seeds, baselines first
    python -m bench.jobs shakespeare --list                 the names of these runs, in their order
    python -m bench.jobs finetune --data DIR --weights DIR --setting fp8 --measure FILE

finetune: a pretrained BERT learns SST-2, with the functions of examples/finetune_bert.py, which
says what the folders hold. shakespeare: a GPT of 4 layers learns the next character of a text, at
the setting that nanoGPT's README gives for its shakespeare_char on a CPU, but for the held-out
loss, which is that of the whole last tenth of the text, where nanoGPT looks at 20 random batches.
Without data both train on generated text, and without weights the BERT's are random.

A run writes OUT/JOB/SETTING_seedN.jsonl, the lines of docs/runs.md. One that has its end line is
not trained again, one that was interrupted goes on from its checkpoint. For a seed all runs start
from the same weights and see the same batches.

--measure trains nothing: it times a step of the setting by turns with a plain one, and has a
process of its own find the peak of its memory. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from examples import finetune_bert
from torch import nn

import slimgrad as sg
from bench.fewbit_convergence import generated_text
from bench.saved_memory import THRESHOLD, measure
from bench.saved_models import GPT, Attention, FeedForward, checkpoint_blocks
from bench.timing import commit, race, write_json

SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Setting:
    """compress: the arguments of compress(), none for a run that it has no part in. codec: of the
    gradients between ranks, by which each has its share of a batch; None is torch's own exchange.
    is_baseline: whether nothing of slimgrad takes part."""

    compress: dict = field(default_factory=dict)
    checkpointing: bool = False
    lora: bool = False
    ranks: int = 1
    codec: str | None = None
    seeds: tuple[int, ...] = SEEDS

    @property
    def is_baseline(self) -> bool:
        return not self.compress and self.codec is None


BOTH = {"saved": 4, "activations": 3}
SETTINGS = {
    "plain": Setting(),
    # Computes what plain training computes, so that one seed shows it.
    "checkpointing": Setting(checkpointing=True, seeds=(1,)),
    "lora": Setting(lora=True),
    "ddp": Setting(ranks=2),
    "saved_8": Setting({"saved": 8}),
    "saved_4": Setting({"saved": 4}),
    "saved_2": Setting({"saved": 2}),
    "activations_3": Setting({"activations": 3}),
    "saved_4_activations_3": Setting(BOTH),
    "fp8": Setting({"gradients": "fp8"}),
    "fp6": Setting({"gradients": "fp6"}),
    "fp4": Setting({"gradients": "fp4"}),
    "prune_weight_0.9": Setting({"gradients": sg.Prune(weight=0.9)}),
    "lora_saved_4_activations_3": Setting(BOTH, lora=True),
    "ddp_lossless": Setting(ranks=2, codec="lossless", seeds=(1,)),
    "ddp_uniform8": Setting(ranks=2, codec="uniform8"),
    "ddp_fp8": Setting(ranks=2, codec="fp8"),
    "ddp_fp4": Setting(ranks=2, codec="fp4"),
    "ddp_rate3": Setting(ranks=2, codec="rate3"),
    "ddp_rate2": Setting(ranks=2, codec="rate2"),
}


@dataclass
class Job:
    """What is trained on what. inputs: of a step, from 0, the share that a rank of so many has of
    the batch. loss: of the model for them. evaluate: test_loss, and test_accuracy if there is one.
    about: fields of the config line. max_norm: to which gradients are clipped."""

    model: nn.Module
    inputs: Callable[[int, int, int], dict]
    loss: Callable[[nn.Module, dict], torch.Tensor]
    evaluate: Callable[[nn.Module], dict[str, float]]
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    about: dict
    max_norm: float = math.inf


def _digest(*parts: bytes) -> str:
    """16 hexadecimal digits of SHA-256."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:16]


# ---- the jobs ------------------------------------------------------------------------------------


def finetune(arguments: argparse.Namespace, setting: Setting, seed: int) -> Job:
    tokenizer, model = finetune_bert.load(arguments.weights)
    training, held_out = finetune_bert.prepare(arguments.data, tokenizer)
    rate, batch = finetune_bert.RATE, finetune_bert.BATCH
    if setting.lora:
        import peft

        rate *= 10  # Adapters start from zero.
        config = peft.LoraConfig("SEQ_CLS", r=8, target_modules=["query", "value"])
        model = peft.get_peft_model(model, config)
    if setting.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer, schedule = finetune_bert.optimizer_of(model, arguments.steps, rate)

    def inputs(step: int, rank: int, ranks: int) -> dict:
        return training.batch(finetune_bert.rows_of(step, len(training.tokens), seed)[rank::ranks])

    def evaluate(model: nn.Module) -> dict[str, float]:
        loss, accuracy = finetune_bert.evaluate(model, held_out)
        return {"test_loss": loss, "test_accuracy": accuracy}

    files = [arguments.data / name for name in ("train.tsv", "dev.tsv")] if arguments.data else []
    files += [arguments.weights / "model.safetensors"] if arguments.weights else []
    about = {
        "data": "sst2" if arguments.data else "generated",
        # The weights' with it.
        "data_hash": _digest(*[file.read_bytes() for file in files]) if files else None,
        "pretrained": arguments.weights is not None,
        "training_samples": len(training.tokens),
        "test_samples": len(held_out.tokens),
        **{"batch": batch, "optimizer": "adamw", "rate": rate, "schedule": "linear"},
    }
    loss = lambda model, inputs: model(**inputs).loss  # noqa: E731
    return Job(model, inputs, loss, evaluate, optimizer, schedule, about)


def character_gpt(vocabulary: int, length: int, width: int = 128, depth: int = 4) -> GPT:
    """nanoGPT's: no biases, the head has the weights of the tokens, a deviation of 0.02 that is
    smaller where a sum over layers is written to."""
    model = GPT(vocabulary, length, width, depth, heads=4)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.LayerNorm):
            module.bias = None
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
    for module in model.modules():
        last = {Attention: lambda m: m.out, FeedForward: lambda m: m.body[3]}.get(type(module))
        if last is not None:
            nn.init.normal_(last(module).weight, std=0.02 / math.sqrt(2 * depth))
    model.head.weight = model.tokens.weight
    return model


def shakespeare(arguments: argparse.Namespace, setting: Setting, seed: int) -> Job:
    length, batch, rate, last_rate, warmup = 64, 12, 1e-3, 1e-4, 100
    text = arguments.data.read_text() if arguments.data else generated_text(20_000)
    symbols = {c: i for i, c in enumerate(sorted(set(text)))}
    data = torch.tensor([symbols[c] for c in text])
    training, held_out = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]
    model = character_gpt(len(symbols), length)
    if setting.checkpointing:
        checkpoint_blocks(model)
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.99))

    def share(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        place = min(1.0, (step - warmup) / max(1, arguments.steps - warmup))
        return (last_rate + 0.5 * (1 + math.cos(math.pi * place)) * (rate - last_rate)) / rate

    def rows(source: torch.Tensor, starts: torch.Tensor) -> dict:
        chosen = torch.stack([source[s : s + length + 1] for s in starts.tolist()])
        return {"tokens": chosen[:, :-1].contiguous(), "targets": chosen[:, 1:].contiguous()}

    def inputs(step: int, rank: int, ranks: int) -> dict:
        generator = torch.Generator().manual_seed(sg.derive_seed(seed, step))
        starts = torch.randint(len(training) - length, (batch,), generator=generator)
        return rows(training, starts[rank::ranks])

    def evaluate(model: nn.Module) -> dict[str, float]:
        starts = torch.arange(0, len(held_out) - length, length)
        total = 0.0
        with torch.no_grad():
            for some in starts.split(64):
                total += model(**rows(held_out, some)).item() * len(some)
        return {"test_loss": total / len(starts)}

    about = {
        "data": "text" if arguments.data else "generated",
        "data_hash": _digest(text.encode()),
        "sample": "window",
        "training_samples": len(training) // length,
        "test_samples": (len(held_out) - 1) // length,
        **{"batch": batch, "optimizer": "adamw", "rate": rate, "schedule": "warm-up, cosine"},
    }
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    loss = lambda model, inputs: model(**inputs)  # noqa: E731
    return Job(model, inputs, loss, evaluate, optimizer, schedule, about, max_norm=1.0)


JOBS = {"finetune": finetune, "shakespeare": shakespeare}
STEPS = {"finetune": finetune_bert.STEPS, "shakespeare": 2000}


# ---- a run ---------------------------------------------------------------------------------------


class Run:
    """One setting of a job with one seed, on this rank."""

    def __init__(self, arguments: argparse.Namespace, name: str, seed: int, rank: int = 0):
        self.setting, self.rank = SETTINGS[name], rank
        self.ranks = self.setting.ranks
        torch.manual_seed(seed)
        self.job = JOBS[arguments.job](arguments, self.setting, seed)
        self.model: nn.Module = self.job.model
        self.controller = self.exchange = None
        if self.setting.compress:
            self.controller = sg.compress(self.model, seed=seed, **self.setting.compress)
        if self.ranks > 1:
            self.model = nn.parallel.DistributedDataParallel(self.model)
            torch.manual_seed(sg.derive_seed(seed, rank))  # for dropout
        if self.setting.codec:
            codec = sg.distributed.Codec.parse(self.setting.codec, seed=seed)
            self.exchange = sg.distributed.register(self.model, codec)
        self.model.train()
        self.step, self.rate, self.losses, self.lines, self.resumed = 0, 0.0, [], [], 0
        self.config = {
            "command": f"python -m bench.jobs {arguments.job} --setting {name} --seed {seed}",
            **{"commit": commit(), "torch": str(torch.__version__)},
            **self.job.about,
            **{"checkpointing": self.setting.checkpointing, "lora": self.setting.lora},
            **{"ranks": self.ranks, "codec": self.setting.codec or "none"},
            **{"steps": arguments.steps, "seed": seed, "threads": torch.get_num_threads()},
        }

    def take_step(self) -> None:
        job = self.job
        job.optimizer.zero_grad()
        loss = job.loss(self.model, job.inputs(self.step, self.rank, self.ranks))
        loss.backward()
        if math.isfinite(job.max_norm):
            nn.utils.clip_grad_norm_(self.model.parameters(), job.max_norm)
        job.optimizer.step()
        self.rate = job.schedule.get_last_lr()[0]
        job.schedule.step()
        self.step += 1
        self.losses.append(loss.item())

    def log(self) -> None:
        """An epoch line, with layers lines where gradients are compressed."""
        loss = torch.tensor(statistics.mean(self.losses), dtype=torch.float64)
        if self.ranks > 1:
            dist.all_reduce(loss)
        metrics = {"rate": self.rate, "loss": loss.item() / self.ranks}
        metrics |= self.job.evaluate(self.job.model)
        self.losses = []
        written = io.StringIO()
        if self.controller is not None:
            self.controller.log(written, self.step, **metrics)
        else:
            sg.log_run(self.job.model, written, self.step, **metrics)
        found = [json.loads(line) for line in written.getvalue().splitlines()]
        if self.lines:
            found = [line for line in found if line["kind"] != "config"]
        else:
            found[0] |= self.config
        self.lines += found

    def end_line(self) -> dict:
        last = next(line for line in reversed(self.lines) if line["kind"] == "epoch")
        saved = sg.saved_bytes(self.job.model, self.job.inputs(0, 0, 1))
        state = self.job.model.state_dict().values()
        return {
            **{"kind": "end", "run": 1, "steps": self.step},
            **{name: last[name] for name in ("test_accuracy", "test_loss") if name in last},
            **{"plain_saved_bytes": saved.plain, "saved_bytes": saved.total},
            **({"sent_bytes": self.exchange.sent_bytes} if self.exchange is not None else {}),
            "resumed": self.resumed,
            "weights": _digest(*[tensor.cpu().numpy().tobytes() for tensor in state]),
        }

    def state_dict(self) -> dict:
        """All ranks must call it. `own`: what every rank has for itself."""
        own = {"generator": torch.get_rng_state(), "losses": self.losses}
        if self.controller is not None:
            own["compression"] = self.controller.state_dict()
        if self.exchange is not None:
            own["exchange"] = self.exchange.state_dict(own=True)
            own["sent_bytes"] = self.exchange.sent_bytes
        everyone = [own]
        if self.ranks > 1:
            everyone = [None] * self.ranks
            dist.all_gather_object(everyone, own)
        return {
            **{"config": self.config, "step": self.step, "lines": self.lines},
            **{"own": everyone, "resumed": self.resumed},
            "model": self.job.model.state_dict(),
            "optimizer": self.job.optimizer.state_dict(),
            "schedule": self.job.schedule.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        ours, theirs = ({**c, "commit": None} for c in (self.config, state["config"]))
        if ours != theirs:
            differ = [name for name in ours if ours[name] != theirs.get(name)]
            raise SystemExit(f"jobs: expected the checkpoint of this run, got another {differ}")
        self.config = state["config"]
        self.step, self.lines, self.resumed = state["step"], state["lines"], state["resumed"] + 1
        self.job.model.load_state_dict(state["model"])
        self.job.optimizer.load_state_dict(state["optimizer"])
        self.job.schedule.load_state_dict(state["schedule"])
        own = state["own"][self.rank]
        self.losses = own["losses"]
        if self.controller is not None:
            self.controller.load_state_dict(own["compression"])
        if self.exchange is not None:
            self.exchange.load_state_dict(own["exchange"])
            self.exchange.sent_bytes = own["sent_bytes"]
        torch.set_rng_state(own["generator"])


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Whoever is interrupted leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    write(beside)
    os.replace(beside, path)


def train(arguments: argparse.Namespace, name: str, seed: int, record: Path, rank: int = 0) -> None:
    """Writes the record when the run has ended; until then its lines are in the checkpoint."""
    checkpoint = arguments.checkpoints / arguments.job / f"{record.stem}.pt"
    run = Run(arguments, name, seed, rank)
    if checkpoint.exists():
        run.load_state_dict(torch.load(checkpoint, weights_only=True))
    while run.step < arguments.steps:
        run.take_step()
        is_last = run.step == arguments.steps
        if is_last or run.step % arguments.log_every == 0:
            run.log()
        if is_last or run.step % arguments.save_every == 0:
            state = run.state_dict()
            if rank == 0:
                _replace(checkpoint, lambda path: torch.save(state, path))  # noqa: B023
    end = run.end_line()
    if rank == 0:
        text = "".join(json.dumps(line) + "\n" for line in [*run.lines, end])
        _replace(record, lambda path: path.write_text(text))
        checkpoint.unlink()


def _rank(rank: int, store: str, arguments: argparse.Namespace, *run) -> None:
    # With which mp.spawn ends ranks whose parent has gone. A shell's background jobs ignore it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(arguments.threads)
    ranks = SETTINGS[run[0]].ranks
    dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    train(arguments, *run, rank)
    dist.barrier()
    dist.destroy_process_group()


def runs_of(arguments: argparse.Namespace) -> list[tuple[str, int]]:
    """Settings and seeds, in the order in which they are trained: baselines, then seed by seed."""
    chosen = {
        name: setting
        for name, setting in SETTINGS.items()
        if name in (arguments.setting or SETTINGS)
        and not (setting.lora and arguments.job == "shakespeare")
        and (setting.is_baseline or not arguments.baselines)
    }
    wanted = arguments.seed or SEEDS
    found = [(name, seed) for name, setting in chosen.items() for seed in setting.seeds]
    found = [(name, seed) for name, seed in found if seed in wanted]
    baselines = [run for run in found if SETTINGS[run[0]].is_baseline]
    return baselines + sorted((r for r in found if r not in baselines), key=lambda run: run[1])


def train_missing(arguments: argparse.Namespace) -> None:
    for name, seed in runs_of(arguments):
        record = arguments.out / arguments.job / f"{name}_seed{seed}.jsonl"
        if record.exists():  # It is written at the end.
            print(f"{record.stem}: done before", flush=True)
            continue
        print(f"{record.stem}: begins or goes on", flush=True)
        if SETTINGS[name].ranks == 1:
            train(arguments, name, seed, record)
        else:
            with tempfile.TemporaryDirectory() as folder:
                more = (f"{folder}/store", arguments, name, seed, record)
                mp.spawn(_rank, more, nprocs=SETTINGS[name].ranks)
        print(f"{record.stem}: {record.read_text().splitlines()[-1]}", flush=True)


# ---- time and memory -----------------------------------------------------------------------------


class Measured:
    """A run whose steps all have the batch of the first, for bench.saved_memory.measure."""

    def __init__(self, arguments: argparse.Namespace, name: str):
        self.run = Run(arguments, name, SEEDS[0])
        batch = self.run.job.inputs(0, 0, 1)
        self.run.job.inputs = lambda *_: batch

    def step(self) -> None:
        self.run.take_step()

    def loss(self) -> torch.Tensor:
        return self.run.job.loss(self.run.model, self.run.job.inputs(0, 0, 1))

    def bytes_saved(self) -> int:
        return sg.saved_bytes(self.run.model, self.run.job.inputs(0, 0, 1)).total


def measure_setting(arguments: argparse.Namespace, name: str) -> dict:
    """milliseconds and ratio, to plain training's, of a step; what bench.saved_memory.measure
    finds, in MiB, in a process of its own."""
    command = [sys.executable, "-m", "bench.jobs", *arguments.words, "--memory-of", name]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **THRESHOLD}
    )
    names = dict.fromkeys(["plain", name])
    steps = {each: Measured(arguments, each).step for each in names}
    (*_, row) = race("jobs", arguments.job, "plain", steps, arguments.seconds)
    times = {"milliseconds": row.milliseconds, "ratio": row.ratio}
    found = {"job": arguments.job, "setting": name, "commit": commit(), **times}
    return found | json.loads(done.stdout.splitlines()[-1])


def measure_all(arguments: argparse.Namespace) -> None:
    """Adds a row for every setting that runs in one process, or replaces it."""
    rows = json.loads(arguments.measure.read_text())["rows"] if arguments.measure.exists() else []
    for name in dict.fromkeys(name for name, _ in runs_of(arguments)):
        if SETTINGS[name].ranks > 1:
            continue
        rows = [row for row in rows if (row["job"], row["setting"]) != (arguments.job, name)]
        rows.append(measure_setting(arguments, name))
        command = f"python -m bench.jobs JOB --data DATA --measure {arguments.measure}"
        write_json(arguments.measure, command, rows, line_each=True)


def arguments_of(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.jobs")
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--data", type=Path, help="finetune: a folder; shakespeare: a text file")
    parser.add_argument("--weights", type=Path, help="finetune: a folder of a pretrained BERT")
    parser.add_argument("--setting", action="append", choices=SETTINGS, help="default: all")
    parser.add_argument("--seed", action="append", type=int, choices=SEEDS, help="default: all")
    parser.add_argument("--baselines", action="store_true", help="only runs without slimgrad")
    parser.add_argument("--list", action="store_true", help="print the names of the runs")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--log-every", type=int, default=250, help="steps between evaluations")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/runs"))
    parser.add_argument("--checkpoints", type=Path, default=Path("build/checkpoints"))
    parser.add_argument("--measure", type=Path, help="measure time and memory into this file")
    parser.add_argument("--seconds", type=float, default=60, help="that --measure races")
    parser.add_argument("--memory-of", choices=SETTINGS, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    arguments.steps = arguments.steps or STEPS[arguments.job]
    arguments.words = words
    return arguments


def main(words: list[str]) -> None:
    arguments = arguments_of(words)
    torch.set_num_threads(arguments.threads)
    if arguments.list:
        print(*(f"{name}_seed{seed}" for name, seed in runs_of(arguments)), sep="\n")
    elif arguments.memory_of:
        print(json.dumps(measure(Measured(arguments, arguments.memory_of))))
    elif arguments.measure:
        measure_all(arguments)
    else:
        train_missing(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
