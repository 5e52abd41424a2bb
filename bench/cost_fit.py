"""The constants of src/arrays/sparse/cost.cc from measured times: non-negative least squares of
relative errors. A product counts by the root of its share in the time of its network, and a time
that no constants explain counts little."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

SPARSITIES = (0.4, 0.6, 0.8, 0.95)
DTYPES = ("float32", "bfloat16")  # those with dense constants
PRODUCTS = ("weight", "input")
COMPRESS_TERMS = 5
# The constants of dense products are for this part of what was measured, as a sparse product that
# is no faster only costs accuracy. With 1, the two records of results/ have 13 of 176 figures over
# 1.02 of the plain backward pass, up to 1.19, and lose up to 24 % against the best ways; with 0.96
# 8 figures, up to 1.043, and 10 %; with 0.9 6 figures, but up to 14 % lost.
PRICE = 0.96


@dataclass
class Model:
    dense: dict[tuple[str, str], np.ndarray]  # by type and product
    sparse: dict[str, np.ndarray]  # by product; compress, then multiply

    def predict(self, row: dict) -> tuple[float, float, float]:
        dense = self.dense[row["dtype"], row["product"]]
        sparse = self.sparse[row["product"]]
        return (
            float(dense @ row["dense_terms"]),
            float(sparse[:COMPRESS_TERMS] @ row["compress_terms"]) + row["other"],
            float(sparse[COMPRESS_TERMS:] @ row["multiply_terms"]),
        )


def _least_squares(equations: Iterable[tuple[list, float, float]]) -> np.ndarray:
    """Of terms, nanoseconds and weight."""
    terms, nanoseconds, base = (
        np.array(column, dtype=float) for column in zip(*equations, strict=True)
    )
    relative = terms / nanoseconds[:, None]
    scale = np.where(relative.max(axis=0) > 0, relative.max(axis=0), 1)
    weights = base
    for _ in range(20):
        constants = nnls(relative / scale * weights[:, None], weights)[0] / scale
        errors = relative @ constants - 1
        weights = base * (1 + (errors / 0.6) ** 2) ** -0.5
    return constants


def _weights(rows: list[dict]) -> Callable[[dict], float]:
    totals: dict[tuple, float] = defaultdict(float)

    def network(row: dict) -> tuple:
        return row["record"], row["network"], row["dtype"], row["layout"]

    for row in rows:
        totals[network(row)] += row["count"] * row["dense_ms"]
    return lambda row: max(0.01, row["count"] * row["dense_ms"] / totals[network(row)]) ** 0.5


def _sparse_equations(row: dict, weight: float) -> Iterable[tuple[list, float, float]]:
    for sparsity, ms in zip(SPARSITIES, row["sparse_ms"], strict=True):
        terms = [*row["compress_terms"], *((1 - sparsity) * t for t in row["multiply_terms"])]
        # What is left to explain, of a time that ``other`` overestimates at least a fifth.
        yield terms, max(1e6 * ms - row["other"], 0.2e6 * ms), weight


def fit(rows: list[dict]) -> Model:
    """The constants of ``rows``, which have ``share_ms``, the product's part of the dense pair."""
    rows = [row for row in rows if row["dtype"] in DTYPES]
    weight = _weights(rows)
    dense = {
        (dtype, product): _least_squares(
            (row["dense_terms"], 1e6 * PRICE * row["share_ms"], weight(row))
            for row in rows
            if (row["dtype"], row["product"]) == (dtype, product)
        )
        for dtype in DTYPES
        for product in PRODUCTS
    }
    sparse = {
        product: _least_squares(
            equation
            for row in rows
            if row["product"] == product
            for equation in _sparse_equations(row, weight(row))
        )
        for product in PRODUCTS
    }
    return Model(dense, sparse)


def _numbers(values) -> str:
    return "{{" + ", ".join(f"{v:.4g}" for v in values) + "}}"


def print_constants(model: Model) -> None:
    """As src/arrays/sparse/cost.cc has them."""
    print("\n// [float32, bfloat16][product]")
    print("constexpr DenseTerms kDense[2][2] = {")
    for dtype in DTYPES:
        rows = ",\n     ".join(_numbers(model.dense[dtype, product]) for product in PRODUCTS)
        print(f"    // {dtype}\n    {{{rows}}},")
    print("};\n\nconstexpr SparseConstants kSparse[2] = {")
    for product in PRODUCTS:
        compress, multiply = np.split(model.sparse[product], [COMPRESS_TERMS])
        print(f"    {{{_numbers(compress)}, {_numbers(multiply)}}},")
    print("};")
