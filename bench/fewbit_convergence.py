"""Does training with few-bit activations reach the same loss? A small transformer and a small CNN.

    python -m bench.fewbit_convergence --out results/fewbit_convergence.json [--data TEXT]

Every run of a model starts from the same weights and sees the same batches for a seed; only what
the activations keep differs: torch's own, 1 to 4 bits, and exact. The loss reported is the mean
over the last tenth of the steps, then mean and standard deviation over seeds. Without --data the
text is generated: sentences of a small random grammar, so that there is something to learn.
"""

import argparse
import json
import random
import statistics
import sys
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
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        wide = 4 * width
        self.mlp = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
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


def image_task(_: str, seed: int):
    """Ten classes of noisy random patterns, moved about."""
    patterns = torch.randn(10, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)

    def batch():
        labels = torch.randint(10, (64,), generator=generator)
        shift = torch.randint(-2, 3, (2,), generator=generator).tolist()
        images = patterns[labels].roll(shift, (2, 3))
        return images + 2 * torch.randn(images.shape, generator=generator), labels

    def loss(model, images, labels):
        return nn.functional.cross_entropy(model(images), labels)

    layers = []
    for inputs, outputs in [(3, 16), (16, 32), (32, 32)]:
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.SiLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10))
    return model, batch, loss


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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fewbit_convergence")
    parser.add_argument("--data", type=Path, help="a text file")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    text = arguments.data.read_text() if arguments.data else generated_text()
    rows = []
    for name, task in [("transformer", text_task), ("cnn", image_task)]:
        for mode in MODES:
            losses = [
                train(task, text, mode, seed, arguments.steps) for seed in range(arguments.seeds)
            ]
            spread = statistics.stdev(losses) if len(losses) > 1 else 0.0
            rows.append({"model": name, "bits": mode, "losses": losses})
            mean = statistics.mean(losses)
            print(f"{name:<12} {mode!s:>6}  {mean:.4f} +- {spread:.4f}", flush=True)
    if arguments.out:
        command = "python -m bench.fewbit_convergence " + " ".join(sys.argv[1:])
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        record = {"command": command, "torch": torch.__version__, "rows": rows}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
