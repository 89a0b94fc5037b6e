"""Which rows make a block, and what a block weighs: decided before anything is read."""

from __future__ import annotations

import itertools

import numpy as np

from cytopave.engine.atlas.store import MAX_NNZ
from cytopave.engine.errors import AtlasError, PlanError

ROWS = 25_000
"""Rows of a block at most, where nobody says otherwise."""

NNZ = 1 << 24
"""Stored values of a block at most, where nobody says otherwise: 128 MiB as CSR of float32."""

SHARE_ROWS = 1 << 18
"""Rows of a block of shared out rows at most. The covariance on GPUs is summed in float32 within a
block: 4e-6 of a sum are lost in so many rows, and 8e-5 in eleven million."""

GPU_SHARE = 0.25
"""Share of the workers' GPUs that X may take to stay there: the cluster nvlink gives RMM half of a
card, and half of that is left for copies of blocks, the variable genes' matrix, the covariance."""

BYTES_STORED = 8  # a float32 and an int32 column number
COPIES = 4
"""Copies of a block that a worker holds at once: as read, filtered, normalised, logarithmised."""

_GIB = 2**30


def plan_rows(ends: np.ndarray, asked: int | None, *, rows: int = ROWS, nnz: int = NNZ) -> int:
    """Rows of a block.

    Args:
        ends: `AtlasStore.row_ends`.
        asked: What somebody asked for.
        rows: Most rows where nobody did.
        nnz: Most stored values where nobody did.

    Raises:
        PlanError: A block of the rows asked for would hold more than 2^31 - 1 values.
        AtlasError: A single row does.
    """
    n_cells = len(ends) - 1
    if asked is not None:
        if (most := heaviest(ends, asked)) > MAX_NNZ:
            raise PlanError(
                f"a block of {asked} rows holds up to {most} stored values, more than the "
                f"{MAX_NNZ} that libraries can index: choose block_rows of at most "
                f"{plan_rows(ends, None, rows=asked, nnz=MAX_NNZ)}"
            )
        return min(asked, n_cells)
    found = min(rows, n_cells)
    while found > 1 and heaviest(ends, found) > nnz:
        found = (found + 1) // 2
    if heaviest(ends, found) > MAX_NNZ:
        raise AtlasError(f"a row of X holds more than {MAX_NNZ} stored values")
    return found


def heaviest(ends: np.ndarray, rows: int) -> int:
    """Stored values of the block that has most."""
    edges = ends[[*range(0, len(ends) - 1, rows), len(ends) - 1]]
    return int(np.diff(edges).max())


def bounds(n_cells: int, rows: int) -> list[tuple[int, int]]:
    """First row, and row after the last, of every block."""
    return list(itertools.pairwise([*range(0, n_cells, rows), n_cells]))


def share_rows(n_cells: int, nnz: int, workers: int) -> int:
    """Rows of a block where all workers get an equal share, in as few blocks as may be.

    Args:
        n_cells: Rows of the matrix.
        nnz: Its stored values; a block is to hold half as many as it could index, if rows are even.
        workers: How many workers there are.
    """
    of_one = -(-n_cells // workers)
    blocks = max(-(-of_one // SHARE_ROWS), -(-2 * nnz // (workers * MAX_NNZ)), 1)
    return -(-n_cells // (workers * blocks))


def block_bytes(ends: np.ndarray, rows: int) -> int:
    """What a worker needs for one block of the matrix, copies included."""
    return COPIES * BYTES_STORED * heaviest(ends, rows)


def csr_bytes(n_cells: int, nnz: int) -> int:
    """The whole matrix as CSR of float32; a dense one at most, as if none of its values were 0."""
    return BYTES_STORED * nnz + 4 * n_cells


def check_dense(*, rows: int, n_cells: int, genes: int, itemsize: int, have: int) -> None:
    """Refuse to make dense what does not fit a worker.

    Args:
        rows: Rows of a block.
        n_cells: Rows of the matrix.
        genes: Columns of the dense matrix.
        itemsize: Bytes of a value.
        have: Memory of a worker in bytes.

    Raises:
        PlanError: It does not; the message has the figures and what else can be done.
    """
    need = COPIES * rows * genes * itemsize
    if need <= have:
        return
    fits = max(1, have // (COPIES * genes * itemsize))
    raise PlanError(
        f"scaling to zero mean makes X dense: {n_cells * genes * itemsize / _GIB:.1f} GiB in all, "
        f"and {need / _GIB:.1f} GiB on a worker for a block of {rows} cells by {genes} genes, of "
        f"{have / _GIB:.1f} GiB there. Leave the zero mean out (scale.zero_center=false; the PCA "
        f"centres by itself), or take fewer variable genes, or blocks of {fits} rows (block_rows)"
    )


def check_graph(*, n_cells: int, n_neighbors: int, n_comps: int, have: int) -> None:
    """Refuse a graph of neighbours that does not fit the one process that makes it.

    Args:
        n_cells: Cells.
        n_neighbors: Neighbours of each.
        n_comps: Principal components.
        have: Memory of a worker in bytes.

    Raises:
        PlanError: It does not.
    """
    need = graph_bytes(n_cells, n_neighbors, n_comps)
    if need > have:
        raise PlanError(
            f"the graph of {n_neighbors} neighbours of {n_cells} cells needs about "
            f"{need / _GIB:.1f} GiB in one process, and a worker has {have / _GIB:.1f} GiB: give "
            "workers more memory (a Cluster block with memory_limit, or fewer workers), or leave "
            "the steps neighbors, umap and leiden out"
        )


def graph_bytes(n_cells: int, n_neighbors: int, n_comps: int) -> int:
    """Components twice, and edges in both directions, each about four times while it is made."""
    return n_cells * (2 * 4 * n_comps + 4 * 2 * 12 * n_neighbors)
