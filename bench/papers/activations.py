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
SAVED = ("torch", "1", "2", "3", "4", "exact")


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


def _gpt(records: Records, kept: str) -> float | None:
    """Test loss."""
    name = f"gpt_activations_{kept}"
    return records[name].result("test_loss") if name in records else None


def _cnn(records: Records, kept: str) -> float | None:
    """Test accuracy, per cent."""
    name = f"cnn_activations_{kept}"
    return records.accuracy(name) if name in records else None


def _beside(value: float | None, plain: float | None, digits: int, unit: str = "") -> str:
    """A number, and how far it is from torch's."""
    if value is None:
        return "not trained yet"
    apart = "" if plain is None else f" ({value - plain:+.{digits}f})"
    return f"{value:.{digits}f}{unit}{apart}"


def _paired(losses: list[float] | None, plain: list[float] | None) -> str:
    """Mean over seeds; of the differences from torch's run of the same seed also the spread."""
    if losses is None or plain is None:
        return "not trained yet"
    text = f"{statistics.mean(losses):.4f}"
    if losses is plain:
        return text
    apart = [a - b for a, b in zip(losses, plain, strict=True)]
    return f"{text} ({statistics.mean(apart):+.4f} ± {statistics.stdev(apart):.4f})"


def _verdict(records: Records) -> str:
    plain, few, one = ((_gpt(records, kept), _cnn(records, kept)) for kept in ("torch", "3", "1"))
    if None in (*plain, *few, *one):
        return ""
    return (
        f"**Result**: with 3 bits the GPT's loss differs from torch's by {few[0] - plain[0]:+.4f} "
        f"and the CNN's accuracy by {few[1] - plain[1]:+.1f} points; with 1 bit by "
        f"{one[0] - plain[0]:+.4f} and {one[1] - plain[1]:+.1f} (one seed; an accuracy's "
        "standard error is 0.5 points). "
    )


def section(records: Records) -> str:
    rows = []
    classifier = _classifier()
    gpt, cnn = _gpt(records, "torch"), _cnn(records, "torch")
    for kept in SAVED:
        bits = {"torch": "32 (torch)", "exact": "exact, 1 and the output"}.get(kept, kept)
        is_torch = kept == "torch"
        rows.append(
            [
                bits,
                _beside(_gpt(records, kept), None if is_torch else gpt, 4),
                _beside(_cnn(records, kept), None if is_torch else cnn, 1, " %"),
                _paired(classifier.get(kept), classifier.get("torch")),
            ]
        )
    text = [
        "### Few bits of an activation",
        "The few-bit paper: smallest errors of step functions with 1 to 4 bits (the integral of "
        "the squared difference from the derivative over [-10, 10]), slimgrad's / the paper's:",
        _errors(),
        "Training with them: test loss of the GPT on text (nats a byte) and test accuracy of a CNN "
        "with SiLU on CIFAR-10, one seed each, and the last loss of a BERT-like classifier "
        "(`python -m bench.fewbit_convergence`, mean over four seeds); in brackets the difference "
        "from torch's own activations, with the same seed:",
        table(["bits saved", "GPT, test loss", "CNN, test accuracy", "classifier, loss"], rows),
        "[Few-bit activations](activations.md#measured) has the bytes that they save. "
        f"{_verdict(records)}**What to do**: use 3 bits, the default, or "
        '`"exact"` if the output is saved anyway; 1 bit only if memory matters most.',
    ]
    return "\n\n".join(text)
