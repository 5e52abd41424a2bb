"""The start of the page: what was run, where, and with which result."""

from __future__ import annotations

from html import escape

from .runs import Run, number
from .words import many, percent, size

# Shown elsewhere, or of no interest to readers.
_NOT_SETTINGS = {"kind", "run", "gradients", "schema", "name"}

_HEADS = (
    *("test accuracy", "test loss", "zeros", "bits a value", "steps", "ms a step (median)"),
    *("saved for backward", "peak memory", "tensors", "state"),
)


def what_was_run(runs: list[Run]) -> str:
    """In a sentence."""
    trained = [run for run in runs if run.is_training]
    parts = []
    if trained:
        models = list(dict.fromkeys(str(run.config.get("model", "?")) for run in trained))
        data = [run.config["data"] for run in trained if run.config.get("data")]
        on = f" on {', '.join(map(str, dict.fromkeys(data)))}" if data else ""
        parts.append(f"{many(len(trained), 'run')} of {', '.join(models)}{on}")
    tensors = sum(len(run.histograms) for run in runs if not run.is_training)
    if tensors:
        parts.append(many(tensors, "tensor"))
    return f"{' and '.join(parts)}. {_where(trained)}".strip()


def _where(runs: list[Run]) -> str:
    """The version of the program and the machine, in a sentence."""

    def known(name: str) -> str:
        found = [run.config[name] for run in runs if run.config.get(name) is not None]
        return ", ".join(dict.fromkeys(map(str, found)))

    if not runs:
        return ""
    words = [f"slimgrad {known('version') or 'of unknown version'}"]
    words += [f"commit {known('commit')}"] if known("commit") else []
    words.append(f"on {known('machine')}" if known("machine") else "on a machine not recorded")
    words += [f"threads: {known('threads')}"] if known("threads") else []
    return f"{', '.join(words)}."


def _settings(runs: list[Run]) -> tuple[dict[str, object], list[str]]:
    """What all runs share, and the names of what differs."""
    names = [n for n in dict.fromkeys(n for r in runs for n in r.config) if n not in _NOT_SETTINGS]
    shared, differing = {}, []
    for name in names:
        values = [run.config.get(name) for run in runs]
        if all(value == values[0] for value in values):
            shared[name] = values[0]
        else:
            differing.append(name)
    return shared, differing


def _text(value: object) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else str(value)


def _results(run: Run) -> dict[str, str]:
    """Cells of the table, by column title."""
    end = run.end or {}
    accuracy, loss = run.result("test_accuracy"), run.result("test_loss")
    sparsity, bits = run.sparsity(), run.bits_per_value()
    steps = number(end, "steps") or max((line["step"] for line in run.epochs), default=None)
    median = number(end, "median_step_seconds")
    memory = number(end, "peak_memory_bytes")
    plain, saved = (run.result(name) for name in ("plain_saved_bytes", "saved_bytes"))
    state = "diverged" if end.get("diverged") else "finished" if run.end else "not finished"
    cells = {
        "test accuracy": accuracy if accuracy is None else percent(accuracy),
        "test loss": loss if loss is None else f"{loss:.4g}",
        "zeros": sparsity if sparsity is None else f"{sparsity:.4f}",
        "bits a value": bits if bits is None else f"{bits:.2f}",
        "steps": steps if steps is None else f"{steps:,}",
        "ms a step (median)": median if median is None else f"{1e3 * median:.1f}",
        "saved for backward": f"{size(saved)} of {size(plain)}" if plain and saved else None,
        "peak memory": memory if memory is None else size(memory),
        "state": state if run.config.get("epochs") else None,
    }
    if not run.is_training:
        cells["tensors"] = str(len(run.histograms))
    return {head: text for head, text in cells.items() if text is not None}


def _name_cell(run: Run) -> str:
    swatch = f'<span class="swatch" style="background:var(--run{run.index % 8})"></span>'
    return f"<td>{swatch}{escape(run.name)}</td>"


def run_table(runs: list[Run]) -> str:
    shared, differing = _settings(runs)
    results = [_results(run) for run in runs]
    heads = [head for head in _HEADS if any(head in row for row in results)]
    head = "".join(f"<th>{escape(text)}</th>" for text in ("run", *heads, *differing))
    rows = []
    for run, row in zip(runs, results, strict=True):
        cells = [row.get(name, "-") for name in heads]
        cells += [_text(run.config.get(name)) for name in differing]
        rows.append(
            f"<tr>{_name_cell(run)}{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        )
    table = (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
    order = ("version", "commit", "machine", "threads", "seed", "model", "parameters", "data")
    names = [n for n in order if n in shared] + [n for n in shared if n not in order]
    items = "".join(
        f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(_text(shared[name]))}</dd>"
        for name in names
    )
    if not items:
        return table
    summary = "Settings that all of them share" if len(runs) > 1 else "Settings"
    return f"{table}<details><summary>{summary}</summary><dl>{items}</dl></details>"
