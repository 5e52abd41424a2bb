"""What do language models bear? A small T5 and a small BERT, 60 steps, with compressed gradients.

    python -m bench.language_models --out results/language_models.json

Both come from transformers with random weights and learn a generated task: the T5 to write the
words of its input in reverse order, the BERT to translate every word by a dictionary; both have a
head over a vocabulary of 1,000, of which 58 words occur. Every run of a seed starts from the same
weights and sees the same batches. Recorded: the mean loss over the last five steps, the zeros and
the least cosine over layers of the last step, and how many sentences
controller.warnings() has, with the first. Nothing is timed.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch

VOCABULARY = 1000
WORDS = 60  # that occur in the texts: the rest of the vocabulary is there for the softmax
STEPS = 60


def t5(generator: torch.Generator):
    import transformers

    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=64,
        d_kv=16,
        d_ff=256,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        dropout_rate=0.0,
    )
    words = torch.randint(2, WORDS, (64, 8), generator=generator)

    def batch():
        rows = words[torch.randint(len(words), (32,), generator=generator)]
        return {"input_ids": rows, "labels": rows.flip(1)}

    return transformers.T5ForConditionalGeneration(config), batch, "lm_head"


def bert(generator: torch.Generator):
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    dictionary = torch.randperm(VOCABULARY, generator=generator)

    def batch():
        rows = torch.randint(2, WORDS, (32, 16), generator=generator)
        return {"input_ids": rows, "labels": dictionary[rows]}

    return transformers.BertForMaskedLM(config), batch, "cls"


MODELS = {"t5": t5, "bert": bert}
LEARNING_RATE = {"t5": 3e-3, "bert": 1.5e-3}


def settings_of(head: str) -> dict[str, tuple]:
    """By name: what compress() is given."""
    import slimgrad as sg

    without = {"exclude": head}
    return {
        "plain": (None, {}),
        "fp8": ("fp8", {}),
        "fp6": ("fp6", {}),
        "fp4": ("fp4", {}),
        "Prune(0.85)": (sg.Prune(0.85), {}),
        "Prune(0.85), min_cosine": (sg.Prune(0.85, allocation="min_cosine"), {}),
        "Prune(0.85), head at cosine 0.95": (
            sg.Prune(0.85, allocation="targets", targets={head: 0.95}),
            {},
        ),
        "Prune(0.85), head excluded": (sg.Prune(0.85), without),
        "Prune(0.85), head excluded, min_cosine": (
            sg.Prune(0.85, allocation="min_cosine"),
            without,
        ),
        "Prune(weight=0.85, input=0)": (
            sg.Prune(weight=0.85, input=0, sparse_backward="always"),
            {},
        ),
        "Prune(0.7), min_cosine": (sg.Prune(0.7, allocation="min_cosine"), {}),
        "Prune(0.5)": (sg.Prune(0.5), {}),
        "Prune(0.5), head excluded": (sg.Prune(0.5), without),
    }


def train(name: str, setting: str, seed: int, steps: int) -> dict:
    import slimgrad as sg

    torch.manual_seed(seed)
    model, batch, head = MODELS[name](torch.Generator().manual_seed(seed))
    gradients, options = settings_of(head)[setting]
    controller = None
    if gradients is not None:
        controller = sg.compress(model, gradients, min_elements=1, seed=seed, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE[name])
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(**batch()).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    run = {"first": losses[0], "last": statistics.mean(losses[-5:])}
    if controller is not None:
        rows = {n: row for n, row in controller.report().items() if row["compressed"]}
        elements = sum(row["elements"] for row in rows.values())
        worst = min(rows, key=lambda n: rows[n]["cosine"])
        run["zeros"] = sum(r["sparsity"] * r["elements"] for r in rows.values()) / elements
        run["worst_layer"], run["worst_cosine"] = worst, rows[worst]["cosine"]
        warnings = controller.warnings()
        run["warnings"], run["first_warning"] = len(warnings), (warnings or [""])[0]
    return run


def print_table(rows: list[dict]) -> None:
    """Markdown: mean and range of the last losses over seeds."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    cells = {(row["model"], row["setting"]): row["runs"] for row in rows}
    heads = " | ".join(f"{m}: loss | zeros | least cosine | warnings" for m in models)
    print(f"| gradients | {heads} |\n|---|" + "---|---|---|---|" * len(models))
    for setting in settings:
        line = f"| {setting} |"
        for model in models:
            runs = cells[model, setting]
            last = [run["last"] for run in runs]
            line += f" {statistics.mean(last):.2f} ({min(last):.2f} to {max(last):.2f}) |"
            if "zeros" in runs[0]:
                zeros = statistics.mean(run["zeros"] for run in runs)
                worst = min(runs, key=lambda run: run["worst_cosine"])
                warned = statistics.mean(run["warnings"] for run in runs)
                line += f" {zeros:.2f} | {worst['worst_cosine']:.2f} | {warned:.0f} |"
            else:
                line += " | | |"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.language_models")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for model in arguments.models:
        for setting in settings_of(""):
            seeds = range(arguments.seeds)
            runs = [train(model, setting, seed, arguments.steps) for seed in seeds]
            rows.append({"model": model, "setting": setting, "runs": runs})
    if arguments.out:
        record = {
            "command": f"python -m bench.language_models --steps {arguments.steps} "
            f"--seeds {arguments.seeds} --out {arguments.out}",
            "torch": torch.__version__,
            "rows": rows,
        }
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    print_table(rows)


if __name__ == "__main__":
    main()
