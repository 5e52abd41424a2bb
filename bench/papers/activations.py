"""Activations that keep few bits: the error of step functions, and training with them."""

from __future__ import annotations

import json
import statistics

import slimgrad as sg

from .records import ROOT, Records, table

# The few-bit paper's errors, uniform on [-10, 10], 1 to 4 bits.
PAPER = {
    "gelu": (0.1410, 0.0406, 0.0119, 0.0031),
    "silu": (0.2150, 0.0479, 0.0170, 0.0045),
    "sigmoid": (0.0181, 0.0038, 0.0009, 0.0002),
    "tanh": (0.1584, 0.0319, 0.0073, 0.0017),
    "selu": (0.2554, 0.1010, 0.0184, 0.0039),
    "softplus": (0.2902, 0.0541, 0.0121, 0.0029),
}
KEPT = ("torch", "1", "2", "3", "4", "exact")


def _errors() -> str:
    rows = []
    for name, printed in PAPER.items():
        found = [sg.steps(name, bits=bits).error for bits in range(1, 5)]
        rows.append([name, *(f"{f:.4f} / {p:.4f}" for f, p in zip(found, printed, strict=True))])
    return table(["", "1 bit", "2 bits", "3 bits", "4 bits"], rows)


def _classifier() -> dict[str, list[float]]:
    """Last losses by what was kept, a number a seed, as bench.fewbit_convergence recorded them."""
    rows = json.loads((ROOT / "results" / "fewbit_convergence.json").read_text())["rows"]
    return {str(row["bits"]): row["losses"] for row in rows if row["model"] == "classifier"}


def section(records: Records) -> str:
    rows = []
    classifier = _classifier()
    for kept in KEPT:
        gpt, cnn = f"gpt_activations_{kept}", f"cnn_activations_{kept}"
        bits = {"torch": "32 (torch)", "exact": "exact, 1 and the output"}.get(kept, kept)
        rows.append(
            [
                bits,
                f"{records[gpt].result('test_loss'):.4f}" if gpt in records else "not trained yet",
                f"{records.accuracy(cnn):.1f} %" if cnn in records else "not trained yet",
                _mean(classifier.get(kept)),
            ]
        )
    text = [
        "### Few bits of an activation",
        "The few-bit paper. Least errors of step functions with 1 to 4 bits (its measure: the "
        "integral of "
        "the squared difference from the derivative over [-10, 10]), ours / the paper's:",
        _errors(),
        "Training with them, one seed each: test loss of the GPT on text (nats a byte), test "
        "accuracy of a "
        "CNN with SiLU on CIFAR-10, and the last loss of a BERT-like classifier "
        "(`python -m bench.fewbit_convergence`, mean over seeds):",
        table(["bits kept", "GPT, test loss", "CNN, test accuracy", "classifier, loss"], rows),
        "What they keep in bytes is in [Few-bit activations](#few-bit-activations-convergence) and "
        'docs/benchmarks.md. **What to do**: 3 bits, the default, or `"exact"` where the output is '
        "kept "
        "anyway; 1 bit only where memory is all that counts.",
    ]
    return "\n\n".join(text)


def _mean(losses: list[float] | None) -> str:
    return f"{statistics.mean(losses):.4f}" if losses else "not trained yet"
