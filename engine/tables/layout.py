"""AnnData on Zarr, written by rows: of the table never more than a chunk of rows is in memory.

The layout is AnnData's on-disk specification (https://anndata.readthedocs.io, "AnnData/zarr"),
versions as anndata 0.8 and later write them. The anndata package itself writes a table that is in
memory as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numcodecs import Blosc
from zarr.codecs import ZstdCodec

from cytopave.engine.omezarr.folders import Folder
from cytopave.engine.omezarr.publish import write_group
from cytopave.engine.tables.columns import INSTANCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cytopave.engine.tables.columns import Schema

CHUNK = 1 << 16
"""Rows in a chunk of every array."""

ROOT = {"encoding-type": "anndata", "encoding-version": "0.1.0"}
"""Attributes by which AnnData's readers know a table."""

REGION = "region"
"""Column that names the label image; SpatialData wants one."""

_DICT = {"encoding-type": "dict", "encoding-version": "0.1.0"}
_ARRAY = {"encoding-type": "array", "encoding-version": "0.2.0"}
_STRINGS = {"encoding-type": "string-array", "encoding-version": "0.2.0"}
_STRING = {"encoding-type": "string", "encoding-version": "0.2.0"}
_NUMBER = {"encoding-type": "numeric-scalar", "encoding-version": "0.2.0"}
_FRAME = {"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "_index"}
_CATEGORICAL = {"encoding-type": "categorical", "encoding-version": "0.2.0", "ordered": False}
_EMPTY = ("layers", "obsp", "varm", "varp")


class TableWriter:
    """Writes a table into a folder, which must be absent or empty, from first row to last.

    Args:
        folder: The table's group.
        schema: Its columns.
        zarr_format: 2 or 3.
        region: Name of the label image.
        rows: At least as many rows as will come.
        sample: No rows, of the type of those that will come.
    """

    def __init__(
        self,
        folder: Folder,
        schema: Schema,
        *,
        zarr_format: int,
        region: str,
        rows: int,
        sample: Mapping[str, np.ndarray],
    ) -> None:
        self._folder = folder
        self._format: Any = zarr_format
        self._rows = rows
        self._done = 0
        self._group("", ROOT)
        for name in (*_EMPTY, "obsm"):
            self._group(name, _DICT)
        order = [n for n in sample if n not in ("X", "spatial")]
        self._group("obs", {**_FRAME, "column-order": [order[0], REGION, *order[1:]]})
        self._columns = {
            n: self._array(_path(n), (rows, *v.shape[1:]), v.dtype, _ARRAY)
            for n, v in sample.items()
        }
        self._index = self._array("obs/_index", (rows,), str, _STRINGS)
        self._group(f"obs/{REGION}", _CATEGORICAL)
        self._strings(f"obs/{REGION}/categories", [region])
        self._codes = self._array(f"obs/{REGION}/codes", (rows,), np.int8, _ARRAY)
        self._var(schema)
        self._uns(schema, region)

    def write(self, columns: Mapping[str, np.ndarray]) -> None:
        """Append rows: a whole `CHUNK`, or the last ones.

        Args:
            columns: The columns of the sample; ``X`` and ``spatial`` have two axes.
        """
        rows = slice(self._done, self._done + len(columns[INSTANCE]))
        for name, values in columns.items():
            self._columns[name][rows] = values
        self._index[rows] = _names(columns)
        self._done = rows.stop

    def finish(self) -> int:
        """Cut the arrays to the rows that came; returns their number."""
        if self._done < self._rows:
            for array in (*self._columns.values(), self._index, self._codes):
                array.resize((self._done, *array.shape[1:]))
        return self._done

    def _var(self, schema: Schema) -> None:
        names, channels, statistics = zip(*schema.features, strict=True)
        self._group("var", {**_FRAME, "column-order": ["channel", "statistic"]})
        self._strings("var/_index", names)
        self._strings("var/channel", channels)
        self._strings("var/statistic", statistics)

    def _uns(self, schema: Schema, region: str) -> None:
        attrs = {"region": region, "region_key": REGION, "instance_key": INSTANCE}
        units = {a: u for a, u in zip(schema.axes, schema.units, strict=True) if u}
        sizes = dict(zip(schema.axes, schema.scale, strict=True))
        self._group("uns", _DICT)
        for name, values in (("spatialdata_attrs", attrs), ("units", units), ("pixel_size", sizes)):
            self._group(f"uns/{name}", _DICT)
            for key, value in values.items():
                kind = _STRING if isinstance(value, str) else _NUMBER
                array = self._array(f"uns/{name}/{key}", (), type(value), kind)
                array[...] = value

    def _strings(self, path: str, values: Sequence[str]) -> None:
        self._array(path, (len(values),), str, _STRINGS)[:] = np.array(values, object)

    def _group(self, path: str, attributes: Mapping[str, Any]) -> None:
        write_group(self._at(path), zarr_format=self._format, attributes=dict(attributes))

    def _at(self, path: str) -> Folder:
        return self._folder / path if path else self._folder

    def _array(
        self, path: str, shape: tuple[int, ...], dtype: Any, attributes: Mapping[str, Any]
    ) -> zarr.Array[Any]:
        return _create(self._at(path), shape, dtype, attributes, self._format)


def create_column(folder: Folder, rows: int, dtype: np.dtype[Any]) -> zarr.Array[Any]:
    """An empty column of numbers for a table that is there, in the table's own zarr format.

    Args:
        folder: The column's own, in the group ``obs``; what is there is replaced.
        rows: Rows of the table.
        dtype: Type of the numbers.
    """
    folder.remove()
    above = Folder(folder.url, folder.options, folder.path.rpartition("/")[0])
    return _create(folder, (rows,), dtype, _ARRAY, 3 if above.exists("zarr.json") else 2)


def _create(
    folder: Folder,
    shape: tuple[int, ...],
    dtype: Any,
    attributes: Mapping[str, Any],
    zarr_format: Any,
) -> zarr.Array[Any]:
    v3 = zarr_format == 3
    # Rooted at the array itself: zarr would make a group of every folder above it.
    url, options = folder.address
    return zarr.create_array(
        url,
        shape=shape,
        dtype=dtype,
        chunks=tuple(max(1, min(n, CHUNK)) for n in shape),
        compressors=ZstdCodec(level=1) if v3 else Blosc(cname="zstd", clevel=1),
        fill_value="" if dtype is str else np.zeros((), dtype).item(),
        zarr_format=zarr_format,
        attributes=dict(attributes),
        chunk_key_encoding={"name": "default" if v3 else "v2", "separator": "/"},
        storage_options=options or None,
        config={"write_empty_chunks": False},
    )


def _path(name: str) -> str:
    return {"X": "X", "spatial": "obsm/spatial"}.get(name, f"obs/{name}")


def _names(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Names of rows: the id, after the time where there is one (ids may come again)."""
    ids = columns[INSTANCE].tolist()
    if "time" not in columns:
        return np.array([str(i) for i in ids], object)
    times = columns["time"].tolist()
    return np.array([f"{t}_{i}" for t, i in zip(times, ids, strict=True)], object)
