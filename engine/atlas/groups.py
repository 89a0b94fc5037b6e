"""The matrix summed up by groups of cells, block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

if TYPE_CHECKING:
    from collections.abc import Sequence


def group_sums(block: Any, codes: np.ndarray, n: int) -> np.ndarray:
    """Sums and counts of non-zeros of each group in a block.

    Args:
        block: Cells by genes.
        codes: Group of each cell; -1: of none.
        n: Number of groups.

    Returns:
        float64 (2, groups, genes).
    """
    inside = codes >= 0
    members = sparse.csr_matrix(
        (np.ones(int(inside.sum())), (codes[inside], np.flatnonzero(inside))),
        shape=(n, len(codes)),
    )
    presence = (block != 0).astype(np.float64)
    return np.stack([_dense(members @ part) for part in (block, presence)])


def summaries(
    sums: np.ndarray, sizes: np.ndarray, functions: Sequence[str]
) -> dict[str, np.ndarray]:
    """What was asked for, each float64 (groups, genes).

    Args:
        sums: Sums and counts of non-zeros of all cells, (2, groups, genes).
        sizes: Cells of each group.
        functions: "mean", "sum", "count_nonzero".
    """
    found = {"sum": sums[0], "count_nonzero": sums[1], "mean": sums[0] / sizes[:, None]}
    return {name: found[name] for name in functions}


def _dense(matrix: Any) -> np.ndarray:
    return np.asarray(matrix.toarray() if sparse.issparse(matrix) else matrix, np.float64)
