"""Does training with few-bit activations reach the same loss? A small GPT, CNN and BERT.

    python -m bench.fewbit_convergence --out results/fewbit_convergence.json [--data TEXT]

Every run of a model starts from the same weights and sees the same batches for a seed; only what
the activations keep differs: torch's own, 1 to 4 bits, and exact. The loss reported is the mean
over the last tenth of the steps, then mean and standard deviation over seeds; beside it the
difference from torch's run with the same seed. Without --data the text is generated: sentences of a
small random grammar, so that there is something to learn. What is already in --out is not run
again, so a long run can be stopped, or cut up with --limit.
"""

import argparse
import json
import random
import statistics
from pathlib import Path

import torch
from torch import nn

MODES = ["torch", 1, 2, 3, 4, "exact"]


def generated_text(num_chars: int = 200_000) -> str:
    source = random.Random(0)
    letters = "abcdefghijklmnop"
    words = ["".join(source.choices(letters, k=source.randint(2, 7))) for _ in range(200)]
    follows = {word: source.choices(words, k=4) for word in words}
    text, word = [], words[0]
    while len(text) < num_chars // 3:  # words have more than three characters with their space
        text.append(word)
        word = source.choice(follows[word])
    return " ".join(text)[:num_chars]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, looks_ahead: bool = False):
        super().__init__()
        self.looks_ahead = looks_ahead
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        wide = 4 * width
        self.mlp = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=not self.looks_ahead)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_mlp(x))


class Transformer(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int = 64, layers: int = 2):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, 4) for _ in range(layers)])
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.blocks(x))


def text_task(text: str, seed: int):
    symbols = sorted(set(text))
    data = torch.tensor([symbols.index(c) for c in text])
    length = 64
    generator = torch.Generator().manual_seed(seed)

    def batch():
        start = torch.randint(len(data) - length - 1, (16,), generator=generator)
        rows = torch.stack([data[s : s + length + 1] for s in start])
        return rows[:, :-1], rows[:, 1:]

    def loss(model, inputs, targets):
        return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    return Transformer(len(symbols), length), batch, loss


def pattern_batches(patterns: torch.Tensor, seed: int, count: int, shift: int, noise: float):
    """What draws a batch: noisy patterns, a class each, moved about; and the loss."""
    generator = torch.Generator().manual_seed(seed)

    def batch():
        labels = torch.randint(len(patterns), (count,), generator=generator)
        moved = torch.randint(-shift, shift + 1, (2,), generator=generator).tolist()
        images = patterns[labels].roll(moved, (2, 3))
        return images + noise * torch.randn(images.shape, generator=generator), labels

    def loss(model, images, labels):
        return nn.functional.cross_entropy(model(images), labels)

    return batch, loss


def image_task(_: str, seed: int):
    """Ten classes of noisy random patterns, moved about."""
    patterns = torch.randn(10, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    batch, loss = pattern_batches(patterns, seed, 64, 2, 2.0)
    layers = []
    for inputs, outputs in [(3, 16), (16, 32), (32, 32)]:
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.SiLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10))
    return model, batch, loss


class Classifier(nn.Module):
    """Like BERT: every word sees every other, and the first place names the class."""

    def __init__(self, words: int, length: int, classes: int, width: int = 64, layers: int = 2):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, 4, looks_ahead=True) for _ in range(layers)])
        self.pooler = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.head = nn.Linear(width, classes)

    def forward(self, words):
        x = self.blocks(self.words(words) + self.places(torch.arange(words.shape[1])))
        return self.head(self.pooler(x[:, 0]))


def sentence_task(_: str, seed: int):
    """Twenty classes of sentences, each with its own frequencies of words. 32 words of one sentence
    say which class it is, but not for certain."""
    words, classes, length = 64, 20, 32
    habits = torch.randn(classes, words, generator=torch.Generator().manual_seed(0))
    frequencies = (0.5 * habits).softmax(1)
    generator = torch.Generator().manual_seed(seed)

    def batch():
        labels = torch.randint(classes, (32,), generator=generator)
        chances = frequencies[labels]
        return torch.multinomial(chances, length, replacement=True, generator=generator), labels

    def loss(model, sentences, labels):
        return nn.functional.cross_entropy(model(sentences), labels)

    return Classifier(words, length, classes), batch, loss


TASKS = {"transformer": text_task, "cnn": image_task, "classifier": sentence_task}


def train(task, text: str, mode, seed: int, steps: int) -> float:
    import slimgrad as sg

    torch.manual_seed(seed)
    model, batch, loss_of = task(text, seed)
    if mode != "torch":
        sg.nn.convert_activations(model, mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, *batch())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return statistics.mean(losses[-max(1, steps // 10) :])


def spread(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.4f} +- {deviation:.4f}"


def print_table(rows: list[dict]) -> None:
    print(f"{'model':<12} {'bits':>6}  {'final loss':<17}  less torch's, by seed")
    torchs = {row["model"]: row["losses"] for row in rows if row["bits"] == "torch"}
    for row in rows:
        line = f"{row['model']:<12} {row['bits']!s:>6}  {spread(row['losses'])}"
        if row["bits"] != "torch":
            pairs = zip(row["losses"], torchs[row["model"]], strict=True)
            line += "  " + spread([ours - theirs for ours, theirs in pairs])
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fewbit_convergence")
    parser.add_argument("--data", type=Path, help="a text file")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--limit", type=int, help="stop after this many new rows of the table")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # so small a network gains nothing from a second one
    text = arguments.data.read_text() if arguments.data else generated_text()
    record = {
        "command": "python -m bench.fewbit_convergence "
        f"--steps {arguments.steps} --seeds {arguments.seeds} --out {arguments.out}",
        "text": arguments.data.name if arguments.data else "generated",
        "torch": torch.__version__,
        "rows": [],
    }
    if arguments.out and arguments.out.exists():
        before = json.loads(arguments.out.read_text())
        if any(before[key] != record[key] for key in ("command", "text", "torch")):
            parser.error(f"{arguments.out} holds the rows of another command: {before['command']}")
        record = before
    wanted = [(model, mode) for model in TASKS for mode in MODES]
    done = {(row["model"], row["bits"]) for row in record["rows"]}
    missing = [key for key in wanted if key not in done]
    for model, mode in missing[: arguments.limit]:
        seeds = range(arguments.seeds)
        losses = [train(TASKS[model], text, mode, seed, arguments.steps) for seed in seeds]
        record["rows"].append({"model": model, "bits": mode, "losses": losses})
        if arguments.out:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    print_table(record["rows"])


if __name__ == "__main__":
    main()
