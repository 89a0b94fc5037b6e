"""Writing the result as AnnData on Zarr: the matrix by workers, each its own chunks.

CSR on disk is three flat arrays, so a block of rows ends in the middle of a chunk. A part is
therefore made of whole chunks of values, and whoever writes it reads the few rows of the next block
that its last chunk holds as well: nobody waits for anybody, and a part may be written again.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from scipy import sparse

from cytopave.engine.atlas import kept

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cytopave.engine.atlas.plan import AtlasPlan

VALUES = 1 << 20
"""Values in a chunk of ``data`` and ``indices``."""

_CSR = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
_ARRAY = {"encoding-type": "array", "encoding-version": "0.2.0"}
ROOT = {"encoding-type": "anndata", "encoding-version": "0.1.0"}


@dataclass(frozen=True)
class Part:
    """Whole chunks of a matrix that one task writes.

    Attributes:
        first: First kept row that it needs.
        stop: Kept row after the last that it needs.
        skip: Values of the first row that belong to the part before.
        begin: Position of its first value.
        end: Position after its last.
    """

    first: int
    stop: int
    skip: int
    begin: int
    end: int


def plan_parts(ends: np.ndarray, rows: int, *, values: int = VALUES) -> list[Part]:
    """Cut a CSR matrix into parts of about so many rows.

    Args:
        ends: Position of each row's first value, and of the end, int64 (rows + 1,).
        rows: Rows of a part.
        values: Values of a chunk.
    """
    total = int(ends[-1])
    edges = sorted({-(-int(ends[r]) // values) * values for r in range(0, len(ends) - 1, rows)})
    edges = [e for e in edges if e < total] + [total]
    parts = []
    for begin, end in itertools.pairwise(edges):
        first = int(np.searchsorted(ends, begin, side="right")) - 1
        stop = int(np.searchsorted(ends, end, side="left"))
        parts.append(Part(first, stop, begin - int(ends[first]), begin, end))
    return parts


def create_csr(folder: Path, ends: np.ndarray, n_genes: int) -> None:
    """An empty CSR matrix of float32 whose rows are known.

    Args:
        folder: Its group, in a store.
        ends: Position of each row's first value, and of the end.
        n_genes: Columns.
    """
    group = zarr.open_group(str(folder), mode="w", zarr_format=3)
    group.attrs.update({**_CSR, "shape": [len(ends) - 1, n_genes]})
    wide = np.int64 if ends[-1] > np.iinfo(np.int32).max else np.int32
    for name, dtype in (("data", np.float32), ("indices", np.int32)):
        array = group.create_array(name, shape=(int(ends[-1]),), chunks=(VALUES,), dtype=dtype)
        array.attrs.update(_ARRAY)
    rows = group.create_array("indptr", shape=ends.shape, chunks=(VALUES,), dtype=wide)
    rows.attrs.update(_ARRAY)
    rows[:] = ends.astype(wide)


def create_dense(folder: Path, shape: tuple[int, int], rows: int) -> None:
    """An empty dense matrix of float32 in chunks of rows."""
    array = zarr.create_array(
        str(folder), shape=shape, chunks=(rows, shape[1]), dtype=np.float32, zarr_format=3
    )
    array.attrs.update(_ARRAY)


def write_part(plan: AtlasPlan, folder: Path, part: Part, *, normalized: bool) -> None:
    """Read, process and write one part of a CSR matrix."""
    block = _rows(plan, part.first, part.stop, normalized=normalized)
    values = slice(part.skip, part.skip + part.end - part.begin)
    for name, content in (("data", block.data), ("indices", block.indices)):
        array = zarr.open_array(str(folder), path=name, mode="r+")
        array[part.begin : part.end] = content[values]


def write_rows(plan: AtlasPlan, folder: Path, first: int, stop: int, *, normalized: bool) -> None:
    """Read, process and write whole chunks of rows of a dense matrix."""
    block = _rows(plan, first, stop, normalized=normalized)
    zarr.open_array(str(folder), mode="r+")[first:stop] = (
        block.toarray() if sparse.issparse(block) else block
    )


def _rows(plan: AtlasPlan, first: int, stop: int, *, normalized: bool) -> Any:
    """Kept rows, by their number among the kept ones."""
    cells = np.flatnonzero(np.asarray(plan.results.array(plan.key("keep"), "cells")[:]))
    chosen = cells[first:stop]
    return kept.read_values(plan, int(chosen[0]), int(chosen[-1]) + 1, normalized=normalized)


def stored_lengths(plan: AtlasPlan, number: int) -> np.ndarray:
    """Stored values in each kept row of a block, in the kept genes: int64."""
    return np.asarray(np.diff(kept.read_kept(plan, number).indptr), np.int64)


def write_tables(folder: Path, entries: Mapping[str, Any]) -> None:
    """Everything of an AnnData store but the matrix, by anndata.

    Args:
        folder: The store's root, which may hold the matrix already.
        entries: Content of obs, var, obsm, varm, obsp, uns.
    """
    from anndata.io import write_elem

    group = zarr.open_group(str(folder), mode="a", zarr_format=3)
    group.attrs.update(ROOT)
    for name, content in entries.items():
        write_elem(group, name, content)
    for name in ("layers", "obsm", "varm", "obsp", "varp", "uns"):
        if name not in group:
            write_elem(group, name, {})
        elif name == "layers":
            group[name].attrs.update({"encoding-type": "dict", "encoding-version": "0.1.0"})
