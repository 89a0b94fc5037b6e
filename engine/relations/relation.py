"""A relation between two label images, decided: what is read, and which tables get columns."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from cytopave.engine.boxes import Box
from cytopave.engine.errors import OutputError, StaleTableError
from cytopave.engine.lazy import Lazy, grouped
from cytopave.engine.omezarr import publish
from cytopave.engine.omezarr.folders import Folder
from cytopave.engine.omezarr.image import Image
from cytopave.engine.relations.columns import known
from cytopave.engine.scratch.saved import Saved
from cytopave.engine.tables.measurement import (
    LEAST_PIXELS,
    MOST_PIXELS,
    Region,
    block_shape,
    region_shape,
)
from cytopave.engine.tables.read import Table, open_table

if TYPE_CHECKING:
    from collections.abc import Sequence

# Raise it whenever counts taken by an earlier version must not be used again.
CODE_VERSION = 1

BLOCK_PIXELS = 1 << 22
"""Pixels of both label images that are in memory at once."""

_TASKS = 64  # where neither bound on pixels holds


class Side(BaseModel):
    """One of the two label images.

    Attributes:
        labels: Its array, level 0.
        place: URL of the label image, or of the array that holds the labels.
        fingerprint: Of the labels.
        store: URL of the store that has their table.
        name: Name of the table.
    """

    model_config = ConfigDict(frozen=True)

    labels: Image
    place: str
    fingerprint: str
    store: str
    name: str

    def table(self) -> Table:
        """The table of these very labels.

        Raises:
            OutputError: There is none.
            StaleTableError: There is one of other labels.
        """
        options = {} if Folder(self.store).local else self.labels.storage_options
        if self.name not in publish.listed_names(Folder(self.store, options) / "tables"):
            raise OutputError(
                f"the labels {self.place} have no table {self.name!r} in {self.store}: measure "
                f"them first (cytopave measure --labels {self.name})"
            )
        table = open_table(self.store, self.name, storage_options=options)
        if table.made["fingerprint"] != self.fingerprint:
            raise StaleTableError(
                f"the table {self.name!r} in {self.store} is not that of the labels "
                f"{self.place}: measure these (cytopave measure --overwrite)"
            )
        return table


class Relation(Saved):
    """Everything that a run depends on; workers read it from the scratch folder.

    Attributes:
        digest: Names what the columns hold.
        child: The label image whose objects get a parent.
        parent: The one whose objects are parents.
    """

    digest: str
    child: Side
    parent: Side

    @property
    def child_columns(self) -> tuple[str, str]:
        """Columns of the child's table: the parent's id, and the share of the child within it."""
        return f"in_{self.parent.name}", f"in_{self.parent.name}_fraction"

    @property
    def parent_column(self) -> str:
        """Column of the parent's table: the number of children."""
        return f"n_{self.child.name}"

    @property
    def regions(self) -> Lazy[Region]:
        """The parts that are read by themselves, each into one file."""
        labels = self.child.labels
        boxes = Box.of(labels.spatial_shape).blocks(region_shape(self.parent.labels, labels))
        return Lazy(labels.n_times * len(boxes), lambda i: (i // len(boxes), boxes[i % len(boxes)]))

    @property
    def groups(self) -> Sequence[tuple[int, ...]]:
        """Indices of the regions of each task. The same on any number of workers."""
        labels = self.child.labels
        whole = math.prod(labels.spatial_shape) * labels.n_times
        task = min(max(whole // _TASKS, LEAST_PIXELS), MOST_PIXELS)
        return grouped(range(len(self.regions)), -(-whole // task))

    def blocks(self, region: Box) -> Lazy[Box]:
        """The parts of a region that are in memory at once."""
        return region.blocks(block_shape(self.child.labels, BLOCK_PIXELS))

    def part(self, region: int) -> Path:
        """Where what a region shows lies once it was read; other regions have another place."""
        name = hashlib.sha256(repr(self.regions[region]).encode()).hexdigest()
        return self.root / "parts" / f"{region // 1000:06d}" / f"{name[:16]}.npy"

    def check_columns(self, *, overwrite: bool, export: bool) -> bool:
        """Refuse columns that are there; returns whether they are all there from this relation.

        Args:
            overwrite: Whether columns are replaced.
            export: Whether these very columns are wanted as files: then they may be there.

        Raises:
            OutputError: One is there, and not from this relation; or all are.
            StaleTableError: A table does not describe its labels.
        """
        written = []
        taken = "the table {!r} in {} has a column {!r} already: replace it (--overwrite)"
        sides = [(self.child, self.child_columns), (self.parent, (self.parent_column,))]
        tables = [side.table() for side, _ in sides]
        for table, (side, names) in zip(tables, sides, strict=True):
            for name in names:
                ours = known(table).get(name, {}).get("digest") == self.digest
                written.append(ours)
                if name in table.obs and not ours and not overwrite:
                    raise OutputError(taken.format(side.name, side.store, name))
            publish.check_writable(table.folder / "obs")
        if all(written) and not (overwrite or export):
            raise OutputError(
                taken.format(self.child.name, self.child.store, self.child_columns[0])
            )
        return all(written)
