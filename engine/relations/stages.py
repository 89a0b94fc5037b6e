"""A relation, cut into stages that can be spread over workers.

`count_group` (any number of groups), `write_columns` (once), `report_relation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.errors import LabelError, StaleTableError
from cytopave.engine.omezarr.folders import Folder
from cytopave.engine.reading import TileReader
from cytopave.engine.relations.columns import ColumnWriter
from cytopave.engine.relations.overlap import (
    COUNT,
    PAIR,
    add_counts,
    count_children,
    count_pairs,
    join,
    parents_of,
)
from cytopave.engine.relations.report import RelateReport
from cytopave.engine.scratch.archive import write_array
from cytopave.engine.tables.combine import in_chunks, merged
from cytopave.engine.tables.export import EXPORTS
from cytopave.engine.tables.fingerprint import is_unchanged
from cytopave.engine.tables.layout import CHUNK
from cytopave.engine.tables.planner import relative_place
from cytopave.engine.tiling import Tile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from cytopave.engine.relations.relation import Relation, Side
    from cytopave.engine.tables.read import Table


def count_group(relation: Relation, group: int) -> int:
    """Count common pixels in a group's regions, except for those that an earlier attempt read.

    Both label images are read once, block by block.

    Returns:
        The number of regions that were read.

    Raises:
        CorruptError: A chunk is truncated or damaged.
        LabelError: An id is negative.
    """
    missing = [r for r in relation.groups[group] if not relation.part(r).exists()]
    for index in missing:
        time, region = relation.regions[index]
        tiles = [Tile(i, time, (), b, b) for i, b in enumerate(relation.blocks(region))]
        child, parent = (
            TileReader(side.labels, tiles, channels=())
            for side in (relation.child, relation.parent)
        )
        parts = [np.empty(0, PAIR)]
        for tile in tiles:
            inner = _ids(child.read(tile), relation.child)
            if inner.any():
                outer = _ids(parent.read(tile), relation.parent)
                parts.append(count_pairs(inner, outer, time))
            else:
                parent.skip(tile)
        write_array(relation.part(index), join(np.concatenate(parts)))
    return len(missing)


def write_columns(relation: Relation, provenance: Mapping[str, Any]) -> int:
    """Find the parents and write the columns of both tables; returns the number of children.

    Raises:
        StaleTableError: Labels or tables changed meanwhile.
        CorruptError: The counts of a group are missing or damaged.
        OutputError: A table cannot be written.
    """
    for side in (relation.child, relation.parent):
        if not is_unchanged(side.labels, side.fingerprint):
            raise StaleTableError(
                f"the labels {side.place} were changed while they were read: run again when "
                "nothing writes to them, and measure them before (cytopave measure --overwrite)"
            )
    made = {**provenance, "digest": relation.digest}
    table, counts = relation.child.table(), [np.empty(0, COUNT)]
    id_name, share_name = relation.child_columns
    writer = ColumnWriter(table, {id_name: _id_type(relation.parent), share_name: np.float64})
    paths = [relation.part(i) for i in range(len(relation.regions))]
    children = (parents_of(pairs) for pairs in merged(paths, at_once=CHUNK, join=join))
    begin = 0
    for rows in in_chunks(children, CHUNK):
        _check_rows(table, begin, rows)
        begin += len(rows)
        writer.write({id_name: rows["parent"], share_name: rows["fraction"]})
        counts.append(count_children(rows))
    if begin != len(table):
        raise _other_rows(table)
    writer.finish({**made, **_other(relation.parent, table)})
    _write_counts(relation, add_counts(np.concatenate(counts)), made)
    return begin


def report_relation(
    relation: Relation, files: Mapping[str, Path], *, related: bool
) -> RelateReport:
    """Copy the children's table into files, and say what was found.

    Args:
        relation: What made the columns.
        files: Where to, for each format of `cytopave.engine.tables.export.EXPORTS`.
        related: Whether they were made just now.

    Raises:
        UserError: A table is not that of its labels, or a file cannot be written.
    """
    child, parent = relation.child.table(), relation.parent.table()
    for kind, path in files.items():
        EXPORTS[kind](child, path)
    orphans = sum(int((c == 0).sum()) for c in _column(child, relation.child_columns[0]))
    empty = sum(int((c == 0).sum()) for c in _column(parent, relation.parent_column))
    return RelateReport(
        child_table=str(child.folder),
        child_columns=relation.child_columns,
        parent_table=str(parent.folder),
        parent_column=relation.parent_column,
        n_children=len(child),
        n_without_parent=orphans,
        n_parents=len(parent),
        n_without_child=empty,
        related=related,
        files={kind: str(path) for kind, path in files.items()},
    )


def _write_counts(relation: Relation, counts: np.ndarray, made: Mapping[str, Any]) -> None:
    table = relation.parent.table()
    writer = ColumnWriter(table, {relation.parent_column: np.int64})
    found = 0
    for times, labels in _keys(table):
        n = np.zeros(len(labels), np.int64)
        for time in np.unique(times):
            own = counts[slice(*np.searchsorted(counts["time"], [time, time + 1]))]
            place = np.searchsorted(own["label"], labels)
            known = (times == time) & (place < len(own))
            known[known] = own["label"][place[known]] == labels[known]
            n[known] = own["n"][place[known]]
            found += int(known.sum())
        writer.write({relation.parent_column: n})
    if found != len(counts):
        raise _other_rows(table)
    writer.finish({**made, **_other(relation.child, table)})


def _other(side: Side, table: Table) -> dict[str, str]:
    """The labels that new columns of a table relate to."""
    tables = Folder(table.folder.url, table.folder.options) / "tables"
    return {"labels": relative_place(side.place, tables), "fingerprint": side.fingerprint}


def _ids(labels: np.ndarray, side: Side) -> np.ndarray:
    if labels.dtype.kind == "i" and labels.min(initial=0) < 0:
        raise LabelError(
            f"the labels {side.place} hold the id {labels.min()}: ids are 0 for the background "
            "and positive for objects"
        )
    return labels


def _id_type(side: Side) -> np.dtype[Any]:
    # As the column of ids in that side's own table.
    return np.dtype(np.uint64 if side.labels.dtype == "uint64" else np.int64)


def _keys(table: Table) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Time and id of a table's rows, a chunk at a time."""
    times = _column(table, "time") if "time" in table.obs else None
    for labels in _column(table, "label"):
        yield next(times) if times else np.zeros(len(labels), np.int32), labels.astype(np.uint64)


def _column(table: Table, name: str) -> Iterator[np.ndarray]:
    array = (table.folder / "obs" / name).array()
    for begin in range(0, len(table), CHUNK):
        yield np.asarray(array[begin : begin + CHUNK])


def _check_rows(table: Table, begin: int, rows: np.ndarray) -> None:
    """Make sure that rows of the table are those of the same objects."""
    end = begin + len(rows)
    labels = np.asarray((table.folder / "obs" / "label").array()[begin:end])
    same = len(labels) == len(rows) and bool((labels.astype(np.uint64) == rows["label"]).all())
    if same and "time" in table.obs:
        times = np.asarray((table.folder / "obs" / "time").array()[begin:end])
        same = bool((times == rows["time"]).all())
    if not same:
        raise _other_rows(table)


def _other_rows(table: Table) -> StaleTableError:
    return StaleTableError(
        f"the table {table.folder} has other objects than its labels: measure them again "
        "(cytopave measure --overwrite)"
    )
