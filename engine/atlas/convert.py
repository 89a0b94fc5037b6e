"""AnnData in HDF5, or stored by columns, written again as Zarr by rows; of X a piece at a time."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from cytopave.engine.atlas.store import require_anndata
from cytopave.engine.atlas.write import ROOT, VALUES, create_csr
from cytopave.engine.errors import AtlasError, CorruptError, OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BAND = 1 << 25
"""Values of the rows that are collected at once from a matrix stored by columns: about 0.5 GB."""

_ROWS_BYTES = 1 << 26


def convert_atlas(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    x: str = "X",
    overwrite: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Path:
    """Write an AnnData file as a store that `open_atlas` reads.

    Args:
        source: An ``.h5ad`` file, or an AnnData store on Zarr.
        output: Path of the new store.
        x: What becomes its X: "X", "raw", or "layers/NAME". Other layers are left out; of "raw",
            the genes too are those of raw.
        overwrite: Whether a store there is replaced.
        progress: Told the share of X that is written.

    Returns:
        The store's absolute path.

    Raises:
        AtlasError: The source is no AnnData, or has no such matrix.
        OutputError: The output exists, or cannot be written.
        CorruptError: The source is damaged.
    """
    require_anndata()
    final = Path(output).expanduser().absolute()
    if os.path.lexists(final) and not overwrite:
        raise OutputError(f"{final} exists: choose another output, or replace it (--overwrite)")
    part = final.with_name(f".{final.name}.{os.getpid()}.part")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, part, ignore_errors=True)
        group = _opened(source, stack)
        path, var = ("raw/X", "raw/var") if x == "raw" else (x, "var")
        if path not in group or "obs" not in group or var not in group:
            layers = [f"layers/{n}" for n in group.get("layers", {})]
            there = ", ".join([n for n in ("X", "raw") if n in group] + layers) or "nothing"
            raise AtlasError(f"{source} has no {x} with obs and {var}: there is {there}")
        try:
            _write(group, path, var, part, progress or _ignored)
            if final.exists():
                os.rename(final, part.with_suffix(".old"))
            os.rename(part, final)
            shutil.rmtree(part.with_suffix(".old"), ignore_errors=True)
        except OSError as error:
            raise _told(error, source, final) from error
    return final


def _told(error: OSError, source: Any, final: Path) -> CorruptError | OutputError:
    # h5py has no error of its own for damage: no number, unlike the operating system's.
    if error.errno is None:
        return CorruptError(f"{source} is damaged: {error}")
    return OutputError(f"{final} cannot be written: {error}")


def _ignored(share: float) -> None:
    del share


def _opened(source: str | os.PathLike[str], stack: ExitStack) -> Any:
    path = Path(source).expanduser()
    if path.is_dir():
        try:
            return zarr.open_group(str(path), mode="r")
        except (OSError, ValueError) as error:
            raise AtlasError(f"{path} is no zarr group: {error}") from error
    import h5py

    try:
        return stack.enter_context(h5py.File(path, "r"))
    except FileNotFoundError:
        raise AtlasError(f"there is no file {path}") from None
    except OSError as error:
        raise AtlasError(f"{path} is no HDF5 file, or a damaged one: {error}") from error


def _write(group: Any, path: str, var: str, part: Path, progress: Callable[[float], None]) -> None:
    from anndata.io import read_elem, write_elem

    root = zarr.open_group(str(part), mode="w", zarr_format=3)
    root.attrs.update(ROOT)
    _write_matrix(group[path], part / "X", progress)
    write_elem(root, "obs", read_elem(group["obs"]))
    write_elem(root, "var", read_elem(group[var]))
    kept = ("obsm", "obsp", "uns") if var != "var" else ("obsm", "obsp", "uns", "varm", "varp")
    for name in kept:
        write_elem(root, name, read_elem(group[name]) if name in group else {})
    for name in {"varm", "varp", "layers"} - set(kept):
        write_elem(root, name, {})


def _write_matrix(source: Any, folder: Path, progress: Callable[[float], None]) -> None:
    encoding = str(source.attrs.get("encoding-type", source.attrs.get("h5sparse_format", "")))
    if encoding.startswith("csr"):
        _write_csr(source, folder, progress)
    elif encoding.startswith("csc"):
        _write_csc(source, folder, progress)
    elif hasattr(source, "dtype"):
        _write_dense(source, folder, progress)
    else:
        raise AtlasError(f"its matrix is stored as {encoding!r}: CSR, CSC or dense are understood")


def _shape(source: Any) -> tuple[int, int]:
    shape = source.attrs.get("shape", source.attrs.get("h5sparse_shape"))
    return int(shape[0]), int(shape[1])


def _write_csr(source: Any, folder: Path, progress: Callable[[float], None]) -> None:
    ends = np.asarray(source["indptr"][:]).astype(np.int64)
    create_csr(folder, ends, _shape(source)[1])
    data, indices = (zarr.open_array(str(folder), path=n, mode="r+") for n in ("data", "indices"))
    for start, stop in _pieces(int(ends[-1]), 16 * VALUES):
        data[start:stop] = np.asarray(source["data"][start:stop], np.float32)
        indices[start:stop] = np.asarray(source["indices"][start:stop]).astype(np.int32)
        progress(stop / int(ends[-1]))


def _write_dense(source: Any, folder: Path, progress: Callable[[float], None]) -> None:
    n_rows, n_columns = source.shape
    rows = max(1, min(n_rows, _ROWS_BYTES // (4 * n_columns)))
    array = zarr.create_array(
        str(folder),
        shape=source.shape,
        chunks=(rows, n_columns),
        dtype=np.float32,
        zarr_format=3,
        attributes={"encoding-type": "array", "encoding-version": "0.2.0"},
    )
    for start, stop in _pieces(n_rows, rows):
        array[start:stop] = np.asarray(source[start:stop], np.float32)
        progress(stop / n_rows)


def _write_csc(source: Any, folder: Path, progress: Callable[[float], None]) -> None:
    """Collect a band of rows at a time; each band reads all row numbers once more."""
    n_rows, n_columns = _shape(source)
    ends = np.asarray(source["indptr"][:]).astype(np.int64)
    lengths = np.zeros(n_rows, np.int64)
    for start, stop in _pieces(int(ends[-1]), BAND):
        lengths += np.bincount(np.asarray(source["indices"][start:stop]), minlength=n_rows)
    rows = np.concatenate([[0], np.cumsum(lengths)])
    create_csr(folder, rows, n_columns)
    data, indices = (zarr.open_array(str(folder), path=n, mode="r+") for n in ("data", "indices"))
    first = 0
    while first < n_rows:
        last = max(first + 1, int(np.searchsorted(rows, rows[first] + BAND, side="right")) - 1)
        columns, values = _band(source, ends, first, last)
        data[int(rows[first]) : int(rows[last])] = values
        indices[int(rows[first]) : int(rows[last])] = columns
        progress(last / n_rows)
        first = last


def _band(source: Any, ends: np.ndarray, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Column numbers and values of some rows, row by row, columns ascending."""
    found = []
    for start, stop in _pieces(int(ends[-1]), BAND):
        rows = np.asarray(source["indices"][start:stop])
        inside = np.flatnonzero((rows >= first) & (rows < last))
        columns = np.searchsorted(ends, start + inside, side="right") - 1
        values = np.asarray(source["data"][start:stop], np.float32)[inside]
        found.append((rows[inside], columns.astype(np.int32), values))
    rows, columns, values = (np.concatenate(part) for part in zip(*found, strict=True))
    order = np.lexsort((columns, rows))
    return columns[order], values[order]


def _pieces(total: int, size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, total, size):
        yield start, min(start + size, total)
