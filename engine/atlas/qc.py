"""Quality metrics in one pass: every block is read once and reduced where it was read.

scanpy's own function, given a lazy matrix, gathers all blocks in one task for the number of cells
that each gene is found in (its 1.12.4), and so needs the whole matrix in memory. Sums are taken in
float64 and rounded once to the float32 of scanpy's columns, whatever the number of cells.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd


@dataclass(frozen=True)
class Tally:
    """What one block is reduced to.

    Attributes:
        genes: Genes found in each cell, int32.
        counts: Counts of each cell, float64.
        marked: Counts of each cell in each group of genes, float64 (cells, groups).
        cells: Cells that each gene is found in, int64.
        totals: Counts of each gene, float64.
    """

    genes: np.ndarray
    counts: np.ndarray
    marked: np.ndarray
    cells: np.ndarray
    totals: np.ndarray


def tally(block: Any, marks: np.ndarray) -> Tally:
    """Reduce a block.

    Args:
        block: Rows of X, CSR or dense.
        marks: Which genes belong to each group, bool (groups, genes).
    """
    matrix = block if sparse.issparse(block) else sparse.csr_matrix(block)
    found = (matrix.data != 0).astype(np.float64)
    presence = sparse.csr_matrix((found, matrix.indices, matrix.indptr), shape=matrix.shape)
    values = matrix.astype(np.float64)
    ones = np.ones(matrix.shape[1])
    return Tally(
        genes=(presence @ ones).astype(np.int32),
        counts=values @ ones,
        marked=values @ marks.T.astype(np.float64),
        cells=np.bincount(matrix.indices, found, minlength=matrix.shape[1]).astype(np.int64),
        totals=np.bincount(matrix.indices, values.data, minlength=matrix.shape[1]),
    )


def lazy_metrics(x: Any, marks: Mapping[str, np.ndarray]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`metrics` of a lazy matrix of blocks of rows; computes it in one pass.

    Args:
        x: A Dask array.
        marks: Which genes belong to each group, bool (genes,).
    """
    groups = np.array([*marks.values()], bool).reshape(len(marks), x.shape[1])
    parts = x.map_blocks(
        _boxed,
        groups,
        dtype=object,
        chunks=((1,) * len(x.chunks[0]), (1,)),
        meta=np.empty((0, 0), object),
    )
    return metrics(parts.compute().reshape(-1).tolist(), list(marks))


def _boxed(block: Any, marks: np.ndarray) -> np.ndarray:
    box = np.empty((1, 1), object)
    box[0, 0] = tally(block, marks)
    return box


def is_whole(block: Any) -> bool:
    """Whether all values of a block, here or on a GPU, are whole numbers, as counts are."""
    values = block.data if hasattr(block, "indptr") else block
    return bool((values == np.rint(values)).all())


def marked_genes(names: Sequence[str], marks: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    """Which genes belong to each group, by patterns of names: bool (genes,)."""
    return {group: match_names(names, patterns) for group, patterns in marks.items()}


def match_names(names: Sequence[str], patterns: Iterable[str]) -> np.ndarray:
    """Which names match one of the patterns (``*``, ``?``, ``[...]``): bool (names,)."""
    asked = list(patterns)
    return np.array([any(fnmatch.fnmatchcase(n, p) for p in asked) for n in names], bool)


def metrics(tallies: Sequence[Tally], groups: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The columns that scanpy's ``calculate_qc_metrics(percent_top=None)`` makes.

    Args:
        tallies: Of all blocks, in order.
        groups: Names of the groups of genes.

    Returns:
        Columns for obs, and columns for var.
    """
    import pandas as pd

    counts = np.concatenate([t.counts for t in tallies])
    obs = {"n_genes_by_counts": np.concatenate([t.genes for t in tallies])}
    obs["log1p_n_genes_by_counts"] = np.log1p(obs["n_genes_by_counts"].astype(np.float64))
    obs |= _summed("counts", counts)
    marked = np.concatenate([t.marked for t in tallies])
    for group, sums in zip(groups, marked.T, strict=True):
        obs |= _summed(f"counts_{group}", sums)
        with np.errstate(invalid="ignore"):  # no counts at all: NaN, as in scanpy
            share = sums.astype(np.float32) / counts.astype(np.float32)
            obs[f"pct_counts_{group}"] = share * np.float32(100)
    cells = np.sum([t.cells for t in tallies], axis=0)
    totals = np.sum([t.totals for t in tallies], axis=0)
    mean = (totals / len(counts)).astype(np.float32)
    var = {"n_cells_by_counts": cells, "mean_counts": mean, "log1p_mean_counts": np.log1p(mean)}
    var["pct_dropout_by_counts"] = (1 - cells / len(counts)) * 100
    var |= _summed("counts", totals)
    return pd.DataFrame(obs), pd.DataFrame(var)


def _summed(what: str, sums: np.ndarray) -> dict[str, np.ndarray]:
    total = sums.astype(np.float32)
    return {f"total_{what}": total, f"log1p_total_{what}": np.log1p(total)}
