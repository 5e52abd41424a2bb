"""What the shipped model of sparse and dense products misjudges, and its constants.

    python -m bench.cost_model --out results/cost_model.json    measure, judge and record
    python -m bench.cost_model --from results/cost_model.json   judge what was measured before
        --again     measure once more, and take the better of each time
        --fit       find the constants anew

Every product of every layer of some networks (bench/layer_shapes.py) is timed densely and at four
sparsities, through the ops that layers call, sampling and planning and copies included. What a
network loses is the time with the ways that the model chooses over that with the better way of
every product, less one: over the products of the backward pass alone, so that a whole step, which
has a forward pass and other layers too, loses less.

--fit finds the constants of src/arrays/sparse/cost.cc by non-negative least squares of relative
errors, prints them in the form of that file, and judges them; and also judges, for each network,
constants that were found without it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch

import slimgrad as sg
from bench.cost_fit import fit, print_constants
from bench.layer_shapes import NETWORKS, Layer
from bench.timing import write_json
from slimgrad._library import ops
from slimgrad.compression.gradients import PRODUCTS
from slimgrad.nn.layers import SparseState

SPARSITIES = (0.4, 0.6, 0.8, 0.95)
LAYOUTS = ("channels-last", "contiguous")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FLOAT16_PRODUCTS = 1 << 27  # larger layers are left out: dense, they take very long
WORTHWHILE = 0.75  # kWorthwhile of src/torch/sparse/product_choice.cc
SWEEPS = 2  # over everything, so that a slow minute of the machine spoils none of them
SECONDS, MIN_ROUNDS = 0.06, 2  # of a sweep, for the alternatives of one product


def _state(sparsity: float) -> SparseState:
    """Sparse always, or with a sparsity of 0 dense."""
    prune = sg.Prune(sparsity, sparse_backward="always")
    return SparseState(prune, seed=1)


def _backward(layer: Layer, product: str, tensors: tuple, state: SparseState) -> None:
    wanted = [product == "input", product == "weight", False]
    if layer.size:
        ops.sparse_conv2d_backward(*tensors, *layer.arguments(), wanted, state.tensors(), 0)
    else:
        ops.sparse_linear_backward(*tensors, wanted, state.tensors(), 0)


def _best_times(alternatives: list) -> list[float]:
    """In milliseconds; they take turns."""
    best = [float("inf")] * len(alternatives)
    for run in alternatives:
        run()
    start, rounds = time.perf_counter(), 0
    while rounds < MIN_ROUNDS or time.perf_counter() - start < SECONDS:
        for i, run in enumerate(alternatives):
            before = time.perf_counter()
            run()
            best[i] = min(best[i], 1e3 * (time.perf_counter() - before))
        rounds += 1
    return best


def measure(network: str, layer: Layer, layout: str, dtype: str) -> list[dict]:
    tensors = layer.tensors(layout, DTYPES[dtype])
    rows = []
    for product in PRODUCTS:
        states = [_state(sparsity) for sparsity in (0.0, *SPARSITIES)]
        # What has no sparse kernel is dense; to time that once is enough.
        _backward(layer, product, tensors, states[-1])
        if states[-1].choices()[product]["way"] == "dense":
            states = states[:1]
        times = _best_times(
            [lambda s=s, p=product: _backward(layer, p, tensors, s) for s in states]
        )
        rows.append(
            {
                "network": network,
                "layer": str(layer),
                "count": layer.count,
                "layout": layout,
                "dtype": dtype,
                "product": product,
                "dense_ms": round(times[0], 4),
                "sparse_ms": [round(t, 4) for t in times[1:]],
            }
        )
    return rows


def sweep(dtypes) -> list[dict]:
    rows = []
    for network, layers in NETWORKS.items():
        for layer in layers:
            for layout in LAYOUTS if layer.size else LAYOUTS[:1]:
                for dtype in dtypes:
                    if dtype == "float16" and layer.products() > FLOAT16_PRODUCTS:
                        continue
                    rows += measure(network, layer, layout, dtype)
        print(f"measured: {network}", flush=True)
    return rows


def best_of(rows: list[dict], more: list[dict]) -> list[dict]:
    """All of them; of those that are twice there the better of each time."""
    found: dict[tuple, dict] = {}
    for row in rows + more:
        key = tuple(row[name] for name in ("network", "layer", "layout", "dtype", "product"))
        other = found.get(key, row)
        sparse = zip(row["sparse_ms"], other["sparse_ms"], strict=True)
        found[key] = row | {
            "dense_ms": min(row["dense_ms"], other["dense_ms"]),
            "sparse_ms": [min(pair) for pair in sparse],
        }
    return list(found.values())


# ---- judging -------------------------------------------------------------------------------------


def add_terms(rows: list[dict]) -> None:
    """What the model says of each row's product: kinds, terms and nanoseconds."""
    shapes = {(network, str(layer)): layer for network in NETWORKS for layer in NETWORKS[network]}
    for row in rows:
        layer = shapes[row["network"], row["layer"]]
        with torch.device("meta"):
            tensors = layer.tensors(row["layout"], DTYPES[row["dtype"]])
        arguments = layer.arguments() if layer.size else ([], [], [], 1)
        names = ("kinds", "dense_terms", "compress_terms", "multiply_terms", "nanoseconds")
        values = ops._sparse_cost(*tensors, *arguments, row["product"])
        row.update(zip(names, values, strict=True))


def losses(rows: list[dict], predict) -> dict[tuple, list[float]]:
    """By network, type and layout, for each sparsity: the time over the better ways' time, less
    one. ``predict(row)``: the cost of the dense product, and the sparse one's without and for all
    survivors."""
    chosen, better = defaultdict(lambda: [0.0] * 4), defaultdict(lambda: [0.0] * 4)
    for row in rows:
        if not row["sparse_ms"]:
            continue
        key = (row["network"], row["dtype"], row["layout"])
        dense, compress, multiply = predict(row)
        for i, (sparsity, sparse_ms) in enumerate(zip(SPARSITIES, row["sparse_ms"], strict=True)):
            is_sparse = compress + (1 - sparsity) * multiply <= WORTHWHILE * dense
            chosen[key][i] += row["count"] * (sparse_ms if is_sparse else row["dense_ms"])
            better[key][i] += row["count"] * min(sparse_ms, row["dense_ms"])
    return {
        key: [c / b - 1 for c, b in zip(chosen[key], better[key], strict=True)] for key in chosen
    }


def print_losses(title: str, table: dict[tuple, list[float]]) -> None:
    print(f"\n{title}\n{'':60}" + "".join(f"{s:>8}" for s in SPARSITIES))
    for key, values in table.items():
        print(f"{', '.join(key):60}" + "".join(f"{100 * v:7.1f}%" for v in values))
    print(f"{'the most':60}{100 * max(v for values in table.values() for v in values):7.1f}%")


def judge_fit(rows: list[dict]) -> None:
    print_constants(fit(rows))
    print_losses("lost with these constants", losses(rows, fit(rows).predict))
    apart = {}
    for network in NETWORKS:
        others = [row for row in rows if row["network"] != network]
        known = [{row["kinds"][i] for row in others} for i in (0, 1)]
        judged = [
            row
            for row in rows
            if row["network"] == network
            and all(k in s for k, s in zip(row["kinds"], known, strict=True))
        ]
        apart |= losses(judged, fit(others).predict)
    print_losses(
        "lost with constants found without the network, where others have the kinds", apart
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cost_model")
    parser.add_argument(
        "--from", dest="record", type=Path, help="an earlier record: do not measure"
    )
    parser.add_argument("--again", action="store_true", help="measure, too, and take the better")
    parser.add_argument("--float16", action="store_true", help="this type, too: takes long")
    parser.add_argument("--fit", action="store_true", help="find the constants anew")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write what was measured and lost as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = []
    if arguments.record:
        rows = [r for r in json.loads(arguments.record.read_text())["rows"] if "dense_ms" in r]
    if arguments.again or not rows:
        for _ in range(SWEEPS):
            rows = best_of(rows, sweep(["float32", "bfloat16"]))
        if arguments.float16:
            rows = best_of(rows, sweep(["float16"]))
    measured = [dict(row) for row in rows]
    add_terms(rows)
    lost = losses(rows, lambda row: row["nanoseconds"])
    print_losses("lost with the shipped constants", lost)
    if arguments.fit:
        judge_fit(rows)
    if arguments.out:
        names = [f"lost at {sparsity}" for sparsity in SPARSITIES]
        summary = [
            dict(zip(("network", "dtype", "layout"), key, strict=True))
            | {name: round(value, 4) for name, value in zip(names, values, strict=True)}
            for key, values in lost.items()
        ]
        command = "python -m bench.cost_model " + " ".join(sys.argv[1:])
        write_json(arguments.out, command, summary + measured, line_each=True)


if __name__ == "__main__":
    main()
