"""What the shipped model of sparse and dense products misjudges, and its constants.

    python -m bench.cost_model --out results/cost_model.json    measure, judge and record
    python -m bench.cost_model --from results/cost_model.json   judge what was measured before
        --again     measure once more, and take the better of each time
        --fit       find the constants anew, from all records that --from names

Every product of every layer of some networks (bench/layer_shapes.py) is timed densely and at four
sparsities, through the ops that layers call, sampling and planning and copies included; and so are
both dense products of a layer, which torch computes in one call that takes less than the two. What
a network loses is the time with the ways that the model chooses over that with the best ways of
every layer, less one. Below it is the same time over that of the plain backward pass, all of it
dense. Both are of the products of the backward pass alone: a whole step has a forward pass and
other layers, too.

--fit finds the constants of src/arrays/sparse/cost.cc by non-negative least squares of relative
errors, prints them in the form of that file, and judges them; and also judges, for each network,
constants that were found without it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import slimgrad as sg
from bench.cost_fit import DTYPES as FITTED
from bench.cost_fit import SPARSITIES, fit, print_constants
from bench.layer_shapes import NETWORKS, Layer
from bench.timing import write_json
from slimgrad._library import ops
from slimgrad.compression.gradients import PRODUCTS
from slimgrad.nn.layers import SparseState

LAYOUTS = ("channels-last", "contiguous")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FLOAT16_PRODUCTS = 1 << 27  # larger layers are left out: dense, they take very long
SWEEPS = 2  # over everything, so that a slow minute of the machine spoils none of them
SECONDS, MIN_ROUNDS = 0.06, 2  # of a sweep, for the alternatives of one product


def _state(sparsity: float) -> SparseState:
    """Sparse always, or with a sparsity of 0 dense."""
    prune = sg.Prune(sparsity, sparse_backward="always")
    return SparseState(prune, seed=1)


def _backward(layer: Layer, products: tuple, tensors: tuple, state: SparseState) -> None:
    wanted = ["input" in products, "weight" in products, False]
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
        runs = [(PRODUCTS, 0.0)] + [((product,), sparsity) for sparsity in (0.0, *SPARSITIES)]
        pair, dense, *sparse = _best_times(
            [partial(_backward, layer, wanted, tensors, _state(s)) for wanted, s in runs]
        )
        rows.append(
            {
                "network": network,
                "layer": str(layer),
                "count": layer.count,
                "layout": layout,
                "dtype": dtype,
                "product": product,
                "pair_ms": round(pair, 4),
                "dense_ms": round(dense, 4),
                "sparse_ms": [round(t, 4) for t in sparse],
            }
        )
    pair = min(row["pair_ms"] for row in rows)
    return [row | {"pair_ms": pair} for row in rows]


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
            "pair_ms": min(row["pair_ms"], other["pair_ms"]),
            "dense_ms": min(row["dense_ms"], other["dense_ms"]),
            "sparse_ms": [min(pair) for pair in sparse],
        }
    return list(found.values())


# ---- judging -------------------------------------------------------------------------------------


def add_terms(rows: list[dict]) -> None:
    """What the model says of each row's product, terms and nanoseconds, and its share of the dense
    time of both products."""
    shapes = {(network, str(layer)): layer for network in NETWORKS for layer in NETWORKS[network]}
    for row in rows:
        layer = shapes[row["network"], row["layer"]]
        with torch.device("meta"):
            tensors = layer.tensors(row["layout"], DTYPES[row["dtype"]])
        arguments = layer.arguments() if layer.size else ([], [], [], 1)
        names = ("dense_terms", "compress_terms", "multiply_terms", "other", "nanoseconds")
        values = ops._sparse_cost(*tensors, *arguments, row["product"])
        row.update(zip(names, values, strict=True))
    for products in _by_layer(rows):
        alone = sum(row["dense_ms"] for row in products)
        for row in products:
            row["share_ms"] = row["dense_ms"] * min(1, row["pair_ms"] / alone)


def _by_layer(rows: list[dict]) -> list[list[dict]]:
    """The two products of each layer."""
    layers = defaultdict(list)
    for row in rows:
        layers[row["record"], row["network"], row["layer"], row["layout"], row["dtype"]].append(row)
    return list(layers.values())


def _time(products: list[dict], i: int, ways: tuple[bool, ...]) -> float:
    """Of a layer at the sparsity of that index, where ``ways`` says which products are sparse."""
    if not any(ways):
        return products[0]["pair_ms"]
    return sum(
        row["sparse_ms"][i] if is_sparse else row["dense_ms"]
        for row, is_sparse in zip(products, ways, strict=True)
    )


Table = dict[tuple, list[float]]


def judge(rows: list[dict], predict: Callable[[dict], tuple]) -> tuple[Table, Table]:
    """By network, type and layout, for each sparsity: the time over the best ways' time, less one;
    and the time over that of the plain backward pass. ``predict(row)``: the cost of the dense
    product, and the sparse one's without and for all survivors."""
    chosen, best, plain = (defaultdict(lambda: [0.0] * len(SPARSITIES)) for _ in range(3))
    for products in _by_layer(rows):
        row = products[0]
        key = (row["network"], row["dtype"], row["layout"])
        costs = [predict(row) for row in products]
        for i, s in enumerate(SPARSITIES):
            ways = tuple(
                compress + (1 - s) * multiply <= dense for dense, compress, multiply in costs
            )
            every = itertools.product((False, True), repeat=2)
            chosen[key][i] += row["count"] * _time(products, i, ways)
            best[key][i] += row["count"] * min(_time(products, i, ways) for ways in every)
            plain[key][i] += row["count"] * row["pair_ms"]
    lost = {k: [c / b - 1 for c, b in zip(chosen[k], best[k], strict=True)] for k in chosen}
    return lost, {k: [c / p for c, p in zip(chosen[k], plain[k], strict=True)] for k in chosen}


def print_judgement(title: str, lost: Table, over_plain: Table) -> None:
    for what, table, form in (
        (f"lost with {title}, in %", lost, lambda v: f"{100 * v:8.1f}"),
        (f"over the plain backward pass with {title}", over_plain, lambda v: f"{v:8.3f}"),
    ):
        print(f"\n{what}\n{'':60}" + "".join(f"{s:>8}" for s in SPARSITIES))
        for key, values in table.items():
            print(f"{', '.join(key):60}" + "".join(form(v) for v in values))
        print(f"{'the most':60}" + form(max(v for values in table.values() for v in values)))


def judge_fit(rows: list[dict]) -> None:
    rows = [row for row in rows if row["dtype"] in FITTED]
    model = fit(rows)
    print_constants(model)
    for i in range(rows[-1]["record"] + 1):
        judged = [row for row in rows if row["record"] == i]
        print_judgement(f"these constants, record {i + 1}", *judge(judged, model.predict))
    lost, over_plain = {}, {}
    for network in NETWORKS:
        others = fit([row for row in rows if row["network"] != network])
        judged = judge([row for row in rows if row["network"] == network], others.predict)
        lost |= judged[0]
        over_plain |= judged[1]
    print_judgement("constants found without the network", lost, over_plain)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cost_model")
    parser.add_argument(
        "--from", dest="records", type=Path, nargs="+", help="earlier records: do not measure"
    )
    parser.add_argument("--again", action="store_true", help="measure, too, and take the better")
    parser.add_argument("--float16", action="store_true", help="this type, too: takes long")
    parser.add_argument("--fit", action="store_true", help="find the constants anew")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write what was measured and lost as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    records = [
        [row for row in json.loads(path.read_text())["rows"] if "dense_ms" in row]
        for path in arguments.records or []
    ]
    rows = records[0] if records else []
    if arguments.again or not rows:
        for _ in range(SWEEPS):
            rows = best_of(rows, sweep(["float32", "bfloat16"]))
        if arguments.float16:
            rows = best_of(rows, sweep(["float16"]))
    measured = [dict(row) for row in rows]
    records[:1] = [rows]
    rows = [row | {"record": i} for i, record in enumerate(records) for row in record]
    add_terms(rows)
    for i in range(len(records)):
        judged = [row for row in rows if row["record"] == i]
        tables = judge(judged, lambda row: row["nanoseconds"])
        print_judgement(f"the shipped constants, record {i + 1}", *tables)
        if i == 0:
            lost, over_plain = tables
    if arguments.fit:
        judge_fit(rows)
    if arguments.out:
        summary = [
            dict(zip(("network", "dtype", "layout"), key, strict=True))
            | {
                f"{what} at {sparsity}": round(value, 4)
                for what, table in (("lost", lost), ("over plain", over_plain))
                for sparsity, value in zip(SPARSITIES, table[key], strict=True)
            }
            for key in lost
        ]
        command = "python -m bench.cost_model " + " ".join(sys.argv[1:])
        write_json(arguments.out, command, summary + measured, line_each=True)


if __name__ == "__main__":
    main()
