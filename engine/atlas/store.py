"""AnnData on Zarr, read by rows: what a store holds, and one block of its matrix."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import zarr
from pydantic import BaseModel, ConfigDict
from scipy import sparse

from cytopave.engine.errors import AtlasError, CorruptError, MissingExtraError
from cytopave.engine.omezarr import ngff
from cytopave.engine.omezarr.folders import Folder, absolute

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

MAX_NNZ = 2**31 - 1
"""Stored values of one block: libraries on GPUs index them by 32 bits."""

_KINDS = {"csr_matrix": "csr", "array": "dense"}
_CONVERT = "write it again by rows: cytopave convert"


class AtlasStore(BaseModel):
    """An AnnData store whose matrix can be read by rows; plain values, made once.

    Attributes:
        url: The store.
        storage_options: What fsspec needs to open it.
        kind: How X lies there.
        n_cells: Rows.
        n_genes: Columns.
        nnz: Stored values.
    """

    model_config = ConfigDict(frozen=True)

    url: str
    storage_options: dict[str, Any] = {}
    kind: Literal["csr", "dense"]
    n_cells: int
    n_genes: int
    nnz: int

    @property
    def folder(self) -> Folder:
        """The store's root."""
        return Folder(self.url, self.storage_options)

    def group(self) -> zarr.Group:
        """The store, opened by zarr."""
        return zarr.open_group(self.url, mode="r", storage_options=self.storage_options or None)

    def row_ends(self) -> np.ndarray:
        """Position of each row's first stored value, and of the end: ``n_cells + 1`` of int64.

        Raises:
            CorruptError: They cannot be read, or do not fit the values.
        """
        if self.kind == "dense":
            return np.arange(self.n_cells + 1, dtype=np.int64) * self.n_genes
        ends = np.asarray(self._read("indptr", slice(None))).astype(np.int64)
        if ends[0] != 0 or ends[-1] != self.nnz or (np.diff(ends) < 0).any():
            raise CorruptError(
                f"X of {self.url} is damaged: its rows (indptr) do not fit its {self.nnz} stored "
                f"values. {_CONVERT[0].upper()}{_CONVERT[1:]}"
            )
        return ends

    def read(self, start: int, stop: int) -> Any:
        """Rows of X as float32: a CSR matrix with int32 column numbers, or a dense array.

        Raises:
            CorruptError: A chunk is missing, truncated or damaged.
        """
        if self.kind == "dense":
            return np.ascontiguousarray(self._read("", slice(start, stop)), np.float32)
        ends = np.asarray(self._read("indptr", slice(start, stop + 1))).astype(np.int64)
        part = slice(int(ends[0]), int(ends[-1]))
        values = np.asarray(self._read("data", part)).astype(np.float32, copy=False)
        columns = np.asarray(self._read("indices", part))
        return _csr(self, start, stop, ends - ends[0], columns, values)

    def _read(self, name: str, rows: slice) -> Any:
        folder = self.folder / "X" / name if name else self.folder / "X"
        try:
            return folder.array()[rows]
        except (OSError, ValueError, RuntimeError, EOFError, KeyError) as error:
            where = f"rows {rows.start} to {rows.stop}" if rows.stop else "all rows"
            raise CorruptError(
                f"a chunk of {folder} ({where}) is missing, truncated or damaged: {error}"
            ) from error


def _csr(
    store: AtlasStore,
    start: int,
    stop: int,
    ends: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
) -> Any:
    """Check what would make every later step wrong without a word: a missing chunk reads as 0."""
    lengths = np.diff(ends)
    if len(columns) != ends[-1] or (lengths < 0).any():
        raise CorruptError(f"X of {store.url} is damaged: row ends do not fit, row {start} on")
    if len(columns) and (columns.min() < 0 or columns.max() >= store.n_genes):
        raise CorruptError(
            f"X of {store.url} is damaged: rows {start} to {stop} name columns beyond the "
            f"{store.n_genes} genes"
        )
    matrix = sparse.csr_matrix(
        (values, columns.astype(np.int32, copy=False), ends.astype(np.int32)),
        shape=(stop - start, store.n_genes),
    )
    matrix.sort_indices()
    steps = np.diff(matrix.indices)
    steps[ends[1:-1][(ends[1:-1] > 0) & (ends[1:-1] < len(columns))] - 1] = 1  # between rows
    if len(steps) and (steps <= 0).any():
        row = start + int(np.searchsorted(ends, int(np.argmax(steps <= 0)), side="right")) - 1
        raise CorruptError(
            f"X of {store.url} is damaged: row {row} names a column twice (is a chunk of its "
            "indices missing?)"
        )
    return matrix


def open_atlas(
    url: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> AtlasStore:
    """Open an AnnData store; only metadata are read.

    Args:
        url: Path or URL of the store: of an ``.zarr`` that holds AnnData, or of a table in one.
        storage_options: What fsspec needs to open it.

    Raises:
        AtlasError: It is none, or its matrix cannot be read by rows.
        MissingExtraError: The extra ``atlas`` is not installed.
    """
    require_anndata()
    folder = Folder(absolute(url), dict(storage_options or {}))
    if str(folder).endswith((".h5ad", ".h5")):
        raise AtlasError(f"{folder} is an HDF5 file: convert it first (cytopave convert {folder})")
    root = ngff.read_attributes(folder)
    if root is None:
        raise AtlasError(f"there is no zarr group at {folder}: name a store that holds AnnData")
    found = ngff.read_attributes(folder / "X")
    if found is None or any(ngff.read_attributes(folder / n) is None for n in ("obs", "var")):
        raise AtlasError(
            f"{folder} holds no AnnData with a matrix X (groups X, obs and var): name such a store "
            "(for a table that cytopave wrote: IMAGE.zarr/tables/NAME)"
        )
    encoding = str(found.get("encoding-type", "array"))
    if encoding not in _KINDS:
        how = "by columns (CSC)" if encoding == "csc_matrix" else f"as {encoding!r}"
        raise AtlasError(f"X of {folder} is stored {how} and cannot be read by rows: {_CONVERT}")
    return _described(folder, _KINDS[encoding], found)


def _described(folder: Folder, kind: str, found: Mapping[str, Any]) -> AtlasStore:
    x = folder / "X"
    try:
        arrays = [(x / n).array() for n in ("data", "indices", "indptr")] if kind == "csr" else []
        shape = found["shape"] if arrays else x.array().shape
        dtype = (arrays[0] if arrays else x.array()).dtype
    except (OSError, ValueError, KeyError) as error:
        raise AtlasError(f"X of {folder} cannot be opened: {error}") from error
    if len(shape) != 2 or min(shape) < 1:
        raise AtlasError(f"X of {folder} has the shape {tuple(shape)}: cells by genes are needed")
    if dtype.kind not in "iufb":
        raise AtlasError(f"X of {folder} holds {dtype}: numbers are needed")
    n_cells, n_genes = int(shape[0]), int(shape[1])
    if arrays:
        sizes = [int(a.shape[0]) for a in arrays]
        if sizes[0] != sizes[1] or sizes[2] != n_cells + 1:
            raise AtlasError(
                f"X of {folder} is damaged: {sizes[0]} values, {sizes[1]} column numbers and "
                f"{sizes[2] - 1} rows do not fit its shape {n_cells} x {n_genes}: {_CONVERT}"
            )
    return AtlasStore(
        url=folder.url if not folder.path else str(folder),
        storage_options=dict(folder.options),
        kind=kind,
        n_cells=n_cells,
        n_genes=n_genes,
        nnz=sizes[0] if arrays else n_cells * n_genes,
    )


def require_anndata() -> None:
    """Refuse to begin without the extra.

    Raises:
        MissingExtraError: anndata or scanpy is not installed.
    """
    import importlib.util

    for name in ("anndata", "scanpy"):
        if importlib.util.find_spec(name) is None:
            raise MissingExtraError(f"atlases need {name}: install cytopave[atlas]")


def check_names(names: Sequence[str], what: str, store: AtlasStore) -> None:
    """Refuse names that come twice: results could not be told apart by name.

    Raises:
        AtlasError: They do; the first of them is in the message.
    """
    twice = [name for name, n in collections.Counter(names).items() if n > 1]
    if twice:
        raise AtlasError(
            f"{len(twice)} names of {what} of {store.url} come more than once (such as "
            f"{str(twice[0])!r}): make them unique in anndata ({what}_names_make_unique), or let "
            "cytopave number them (unique_names)"
        )


def check_values(block: Any, *, start: int, refuse_negative: str | None, where: str) -> None:
    """Refuse values that would make every result meaningless.

    Args:
        block: Rows of X.
        start: Number of the first row.
        refuse_negative: What to do instead of giving negative values; None: they may be given.
        where: The store.

    Raises:
        AtlasError: NaN, infinity, or a negative count; names the first row and column.
    """
    values = block.data if sparse.issparse(block) else block
    if not values.size:
        return
    wrong, name = ~np.isfinite(values), "NaN or infinity"
    remedy = "leave such cells or genes out before"
    if refuse_negative and not wrong.any():
        wrong, name, remedy = values < 0, "a negative value", refuse_negative
    if not wrong.any():
        return
    row, column = _place(block, wrong)
    raise AtlasError(f"X of {where} holds {name} (row {start + row}, column {column}): {remedy}")


def _place(block: Any, wrong: np.ndarray) -> tuple[int, int]:
    if not sparse.issparse(block):
        row, column = np.argwhere(wrong)[0]
        return int(row), int(column)
    at = int(np.argmax(wrong))
    return int(np.searchsorted(block.indptr, at, side="right")) - 1, int(block.indices[at])
