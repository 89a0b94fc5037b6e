"""Sums of a run's objects without reading the image again.

What a tile drew is final in most of its core: only within the halo of a face that it shares with a
neighbour can that neighbour draw as well (`cytopave.engine.merge.paint`). The core is cut there:

- In the *interior* a pixel's final label depends on the tile's own label alone. Its sums are taken
  by the tile's labels while the tile's pixels are in memory, and kept in the tile's file. Once it
  is known which object each label belongs to, the sums are renamed, and those of labels that
  yield are dropped.
- Of the *strips* around it the pixels themselves are kept, and measured when the core is painted.

So a run's measurement reads neither the image nor the labels. Where a tile's file holds no sums (it
was not segmented, or by a run that measured nothing, or something else), what was painted in its
core is measured by reading that part of the image.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.boxes import Box
from cytopave.engine.reading import TileReader
from cytopave.engine.scratch.archive import write_array
from cytopave.engine.tables.combine import combine
from cytopave.engine.tables.hulls import POINT, join_rows
from cytopave.engine.tables.measurement import hull_path, part_path
from cytopave.engine.tables.moments import Sums, measure_block, row_dtype
from cytopave.engine.tables.target import CODE_VERSION
from cytopave.engine.tiling import Tile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.omezarr.labels import WriteBlock
    from cytopave.engine.scratch.archive import Archive
    from cytopave.engine.tiling import Grid

_AT_ONCE = 1 << 18
"""Pixels that are measured at a time, some 40 bytes each, so that little is held beside a tile."""


def interior(grid: Grid, tile: Tile) -> Box:
    """The part of a tile's core in which no neighbour can draw; of size zero where there is none.

    It ends a halo away from each face of the core that has a neighbour.
    """
    start, stop = list(tile.core.start), list(tile.core.stop)
    for axis, (p, n, h) in enumerate(zip(tile.position, grid.counts, grid.halo, strict=True)):
        start[axis] += h if p > 0 else 0
        stop[axis] -= h if p < n - 1 else 0
    return Box(tuple(start), tuple(map(max, start, stop)))


def strips(grid: Grid, tile: Tile) -> list[Box]:
    """The rest of the core in as few boxes as possible: all of it where there is no interior."""
    inner = interior(grid, tile)
    if not inner.size:
        return [tile.core]
    found = []
    start, stop = list(tile.core.start), list(tile.core.stop)
    for axis, (a, b) in enumerate(zip(inner.start, inner.stop, strict=True)):
        found.append(Box(tuple(start), (*stop[:axis], a, *stop[axis + 1 :])))
        found.append(Box((*start[:axis], b, *start[axis + 1 :]), tuple(stop)))
        start[axis], stop[axis] = a, b
    return [box for box in found if box.size]


@dataclass(frozen=True)
class TileSums:
    """Takes, keeps and joins the sums of a run's tiles.

    Attributes:
        grid: The tiles.
        image: The image that is measured.
        channels: Channels that are measured; empty where the image has no channel axis.
        root: Scratch folder of the measurement.
    """

    grid: Grid
    image: Image
    channels: tuple[int, ...]
    root: Path

    @cached_property
    def _dtype(self) -> np.dtype[Any]:
        n = max(1, len(self.channels))
        return row_dtype(len(self.image.spatial_shape), np.dtype(self.image.dtype), n)

    @cached_property
    def _members(self) -> list[str]:
        """What a tile's file holds: sums, rows of pixels, and each channel's pixels in the strips.

        They tell what was measured: of other channels, or by another version, they differ.
        """
        facts = repr((CODE_VERSION, self.channels, self._dtype.descr))
        name = f"sums-{hashlib.sha256(facts.encode()).hexdigest()[:8]}"
        return [name, f"{name}-points", *(f"{name}-{i}" for i in range(max(1, len(self.channels))))]

    def members(self, tile: Tile, labels: np.ndarray, pixels: np.ndarray) -> dict[str, np.ndarray]:
        """What a tile's file has to hold.

        Args:
            tile: The tile.
            labels: ``([Z], Y, X)`` its own labels of its core.
            pixels: ``(C, [Z], Y, X)`` the measured channels of its core.
        """
        inner = interior(self.grid, tile)
        here = inner.within(tile.core)
        parts = _measured(labels[here], pixels[(slice(None), *here)], inner, tile.time)
        boxes = [box.within(tile.core) for box in strips(self.grid, tile)]
        nothing = np.empty(0, pixels.dtype)
        kept = [np.concatenate([nothing, *(plane[b].ravel() for b in boxes)]) for plane in pixels]
        return dict(zip(self._members, [*self._joined(parts), *kept], strict=True))

    def of_core(
        self, tile: Tile, archive: Archive, final: np.ndarray, core: np.ndarray
    ) -> Iterator[Sums]:
        """The sums of what was painted in a core.

        Args:
            tile: The tile.
            archive: Its file.
            final: ``(labels + 1,)`` final id of each of its labels; 0 of those that yield.
            core: ``([Z], Y, X)`` final ids in its core.

        Yields:
            Sums, of several parts of an object.

        Raises:
            CorruptError: The tile's file is damaged; or it holds no sums, and a chunk of the
                image is damaged.
        """
        if self._members[0] not in archive.index:
            yield from self._read(tile, core)
            return
        rows, points, *kept = archive.read(*self._members)
        yield Sums(_renamed(rows, final), _renamed(points, final))
        begin = 0
        for box in strips(self.grid, tile):
            end = begin + box.size
            pixels = np.stack([plane[begin:end].reshape(box.shape) for plane in kept])
            yield from _measured(core[box.within(tile.core)], pixels, box, tile.time)
            begin = end

    def commit(self, block: WriteBlock, parts: Iterable[Sums]) -> None:
        """Keep the sums of the tiles whose cores begin in a block, for the table."""
        path, sums = part_path(self.root, (block.time, block.box)), self._joined(parts)
        if len(block.box.shape) == 2:
            write_array(hull_path(path), sums.points)
        write_array(path, sums.rows)

    def _read(self, tile: Tile, core: np.ndarray) -> Iterator[Sums]:
        boxes = [*strips(self.grid, tile), interior(self.grid, tile)]
        parts = [band for box in dict.fromkeys(boxes) for band in _bands(box)]
        tiles = [Tile(i, tile.time, (), part, part) for i, part in enumerate(parts)]
        reader = TileReader(self.image, tiles, channels=self.channels)
        for part in tiles:
            labels = core[part.core.within(tile.core)]
            if labels.any():
                pixels = reader.read(part).reshape(-1, *labels.shape)
                yield measure_block(labels, pixels, start=part.core.start, time=tile.time)
            else:
                reader.skip(part)

    def _joined(self, parts: Iterable[Sums]) -> Sums:
        nothing = Sums(np.empty(0, self._dtype), np.empty(0, POINT))
        rows, points = map(np.concatenate, zip(nothing, *parts, strict=True))
        return Sums(combine(rows), join_rows(points))


def kept_bytes(grid: Grid, itemsize: int, n_channels: int) -> int:
    """Bytes of the pixels that are kept of the largest tile while it is in hand."""
    return math.prod(grid.tile) * itemsize * n_channels


def _measured(labels: np.ndarray, pixels: np.ndarray, box: Box, time: int) -> Iterator[Sums]:
    for band in _bands(box):
        here = band.within(box)
        yield measure_block(labels[here], pixels[(slice(None), *here)], start=band.start, time=time)


def _renamed(rows: np.ndarray, final: np.ndarray) -> np.ndarray:
    """The same rows by final ids, without those of labels that yield."""
    rows = rows.copy()
    rows["label"] = final[rows["label"].astype(np.int64)]
    return rows[rows["label"] > 0]


def _bands(box: Box) -> Sequence[Box]:
    """A box cut along its first axis into parts of about `_AT_ONCE` pixels; none if it is empty."""
    if not box.size:
        return []
    length = max(1, _AT_ONCE // math.prod(box.shape[1:]))
    return box.blocks((length, *box.stop[1:]))
