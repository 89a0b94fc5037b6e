"""One block of the matrix as the steps see it: read, checked, and cut to what is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from cytopave.engine.atlas.parameters import Intensities
from cytopave.engine.atlas.store import check_values

if TYPE_CHECKING:
    from cytopave.engine.atlas.plan import AtlasPlan


def read_block(plan: AtlasPlan, number: int) -> Any:
    """All cells and genes of a block; raises as `read_rows`."""
    return read_rows(plan, *plan.bounds[number])


def read_rows(plan: AtlasPlan, start: int, stop: int) -> Any:
    """Rows of the store: CSR for counts, dense for intensities, float32.

    Raises:
        AtlasError: It holds values that the profile cannot have.
        CorruptError: A chunk is damaged.
    """
    block = plan.store.read(start, stop)
    refuse = None
    if plan.counts:
        refuse = (
            "counts are needed, not scaled or log-ratio values (for intensities of segmented "
            "cells use the profile intensities)"
        )
    elif isinstance(plan.profile, Intensities) and plan.profile.transform == "log1p":
        refuse = "their logarithm is not defined: use the transform arcsinh, or none"
    check_values(block, start=start, refuse_negative=refuse, where=plan.store.url)
    if plan.counts:
        return block if sparse.issparse(block) else sparse.csr_matrix(block)
    return block.toarray() if sparse.issparse(block) else block


def read_kept(plan: AtlasPlan, number: int) -> Any:
    """The kept cells and genes of a block.

    Raises:
        AtlasError: It holds values that the profile cannot have.
        CorruptError: A chunk is damaged.
    """
    return read_kept_rows(plan, *plan.bounds[number])


def read_kept_rows(plan: AtlasPlan, start: int, stop: int) -> Any:
    """The kept cells and genes of some rows of the store; raises as `read_kept`."""
    return cut(plan, read_rows(plan, start, stop), start, stop)


def cut(plan: AtlasPlan, block: Any, start: int, stop: int) -> Any:
    """What is kept of rows that have been read, here or onto a GPU; the block stays as it is."""
    step = plan.key("keep")
    cells = np.asarray(plan.results.array(step, "cells")[start:stop])
    genes = np.asarray(plan.results.array(step, "genes")[:])
    if not cells.all():
        block = block[np.flatnonzero(cells)]
    return block if genes.all() else choose_columns(block, np.flatnonzero(genes))


def choose_columns(block: Any, columns: np.ndarray) -> Any:
    """Some columns of a block, in ascending order within each row: cupy leaves them in any."""
    some = block[:, columns]
    if hasattr(some, "sort_indices"):
        some.sort_indices()
    return some


def read_values(plan: AtlasPlan, start: int, stop: int, *, normalized: bool) -> Any:
    """Kept cells and genes of some rows, in the host's memory.

    Args:
        plan: The run.
        start: First row of the store.
        stop: Row after the last.
        normalized: Whether counts are normalised, and intensities transformed; else as they are.
    """
    block = read_kept_rows(plan, start, stop)
    if not normalized:
        return block
    if isinstance(plan.profile, Intensities):
        return transform(block, plan.profile.transform, plan.profile.cofactor)
    return log_normalized(block, float(plan.results.read(plan.key("normalize"), "target_sum")))


def log_normalized(block: Any, target_sum: float) -> Any:
    """Counts of every cell scaled to one sum, then log(1 + x).

    In scanpy's precision and order, so that values are the same to the last bit. scanpy's own
    function has to be compiled first, in every process that needs it.

    Args:
        block: CSR of float32.
        target_sum: The sum; cells without counts stay without.
    """
    factors = row_sums(block).astype(np.float32) / np.float32(target_sum)
    factors[factors == 0] = 1
    values = np.log1p(block.data / np.repeat(factors, np.diff(block.indptr)))
    return sparse.csr_matrix((values, block.indices, block.indptr), shape=block.shape)


def row_sums(block: Any) -> np.ndarray:
    """Sum of each row, float64."""
    return np.asarray(block.sum(axis=1, dtype=np.float64)).reshape(-1)


def transform(block: np.ndarray, how: str, cofactor: float) -> np.ndarray:
    """Intensities on the scale on which they are compared."""
    if how == "log1p":
        return np.log1p(block)
    if how == "arcsinh":
        return np.arcsinh(block / np.float32(cofactor))
    return block
