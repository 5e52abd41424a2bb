"""Fine-tunes a BERT to tell positive sentences from negative ones, in less memory:

    python examples/finetune_bert.py --data SST2 --weights MODEL --saved 4 --activations 3
    python examples/finetune_bert.py --saved 4 --checkpoint run.pt  # started again it resumes
    torchrun --nproc-per-node 2 examples/finetune_bert.py --saved 4 --checkpoint run.pt

SST2 is a folder with the files train.tsv and dev.tsv of GLUE's SST-2, MODEL one that
save_pretrained() of transformers wrote, with its tokenizer. Without them the example trains a small
BERT with random weights on generated sentences, so that nothing is downloaded.
"""

import argparse
import os
import random
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from torch.nn.parallel import DistributedDataParallel

import slimgrad as sg

RATE, BATCH, STEPS = 5e-5, 32, 1000
MAX_TOKENS = 128  # Longer sentences are cut; SST-2 has none.
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MOODS = [["bad", "dull", "weak", "bland"], ["good", "fresh", "strong", "warm"]]
OTHERS = ["a", "the", "film", "plot", "cast", "is", "and", "with", "its", "of", "story", "very"]


@dataclass
class Sentences:
    """Tokens of each sentence, and its label: 1 if it is positive, 0 if negative."""

    tokens: list[list[int]]
    labels: torch.Tensor

    def batch(self, rows: list[int]) -> dict[str, torch.Tensor]:
        """What the model is called with, padded to the longest of these sentences."""
        chosen = [torch.tensor(self.tokens[row]) for row in rows]
        pad = torch.nn.utils.rnn.pad_sequence
        return {
            "input_ids": pad(chosen, batch_first=True),  # [PAD] is token 0
            "attention_mask": pad([torch.ones_like(row) for row in chosen], batch_first=True),
            "labels": self.labels[rows],
        }


def read_tsv(path: Path) -> tuple[list[str], list[int]]:
    """Sentences and labels of a file of SST-2, whose first line names the columns."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    pairs = [line.rsplit("\t", 1) for line in lines]
    return [sentence for sentence, _ in pairs], [int(label) for _, label in pairs]


def generated(count: int, seed: int) -> tuple[list[str], list[int]]:
    """Sentences of random words, three of them of the mood that the label says."""
    source = random.Random(seed)
    labels = [source.randrange(2) for _ in range(count)]
    sentences = []
    for label in labels:
        words = source.choices(OTHERS, k=source.randint(4, 12)) + source.choices(MOODS[label], k=3)
        sentences.append(" ".join(source.sample(words, len(words))))
    return sentences, labels


def load(weights: Path | None):
    """Tokenizer and model; the classifier's own weights are random in any case."""
    if weights is not None:
        auto = transformers.AutoModelForSequenceClassification
        model = auto.from_pretrained(weights, num_labels=2)
        return transformers.AutoTokenizer.from_pretrained(weights), model
    words = [*SPECIAL, *MOODS[0], *MOODS[1], *OTHERS]
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=MAX_TOKENS,
    )
    tokenizer = transformers.BertTokenizer(vocab={word: i for i, word in enumerate(words)})
    return tokenizer, transformers.BertForSequenceClassification(config)


def prepare(data: Path | None, tokenizer) -> tuple[Sentences, Sentences]:
    """For training and for evaluation."""
    if data is None:
        texts = [generated(2000, seed=1), generated(200, seed=2)]
    else:
        texts = [read_tsv(data / "train.tsv"), read_tsv(data / "dev.tsv")]
    return tuple(
        Sentences(
            tokenizer(sentences, truncation=True, max_length=MAX_TOKENS)["input_ids"],
            torch.tensor(labels),
        )
        for sentences, labels in texts
    )


def rows_of(step: int, count: int, seed: int, batch: int = BATCH) -> list[int]:
    """Of a step, from 0: each epoch is another permutation of all sentences. They follow from seed
    and step, so that a resumed run needs no state of the data."""
    epoch, place = divmod(step, count // batch)
    generator = torch.Generator().manual_seed(sg.derive_seed(seed, epoch))
    order = torch.randperm(count, generator=generator)
    return order[place * batch : (place + 1) * batch].tolist()


def optimizer_of(model: torch.nn.Module, steps: int, rate: float = RATE):
    """AdamW, and a learning rate that falls to 0 along a line."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate)
    return optimizer, torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)


def evaluate(model: torch.nn.Module, sentences: Sentences) -> tuple[float, float]:
    """Mean loss and accuracy."""
    was_training = model.training
    model.eval()
    # Sentences of the same length together, so that little is padded.
    order = sorted(range(len(sentences.tokens)), key=lambda row: len(sentences.tokens[row]))
    loss, right = 0.0, 0
    with torch.no_grad():
        for begin in range(0, len(order), 64):
            batch = sentences.batch(order[begin : begin + 64])
            found = model(**batch)
            loss += found.loss.item() * len(batch["labels"])
            right += (found.logits.argmax(1) == batch["labels"]).sum().item()
    model.train(was_training)
    return loss / len(order), right / len(order)


def save(path: Path, step: int, shared: dict, own: dict) -> None:
    """Rank 0 writes one file, which appears when it is complete: the state of what all ranks share,
    and of each rank what is its own, with that of the generator that dropout draws from."""
    mine = {name: part.state_dict() for name, part in own.items()}
    mine["generator"] = torch.get_rng_state()
    ranks = [mine]
    if dist.is_initialized():
        ranks = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(mine, ranks)
    if ranks is not None:
        state = {name: part.state_dict() for name, part in shared.items()}
        unfinished = path.with_name(f"{path.name}.part")
        torch.save(state | {"step": step, "ranks": ranks}, unfinished)
        unfinished.replace(path)


def load_state(path: Path, rank: int, shared: dict, own: dict) -> int:
    """Returns the step to continue at. Ranks that the run did not have take the state of rank 0."""
    state = torch.load(path, weights_only=True)
    for name, part in shared.items():
        part.load_state_dict(state[name])
    is_new = rank >= len(state["ranks"])
    mine = state["ranks"][0 if is_new else rank]
    for name in own.keys() & mine.keys():
        own[name].load_state_dict(mine[name])
    if not is_new:
        torch.set_rng_state(mine["generator"])
    return state["step"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a folder with train.tsv and dev.tsv of SST-2")
    parser.add_argument("--weights", type=Path, help="a folder of a pretrained BERT")
    parser.add_argument("--steps", type=int, default=STEPS, help="in all, also when resumed")
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--saved", help="bits of what autograd saves: 8, 4, 2 or exact")
    parser.add_argument("--activations", help="bits that activations save: 1 to 4 or exact")
    parser.add_argument("--gradients", help="fp8, fp6 or fp4")
    parser.add_argument("--checkpoint", type=Path, help="a file to save to, and to resume from")
    parser.add_argument("--save-every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--codec", default="uniform8", help="of gradients between processes")
    arguments = parser.parse_args()

    ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if ranks > 1:  # torchrun started it
        dist.init_process_group("gloo")
    torch.manual_seed(arguments.seed)
    tokenizer, model = load(arguments.weights)
    training, held_out = prepare(arguments.data, tokenizer)
    bits = {
        name: int(value) if value.isdigit() else value
        for name in ("saved", "activations")
        if (value := getattr(arguments, name)) is not None
    }
    own, trained = {}, model
    if bits or arguments.gradients:
        own["compression"] = sg.compress(model, arguments.gradients, seed=arguments.seed, **bits)
    if ranks > 1:  # after compress(); in one bucket, so that a resumed run draws the same numbers
        trained = DistributedDataParallel(model, bucket_cap_mb=1000)
        own["exchange"] = sg.distributed.register(trained, arguments.codec)
        torch.manual_seed(sg.derive_seed(arguments.seed, rank))  # of dropout
    optimizer, schedule = optimizer_of(model, arguments.steps, arguments.rate)
    shared = {"model": model, "optimizer": optimizer, "schedule": schedule}
    path, start = arguments.checkpoint, 0
    if path and path.exists():
        start = load_state(path, rank, shared, own)
        print(f"rank {rank} continues at step {start}")
    model.train()
    for step in range(start, arguments.steps):
        rows = rows_of(step, len(training.tokens), arguments.seed)
        batch = training.batch(rows[rank::ranks])  # ranks share a batch
        optimizer.zero_grad()
        loss = trained(**batch).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        if rank == 0 and (step % 100 == 0 or step == arguments.steps - 1):
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
        if path and (step + 1) % arguments.save_every == 0:
            save(path, step + 1, shared, own)
    if ranks > 1:
        dist.destroy_process_group()
    if rank > 0:
        return
    saved = sg.saved_bytes(model, training.batch(list(range(BATCH))))
    print(f"{saved.total / 2**20:.1f} MiB saved by autograd for a batch of {BATCH}", end="")
    print(f", {saved.plain / 2**20:.1f} MiB without compression")
    loss, accuracy = evaluate(model, held_out)
    print(f"held out: loss {loss:.3f}, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
