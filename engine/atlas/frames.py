"""The columns of cells and genes: read whole, but for the ones that nobody asks for."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.atlas.store import check_names
from cytopave.engine.errors import AtlasError, CorruptError
from cytopave.engine.omezarr import ngff

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cytopave.engine.atlas.store import AtlasStore


def column_names(store: AtlasStore, frame: str) -> tuple[str, ...]:
    """Names of the columns of ``obs`` or ``var``."""
    found = ngff.read_attributes(store.folder / frame) or {}
    return tuple(map(str, found.get("column-order", ())))


def read_column(store: AtlasStore, frame: str, name: str) -> Any:
    """One column, as anndata reads it.

    Raises:
        AtlasError: There is none of that name.
        CorruptError: It is damaged.
    """
    known = column_names(store, frame)
    if name not in known:
        shown = ", ".join(known[:20]) or "none"
        raise AtlasError(f"{frame} of {store.url} has no column {name!r}: those there are {shown}")
    return _read(store, f"{frame}/{name}")


def read_names(store: AtlasStore, frame: str, *, unique: bool) -> list[str]:
    """Names of the cells (``obs``) or genes (``var``).

    Args:
        store: The store.
        frame: "obs" or "var".
        unique: Whether names that come twice get a number, as anndata gives them.

    Raises:
        AtlasError: Names come twice and shall not get numbers.
        CorruptError: They are damaged, or do not fit the matrix.
    """
    attributes = ngff.read_attributes(store.folder / frame) or {}
    names = [str(n) for n in _read(store, f"{frame}/{attributes.get('_index', '_index')}")]
    expected = store.n_cells if frame == "obs" else store.n_genes
    if len(names) != expected:
        raise CorruptError(
            f"{frame} of {store.url} has {len(names)} rows where X has {expected}: the store is "
            "damaged"
        )
    if not unique:
        check_names(names, frame, store)
        return names
    import pandas as pd
    from anndata.utils import make_index_unique

    return [str(n) for n in make_index_unique(pd.Index(names))]


def fingerprint(store: AtlasStore, columns: Iterable[str]) -> str:
    """SHA-256 over the name, size and time of each file that a run's results depend on.

    Args:
        store: The store.
        columns: The columns of obs that are used.
    """
    digest = hashlib.sha256()
    for path in ("X", "var", *(f"obs/{c}" for c in sorted(set(columns)))):
        folder = store.folder
        for name in path.split("/"):
            folder /= name
        for name, size, stamp in sorted(folder.files()):
            digest.update(f"{path}/{name}\0{size}\0{stamp}\n".encode())
    return digest.hexdigest()


def check_chunks(store: AtlasStore) -> None:
    """Refuse a matrix of which a chunk of values is missing: zarr would read zeros.

    Raises:
        CorruptError: One is.
    """
    if store.kind != "csr" or store.folder.local is None:
        return
    array = (store.folder / "X" / "data").array()
    # Of shards it counts all places for chunks, so that there may be more than there are chunks.
    if array.nchunks_initialized < array.nchunks:
        raise CorruptError(
            f"a chunk of {store.folder / 'X' / 'data'} is missing: copy the store again"
        )


def limited(values: np.ndarray, low: float | None, high: float | None) -> np.ndarray:
    """Which values lie between the limits; NaN does not."""
    keep = ~np.isnan(values)
    if low is not None:
        keep &= values >= low
    if high is not None:
        keep &= values <= high
    return keep


def categories(values: Any, cells: np.ndarray, what: str) -> tuple[np.ndarray, Sequence[str]]:
    """Groups of the kept cells: a code for each cell, -1 where it has none, and their names.

    Args:
        values: A column, categorical or anything that can be told apart.
        cells: Which cells are kept.
        what: Its name, for messages.

    Raises:
        AtlasError: All cells are in one group, or in none.
    """
    import pandas as pd

    found = pd.Categorical(np.asarray(values)[cells])
    if len(found.categories) < 2:
        raise AtlasError(f"the column {what!r} puts all cells into one group: name another one")
    return np.asarray(found.codes), [str(c) for c in found.categories]


def _read(store: AtlasStore, path: str) -> Any:
    from anndata.io import read_elem

    try:
        return read_elem(store.group()[path])
    except Exception as error:  # whatever anndata or zarr raise for it
        raise CorruptError(f"{store.url}, {path}, cannot be read: {error}") from error
