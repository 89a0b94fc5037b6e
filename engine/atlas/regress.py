"""Linear effects of covariates on every gene, taken out of a matrix of blocks of rows.

Ordinary least squares with an intercept, as scanpy's ``regress_out`` does for numeric columns. The
normal equations add up over blocks, so that one pass finds the coefficients of all genes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from cytopave.engine.errors import AtlasError


def design(values: np.ndarray) -> np.ndarray:
    """Intercept and covariates, centred and scaled for the sake of the numbers: (cells, 1 + k).

    Raises:
        AtlasError: A covariate is not finite, is the same for all cells, or follows from others.
    """
    if not np.isfinite(values).all():
        raise AtlasError("a column to regress on (regress.keys) holds NaN or infinity")
    spread = values.std(axis=0)
    if (spread == 0).any():
        raise AtlasError("a column to regress on (regress.keys) is the same for all cells")
    full = np.column_stack([np.ones(len(values)), (values - values.mean(axis=0)) / spread])
    if np.linalg.matrix_rank(full.T @ full) < full.shape[1]:
        raise AtlasError("the columns to regress on (regress.keys) follow from each other")
    return np.asarray(full)


def residuals(x: Any, covariates: np.ndarray) -> Any:
    """What the covariates do not explain.

    Args:
        x: Lazy blocks of rows, (cells, genes).
        covariates: Numeric columns, (cells, k).

    Returns:
        Lazy dense blocks of float32.
    """
    full = design(covariates)
    starts = np.cumsum([0, *x.chunks[0]])
    n, genes = len(x.chunks[0]), x.shape[1]

    def rows(block_info: Any) -> np.ndarray:
        number = block_info[0]["chunk-location"][0]
        return full[starts[number] : starts[number + 1]]

    def products(block: Any, block_info: Any = None) -> np.ndarray:
        return np.asarray(rows(block_info).T @ block, np.float64)[None]

    def without(block: Any, coefficients: Any = None, block_info: Any = None) -> np.ndarray:
        dense = block.toarray() if sparse.issparse(block) else block
        return np.asarray(dense - rows(block_info) @ coefficients, np.float32)

    parts = x.map_blocks(
        products,
        dtype=np.float64,
        new_axis=1,
        chunks=((1,) * n, (full.shape[1],), (genes,)),
        meta=np.empty((0, 0, 0)),
    )
    coefficients = np.linalg.solve(full.T @ full, parts.sum(axis=0).compute())
    empty = np.empty((0, 0), np.float32)
    return x.map_blocks(without, coefficients=coefficients, dtype=np.float32, meta=empty)
