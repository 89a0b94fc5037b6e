"""New columns of a table that is published already: written first, listed last."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from cytopave.engine.errors import OutputError
from cytopave.engine.omezarr import ngff, publish
from cytopave.engine.omezarr.folders import Folder
from cytopave.engine.tables.layout import create_column
from cytopave.engine.tables.read import RELATIONS, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def known(table: Table) -> dict[str, Any]:
    """What made each related column of a table, by column; of those that are listed."""
    record = table.made.get(RELATIONS) or {}
    return {name: record[name] for name in record if name in table.obs}


class ColumnWriter:
    """Writes columns of a table from first row to last.

    A column that is replaced is not listed meanwhile. Whoever is killed leaves a table as it was,
    but for columns that nobody sees.

    Args:
        table: The table.
        columns: The new columns' names and types.
    """

    def __init__(self, table: Table, columns: Mapping[str, Any]) -> None:
        self._table = table
        self._names = list(columns)
        self._done = 0
        with self._writing(), publish.locked(Folder(table.folder.url, table.folder.options)):
            others = [n for n in self._listed() if n not in columns]
            if others != self._listed():
                self._list(others)
            self._arrays: dict[str, zarr.Array[Any]] = {
                name: create_column(table.folder / "obs" / name, len(table), np.dtype(dtype))
                for name, dtype in columns.items()
            }

    def write(self, values: Mapping[str, np.ndarray]) -> None:
        """Append rows of all columns."""
        rows = slice(self._done, self._done + len(values[self._names[0]]))
        with self._writing():
            for name, array in self._arrays.items():
                array[rows] = values[name]
        self._done = rows.stop

    def finish(self, made: Mapping[str, Any]) -> None:
        """Say where the columns come from, then list them.

        Args:
            made: JSON values, the same for all of them.
        """
        table = self._table
        store = Folder(table.folder.url, table.folder.options)
        with self._writing(), publish.locked(store):
            attributes = dict(ngff.read_attributes(table.folder) or {})
            own = dict(attributes[publish.PROVENANCE])
            own[RELATIONS] = {
                **own.get(RELATIONS, {}),
                **{name: dict(made) for name in self._names},
            }
            consolidated = self._is_consolidated()
            self._write_attributes("", {**attributes, publish.PROVENANCE: own})
            self._list([*(n for n in self._listed() if n not in self._names), *self._names])
            if consolidated:
                zarr.consolidate_metadata(table.folder.address[0])
            publish.refresh_consolidated(store, "tables", table.folder.name)

    def _listed(self) -> list[str]:
        return list((ngff.read_attributes(self._table.folder / "obs") or {})["column-order"])

    def _list(self, names: list[str]) -> None:
        attributes = dict(ngff.read_attributes(self._table.folder / "obs") or {})
        self._write_attributes("obs", {**attributes, "column-order": names})

    def _write_attributes(self, path: str, attributes: dict[str, Any]) -> None:
        folder = self._table.folder / path if path else self._table.folder
        zarr_format = 3 if folder.exists("zarr.json") else 2
        publish.write_group(folder, zarr_format=zarr_format, attributes=attributes)

    def _is_consolidated(self) -> bool:
        folder = self._table.folder
        own = folder.read_json("zarr.json") or {}
        return folder.local is not None and bool(
            own.get("consolidated_metadata") or folder.exists(".zmetadata")
        )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(f"{self._table.folder} cannot be written: {error}") from error
