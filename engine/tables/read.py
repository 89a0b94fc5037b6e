"""Opening a table that cytopave wrote, and making sure that it describes the labels beside it."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.errors import ImageError, OutputError, StaleTableError
from cytopave.engine.omezarr import ngff, publish
from cytopave.engine.omezarr.folders import Folder, absolute
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.tables.fingerprint import is_unchanged, label_fingerprint
from cytopave.engine.tables.layout import CHUNK, REGION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


logger = logging.getLogger(__name__)

RELATIONS = "relations"
"""Entry of the attribute ``cytopave`` that says which labels columns of a table relate to."""


@dataclass(frozen=True)
class Table:
    """A published table.

    Attributes:
        folder: Its group.
        attributes: The group's attributes; ``cytopave`` says how the table was made.
        obs: Names of the columns about the objects themselves.
        features: Names of the intensities.
    """

    folder: Folder
    attributes: Mapping[str, Any]
    obs: tuple[str, ...]
    features: tuple[str, ...]

    @property
    def made(self) -> dict[str, Any]:
        """How the table was made."""
        return dict(self.attributes[publish.PROVENANCE])

    def __len__(self) -> int:
        return int((self.folder / "X").array().shape[0])

    def read(
        self, start: int = 0, stop: int | None = None, *, columns: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Rows of columns by name: of those that are asked for, or of all."""
        rows = slice(start, len(self) if stop is None else stop)
        names = (*self.obs, *self.features) if columns is None else columns
        found = {n: _column(self.folder / "obs" / n, rows) for n in names if n in self.obs}
        if wanted := [n for n in names if n not in found]:
            matrix = np.asarray((self.folder / "X").array()[rows])
            found |= {n: matrix[:, self.features.index(n)] for n in wanted}
        return found

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[dict[str, np.ndarray]]:
        """All rows, as many at a time as lie in one chunk, of some columns or of all."""
        for rows in self.spans():
            yield self.read(rows.start, rows.stop, columns=columns)

    def spans(self) -> Iterator[slice]:
        """All rows, as many at a time as lie in one chunk."""
        for start in range(0, len(self), CHUNK):
            yield slice(start, min(start + CHUNK, len(self)))

    def categories(self, column: str) -> list[str] | None:
        """The names of a column's categories; None for a column of other values."""
        folder = self.folder / "obs" / column
        return _categories(folder) if folder.exists("codes") else None

    def codes(self, column: str, rows: slice) -> np.ndarray:
        """Rows of a column with categories, as indices of `categories`; -1 for none."""
        return np.asarray((self.folder / "obs" / column / "codes").array()[rows]).astype(np.int64)

    def has_places(self, name: str) -> bool:
        """Whether ``obsm`` holds an array of this name, such as ``X_umap``."""
        folder = self.folder / "obsm" / name
        return folder.exists("zarr.json") or folder.exists(".zarray")

    def places(self, name: str, rows: slice) -> np.ndarray:
        """Rows of an array of ``obsm``."""
        return np.asarray((self.folder / "obsm" / name).array()[rows])

    def note(self, name: str) -> dict[str, Any]:
        """What ``uns`` keeps under a name as JSON; empty where there is nothing."""
        folder = self.folder / "uns" / name
        if not (folder.exists("zarr.json") or folder.exists(".zarray")):
            return {}
        return dict(json.loads(str(np.asarray(folder.array()[()]))))


def _column(folder: Folder, rows: slice) -> np.ndarray:
    """Rows of a column; of one with categories, such as clusters, their names ("" for none)."""
    if not folder.exists("codes"):
        return np.asarray(folder.array()[rows])
    codes = np.asarray((folder / "codes").array()[rows])
    return np.asarray(np.array([*_categories(folder), ""])[codes])


def _categories(folder: Folder) -> list[str]:
    return [*map(str, np.asarray((folder / "categories").array()[:]))]


def open_table(
    store: str | os.PathLike[str], name: str, *, storage_options: Mapping[str, Any] | None = None
) -> Table:
    """Open a published table for reading.

    Args:
        store: Path or URL of the store that holds ``tables/<name>``.
        name: Name of the table.
        storage_options: What fsspec needs to open the URL.

    Raises:
        OutputError: The store lists no table of that name, or cytopave did not write it.
        StaleTableError: The labels that it describes have changed or are gone.

    Columns that relate to other labels are left out, with a warning, where those have changed.
    """
    root = Folder(absolute(store), dict(storage_options or {}))
    names = publish.listed_names(root / "tables")
    if name not in names:
        listed = f"those there are {', '.join(names)}" if names else "there is none"
        raise OutputError(f"{root} has no table {name!r}: {listed}")
    folder = root / "tables" / name
    attributes = ngff.read_attributes(folder) or {}
    made = attributes.get(publish.PROVENANCE)
    if not isinstance(made, dict) or "fingerprint" not in made:
        raise OutputError(
            f"the table {name!r} in {root} was not made by cytopave: open it with anndata"
        )
    _check_labels(folder, _labels_at(root, str(attributes["region"]["path"])), made)
    frame = ngff.read_attributes(folder / "obs") or {}
    left_out = {REGION, *_stale_columns(root, folder, made)}
    return Table(
        folder=folder,
        attributes=attributes,
        obs=tuple(n for n in frame["column-order"] if n not in left_out),
        features=tuple(map(str, np.asarray((folder / "var" / "_index").array()[:]))),
    )


def _stale_columns(root: Folder, table: Folder, made: Mapping[str, Any]) -> list[str]:
    """Columns that relate to labels which are no longer what they were."""
    stale = []
    for name, relation in made.get(RELATIONS, {}).items():
        try:
            other = open_image(_labels_at(root, relation["labels"]), storage_options=root.options)
            unchanged = is_unchanged(other, relation["fingerprint"])
        except ImageError:
            unchanged = False
        if not unchanged:
            stale.append(name)
    if stale:
        logger.warning(
            "the columns %s of %s are left out, for they relate to labels that have changed since: "
            "relate them again (cytopave relate)",
            ", ".join(stale),
            table,
        )
    return stale


def _labels_at(root: Folder, path: str) -> str:
    """URL of labels: by their place in the store where they are in it; it may have moved."""
    if root.local and "://" not in path:
        return os.path.normpath(root.local / "tables" / path)
    return f"{root.url}{path.removeprefix('..')}" if path.startswith("../") else path


def _check_labels(table: Folder, place: str, made: Mapping[str, Any]) -> None:
    name = table.name
    try:
        labels = open_image(place, storage_options=table.options)
    except ImageError as error:
        raise StaleTableError(
            f"the table {name!r} describes the labels {place}, which cannot be opened ({error}): "
            "measure the labels that are there"
        ) from error
    by = (ngff.read_attributes(labels.folder) or {}).get(publish.PROVENANCE)
    if label_fingerprint(labels, by if isinstance(by, dict) else None) != made["fingerprint"]:
        raise StaleTableError(
            f"the table {name!r} is not that of the labels {place}: they have changed since it "
            "was made; measure them again (--overwrite)"
        )
