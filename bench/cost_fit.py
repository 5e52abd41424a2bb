"""The constants of src/arrays/sparse/cost.cc from measured times: non-negative least squares of
relative errors, in which a time that no constants explain counts little."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

SPARSITIES = (0.4, 0.6, 0.8, 0.95)
DTYPES = ("float32", "bfloat16", "float16")
PRODUCTS = ("weight", "input")
COMPRESS_TERMS, DENSE_KINDS, SPARSE_KINDS = 8, 5, 7


@dataclass
class Model:
    dense: dict[tuple[str, str, int], np.ndarray]  # by type, product and kind
    sparse: dict[tuple[str, int], np.ndarray]  # by type and kind; compress, then multiply

    def predict(self, row: dict) -> tuple[float, float, float]:
        dense_kind, sparse_kind = row["kinds"]
        dense = self.dense[row["dtype"], row["product"], dense_kind]
        sparse = self.sparse[row["dtype"], sparse_kind]
        return (
            float(dense @ row["dense_terms"]),
            float(sparse[:COMPRESS_TERMS] @ row["compress_terms"]),
            float(sparse[COMPRESS_TERMS:] @ row["multiply_terms"]),
        )


def _least_squares(terms: list, nanoseconds: list) -> np.ndarray:
    relative = np.array(terms, dtype=float) / np.array(nanoseconds)[:, None]
    scale = np.where(relative.max(axis=0) > 0, relative.max(axis=0), 1)
    weights = np.ones(len(relative))
    for _ in range(20):
        constants = nnls(relative / scale * weights[:, None], weights)[0] / scale
        errors = relative @ constants - 1
        weights = (1 + (errors / 0.15) ** 2) ** -0.5
    return constants


def _dense(rows: list[dict]) -> np.ndarray:
    return _least_squares([r["dense_terms"] for r in rows], [1e6 * r["dense_ms"] for r in rows])


def _sparse(rows: list[dict]) -> np.ndarray:
    terms = [
        list(row["compress_terms"]) + [(1 - s) * t for t in row["multiply_terms"]]
        for row in rows
        for s in SPARSITIES
    ]
    return _least_squares(terms, [1e6 * t for row in rows for t in row["sparse_ms"]])


def fit(rows: list[dict]) -> Model:
    """A type that was not measured, or has no sparse kernels, has the constants of bfloat16. There
    are none of a kind of kernel that does not occur in ``rows``."""
    dense, sparse = {}, {}
    for dtype in DTYPES:
        for product in PRODUCTS:
            for kind in range(DENSE_KINDS):
                chosen = [
                    row
                    for row in rows
                    if (row["dtype"], row["product"], row["kinds"][0]) == (dtype, product, kind)
                ]
                if chosen:
                    dense[dtype, product, kind] = _dense(chosen)
                elif ("bfloat16", product, kind) in dense:
                    dense[dtype, product, kind] = dense["bfloat16", product, kind]
        for kind in range(SPARSE_KINDS):
            chosen = [
                row
                for row in rows
                if (row["dtype"], row["kinds"][1]) == (dtype, kind) and row["sparse_ms"]
            ]
            if chosen:
                sparse[dtype, kind] = _sparse(chosen)
            elif ("bfloat16", kind) in sparse:
                sparse[dtype, kind] = sparse["bfloat16", kind]
    return Model(dense, sparse)


def _numbers(values) -> str:
    return "{{" + ", ".join(f"{v:.4g}" for v in values) + "}}"


def print_constants(model: Model) -> None:
    """As src/arrays/sparse/cost.cc has them."""
    print("\n// [type][product][kind]")
    print("constexpr DenseTerms kDense[kTypes][2][kDenseKinds] = {")
    for dtype in DTYPES:
        print(f"    // {dtype}")
        groups = []
        for product in PRODUCTS:
            rows = ",\n      ".join(
                _numbers(model.dense[dtype, product, kind]) for kind in range(DENSE_KINDS)
            )
            groups.append("{" + rows + "}")
        print("    {" + ",\n     ".join(groups) + "},")
    print("};\n\n// [type][kind]")
    print("constexpr SparseConstants kSparse[kTypes][kSparseKinds] = {")
    for dtype in DTYPES:
        rows = ",\n     ".join(
            "{"
            + _numbers(model.sparse[dtype, k][:COMPRESS_TERMS])
            + ", "
            + _numbers(model.sparse[dtype, k][COMPRESS_TERMS:])
            + "}"
            for k in range(SPARSE_KINDS)
        )
        print(f"    // {dtype}\n    {{{rows}}},")
    print("};")
