"""A measurement, cut into stages that can be spread over workers.

`measure_group` (any number of groups), `write_table` (once), publication, `report_table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.errors import StaleTableError
from cytopave.engine.reading import TileReader
from cytopave.engine.scratch.archive import write_array
from cytopave.engine.tables.combine import combine, in_chunks, load_rows, merged, whole
from cytopave.engine.tables.export import EXPORTS
from cytopave.engine.tables.fingerprint import label_fingerprint
from cytopave.engine.tables.hulls import POINT, join_rows
from cytopave.engine.tables.layout import CHUNK, TableWriter
from cytopave.engine.tables.moments import Sums, measure_block, row_dtype
from cytopave.engine.tables.origins import Origins
from cytopave.engine.tables.read import open_table
from cytopave.engine.tables.report import TableReport
from cytopave.engine.tiling import Tile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cytopave.engine.tables.measurement import Measurement


def measure_group(measurement: Measurement, group: int) -> int:
    """Take the sums of a group's regions, except for those that an earlier attempt took.

    Image and labels are read once, block by block.

    Returns:
        The number of regions that were measured.

    Raises:
        CorruptError: A chunk is truncated or damaged.
        LabelError: An id is negative.
    """
    missing = [r for r in measurement.groups[group] if not measurement.part(r).exists()]
    for index in missing:
        parts = [Sums(np.empty(0, _dtype(measurement)), np.empty(0, POINT))]
        parts += _blocks(measurement, index)
        rows, points = map(np.concatenate, zip(*parts, strict=True))
        if measurement.is_flat:
            write_array(measurement.hull(index), join_rows(points))
        write_array(measurement.part(index), combine(rows))
    return len(missing)


def write_table(measurement: Measurement, provenance: Mapping[str, Any]) -> int:
    """Join the sums of all groups and write the hidden table; returns the number of rows.

    Raises:
        StaleTableError: The labels changed while they were measured.
        CorruptError: The sums of a group are missing or damaged.
        OutputError: The table cannot be written.
    """
    regions = range(len(measurement.regions))
    paths = [measurement.part(i) for i in regions]
    hulls = [measurement.hull(i) for i in regions] if measurement.is_flat else []
    target = measurement.target
    origins = Origins.load(measurement.resolution) if measurement.resolution else None
    folder = target.empty()
    with target.writing():
        writer = TableWriter(
            folder,
            measurement.columns,
            zarr_format=target.zarr_format,
            region=measurement.region.rsplit("/", 1)[-1],
            rows=sum(len(load_rows(path)) for path in paths),
            sample=_columns(measurement, np.empty(0, _dtype(measurement)), origins),
        )
        join = whole if measurement.is_flat else combine
        joined = merged(paths, at_once=CHUNK, join=join, beside=hulls)
        for part in in_chunks(joined, CHUNK):
            writer.write(_columns(measurement, part, origins))
        n = writer.finish()
    if label_fingerprint(measurement.labels, measurement.made) != measurement.fingerprint:
        raise StaleTableError(
            f"the labels {measurement.place} were changed while they were measured: run again when "
            "nothing writes to them"
        )
    target.describe(measurement.region, {**measurement.facts(), **provenance, "n_objects": n})
    return n


def report_table(
    measurement: Measurement, files: Mapping[str, Path], *, measured: bool
) -> TableReport:
    """Copy a published table into files, and say where everything is.

    Args:
        measurement: What made the table.
        files: Where to, for each format of `cytopave.engine.tables.export.EXPORTS`.
        measured: Whether it was made just now.

    Raises:
        UserError: The table is not that of its labels, or a file cannot be written.
    """
    target = measurement.target
    table = open_table(target.url, target.name, storage_options=target.storage_options)
    for kind, path in files.items():
        EXPORTS[kind](table, path)
    return TableReport(
        image=measurement.image.url,
        labels_path=measurement.place,
        table_path=str(target.published),
        n_objects=len(table),
        measured=measured,
        files={kind: str(path) for kind, path in files.items()},
    )


def _blocks(measurement: Measurement, index: int) -> list[Sums]:
    """The sums of each block of a region that holds objects."""
    time, region = measurement.regions[index]
    tiles = [Tile(i, time, (), b, b) for i, b in enumerate(measurement.blocks(region))]
    labels = TileReader(measurement.labels, tiles, channels=())
    image = TileReader(measurement.image, tiles, channels=measurement.channels)
    parts = []
    for tile in tiles:
        found = labels.read(tile)
        if not found.any():
            image.skip(tile)
            continue
        pixels = image.read(tile).reshape(-1, *found.shape)
        parts.append(measure_block(found, pixels, start=tile.core.start, time=time))
    return parts


def _columns(
    measurement: Measurement, rows: np.ndarray, origins: Origins | None
) -> dict[str, np.ndarray]:
    columns = measurement.columns
    found = columns.obs(rows)
    if origins is not None:
        found |= origins.of(rows["label"])
    return {**found, "X": columns.intensities(rows), "spatial": columns.spatial(rows)}


def _dtype(measurement: Measurement) -> np.dtype[Any]:
    image = measurement.image
    n = max(1, len(measurement.channels))
    return row_dtype(len(image.spatial_shape), np.dtype(image.dtype), n)
