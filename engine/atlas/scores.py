"""Scores of gene sets: mean expression of the set less that of genes expressed as strongly.

The method of Tirosh et al. 2016 (doi:10.1126/science.aad0501) as scanpy's ``score_genes`` has it,
bins and random choice included, so that scores equal scanpy's. It takes the mean of every gene, for
which one pass over the blocks suffices, and then two sums of every cell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZE = 50
"""Control genes of one bin."""

BINS = 25


def control_genes(
    means: np.ndarray, names: Sequence[str], genes: Sequence[str], *, seed: int
) -> list[int]:
    """Genes of a set's bins of expression, which are not of the set.

    Args:
        means: Mean of each gene.
        names: Names of all genes.
        genes: The set, all of them among the names.
        seed: Of the random choice.

    Returns:
        Positions of the control genes among the names.
    """
    import pandas as pd

    # scanpy's: the legacy generator, drawn from once a bin.
    state = np.random.RandomState(seed)
    index = pd.Index(list(names), dtype="string")
    chosen = pd.Index(list(genes)).intersection(index)
    average = pd.Series(means, index=index)
    per_bin = max(1, int(np.round(len(average) / (BINS - 1))))
    bins = average.rank(method="min") // per_bin
    controls = pd.Index([], dtype="string")
    for number in np.unique(bins.loc[chosen]):
        of_bin = bins[bins == number].index
        if len(of_bin) > SIZE:
            of_bin = of_bin.to_series().sample(SIZE, random_state=state).index
        controls = controls.union(of_bin.difference(chosen))
    return [int(i) for i in index.get_indexer(controls)]


def column_sums(block: Any) -> np.ndarray:
    """Sum of each gene in a block, float64."""
    return np.asarray(block.sum(axis=0, dtype=np.float64)).reshape(-1)


def set_means(block: Any, sets: Sequence[Sequence[int]]) -> np.ndarray:
    """Mean of each set of genes in each cell of a block, float64 (cells, sets)."""
    weights = np.zeros((block.shape[1], len(sets)))
    for column, positions in enumerate(sets):
        weights[list(positions), column] = 1 / len(positions)
    return np.asarray(block @ weights, np.float64)
