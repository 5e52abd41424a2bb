"""Rate-limited clients: rounds to an accuracy at 8 to 2 bits an update, with and without error
feedback, and what the bits cost under four codes.

    python -m bench.federated --out results/federated.json
    python -m bench.federated --rows results/federated.json --docs docs/federated.md

Runs the apps of examples/flower_federated.py with Flower's messages in this process, in the
environment that has Flower (.venv-flower). A code does not change what is decoded, so each width is
trained once, and every update is coded again under each law, fitted by the client to each array.
Nothing is timed, so it comes out the same on every run of the same build.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch

import slimgrad as sg
from bench import marked
from bench.local_grid import LocalGrid
from bench.timing import write_json
from slimgrad.integrations import flower

ROOT = Path(__file__).resolve().parents[1]
LAWS = ["normal", "laplace", "gennorm", "counted"]
TARGETS = [0.6, 0.7, 0.8, 0.85]
WRITER = "bench.federated"


def _example():
    path = ROOT / "examples" / "flower_federated.py"
    spec = importlib.util.spec_from_file_location("flower_federated", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Measured(flower.EncodeUpdates):
    """Codes every array under each law as well, and adds up the payloads."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.values = 0
        self.payload_bytes = dict.fromkeys(LAWS, 0)

    def encode(self, x: torch.Tensor, seed: int) -> torch.Tensor:
        payloads = {law: self._under(law, x, seed) for law in LAWS}
        decoded = {law: sg.decode(payload) for law, payload in payloads.items()}
        assert all(torch.equal(values, decoded["counted"]) for values in decoded.values())
        self.values += x.numel()
        for law, payload in payloads.items():
            self.payload_bytes[law] += payload.numel()
        return payloads["counted"]

    def _under(self, law: str, x: torch.Tensor, seed: int) -> torch.Tensor:
        return flower.encode_array(x, self.codec.replace(model=law), seed)


def run(options, bits: int | None, feedback: bool) -> dict:
    """One training; without bits, of plain updates."""
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    example = _example()
    random.seed(0)  # by which strategies choose clients, and the order of sums
    mod = None
    if bits is not None:
        mod = Measured(f"uniform{bits}", error_feedback=feedback)
    app = example.client_app(mod, options.images)
    outcome = example.run_server(
        LocalGrid([app] * options.clients), options.rounds, options.clients
    )
    assert not outcome["rejected"], outcome["rejected"]
    accuracies = [round(value, 4) for value in outcome["accuracy"]]
    row = {
        "bits": bits,
        "error_feedback": feedback,
        "clients": options.clients,
        "images": options.images,
        "accuracy": accuracies,
        "bytes": sum(received.bytes for received in outcome["received"]),
        "plain_bytes": sum(received.plain_bytes for received in outcome["received"]),
    }
    if mod is not None:
        row["bits_per_value"] = {law: 8 * mod.payload_bytes[law] / mod.values for law in LAWS}
    print(json.dumps(row), flush=True)
    return row


def rounds_to(target: float, accuracies: list[float]) -> str:
    return next((str(n) for n, value in enumerate(accuracies) if value >= target), "-")


def markdown(rows: list[dict], command: str) -> str:
    """The table of results/federated.json."""
    first = rows[0]
    heads = " | ".join(f"to {target:.0%}" for target in TARGETS)
    lines = [
        f"{first['clients']} clients with {first['images']} images each, "
        f"{len(first['accuracy']) - 1} rounds, one seed: rounds to an accuracy on 500 images, the "
        "mean accuracy of the last three rounds, bits a value of payloads, headers included, and "
        "all bytes that the server received for one of plain arrays. `-`: not reached.",
        "",
        f"| update | error feedback | {heads} | last | normal | Laplace | gen. normal | counted "
        "| bytes |",
        "|---" * (8 + len(TARGETS)) + "|",
    ]
    for row in rows:
        name = "float32" if row["bits"] is None else f"{row['bits']} bits"
        feedback = "" if row["bits"] is None else ("yes" if row["error_feedback"] else "no")
        rounds = " | ".join(rounds_to(target, row["accuracy"]) for target in TARGETS)
        last = sum(row["accuracy"][-3:]) / 3
        bits = row.get("bits_per_value", {})
        costs = " | ".join(f"{bits[law]:.2f}" if law in bits else "32" for law in LAWS)
        share = row["bytes"] / row["plain_bytes"]
        lines.append(f"| {name} | {feedback} | {rounds} | {last:.3f} | {costs} | {share:.3f} |")
    return "\n".join([*lines, "", f"(`{command}`)"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.federated")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 7, 6, 5, 4, 3, 2])
    parser.add_argument("--processes", type=int, default=1, help="the rows do not depend on it")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--docs", type=Path, help="rewrite the table in this page")
    parser.add_argument("--rows", type=Path, help="of this file, instead of training")
    options = parser.parse_args()
    if options.rows:
        record = json.loads(options.rows.read_text())
    else:
        command = "python -m bench.federated " + " ".join(sys.argv[1:])
        record = {"command": command, "rows": measure(options)}
        if options.out:
            write_json(options.out, command, record["rows"], line_each=True)
    table = markdown(record["rows"], record["command"])
    print(table)
    if options.docs:
        marked.write(options.docs, WRITER, table)


def measure(options) -> list[dict]:
    widths = [(None, False), *((bits, on) for on in (False, True) for bits in options.bits)]
    with ProcessPoolExecutor(options.processes) as pool:
        return list(pool.map(partial(run, options), *zip(*widths, strict=True)))


if __name__ == "__main__":
    main()
