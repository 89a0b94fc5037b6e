"""Tile files: what a segmented tile leaves behind, committed whole or not at all.

A tile file is an archive (`scratch/archive.py`). It holds the labels of the tile's core, the labels
of every zone that the tile shares with a neighbour, and a table with one row a label ("view": an
object as this tile saw it). The merge compares zones with zones and paints from cores and zones, so
it never needs two whole tiles at once, and each member is read once by each of the two passes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.boxes import Box
from cytopave.engine.scratch.archive import Archive, write_archive
from cytopave.engine.scratch.views import views

if TYPE_CHECKING:
    from cytopave.engine.tiling import Grid, Tile

_PER_FOLDER = 1000


def shared_zone(grid: Grid, tile: Tile, step: tuple[int, ...]) -> Box | None:
    """The pixels of ``tile`` that are compared with its neighbour at ``step``.

    With a halo, these are the pixels that both windows hold: the same box seen from either side.
    Along an axis whose halo is zero nothing is shared, and the two planes that face each other
    across the seam are compared instead; such a zone is a box of the tile's own core.

    Returns:
        The box in the image's coordinates, or None where there is nothing to compare (corners
        and edges across an axis without a halo).
    """
    start, stop = list(tile.window.start), list(tile.window.stop)
    for axis, s in enumerate(step):
        if not s:
            continue
        halo = grid.halo[axis]
        if not halo and sum(map(abs, step)) > 1:
            return None
        seam = tile.core.stop[axis] if s > 0 else tile.core.start[axis]
        before, after = (halo, halo) if halo else (s > 0, s < 0)
        start[axis] = max(start[axis], seam - before)
        stop[axis] = min(stop[axis], seam + after)
    return Box(tuple(start), tuple(stop))


@dataclass(frozen=True)
class Scratch:
    """The folder of one run, named by the run's digest.

    Attributes:
        root: The folder.
        left_out: Tiles that could not be segmented and count as empty; see `leave_out`.
    """

    root: Path
    left_out: frozenset[int] = frozenset()

    def tile_path(self, index: int) -> Path:
        """Where the file of a tile lies once the tile is finished."""
        return self.root / "tiles" / f"{index // _PER_FOLDER:06d}" / f"{index:09d}.zip"

    def finished(self) -> frozenset[int]:
        """Indices of all tiles whose files are committed."""
        return frozenset(int(p.stem) for p in self.root.glob("tiles/*/*.zip"))

    def has(self, index: int) -> bool:
        """Whether a tile's file is committed."""
        return self.tile_path(index).exists()

    def commit(self, grid: Grid, tile: Tile, labels: np.ndarray) -> int:
        """Write a tile's file; it appears under its name only when complete.

        Args:
            grid: The grid that the tile belongs to.
            tile: The tile.
            labels: ``([Z], Y, X)`` uint32 labels of the window, 1..n without gaps.

        Returns:
            The number of labels n.
        """
        return _write(self.tile_path(tile.index), grid, tile, labels)

    def leave_out(self, grid: Grid, tile: Tile) -> None:
        """Write the file that stands for a tile of `left_out`; it never counts as finished."""
        _write(self._empty_path(tile.index), grid, tile, np.zeros(tile.window.shape, np.uint8))

    def open(self, index: int) -> Archive:
        """A finished tile's file, or what stands for one that is left out.

        Raises:
            CorruptError: The file is missing or damaged; delete it and run again.
        """
        left_out = index in self.left_out
        return Archive.open(self._empty_path(index) if left_out else self.tile_path(index))

    def _empty_path(self, index: int) -> Path:
        return self.root / "left-out" / f"{index:09d}.zip"


def _write(path: Path, grid: Grid, tile: Tile, labels: np.ndarray) -> int:
    table = views(grid, tile, labels)
    labels = labels.astype(np.min_scalar_type(len(table)), copy=False)
    members = {"views": table}
    for step, _ in grid.steps(tile):
        zone = shared_zone(grid, tile, step)
        if zone is not None:
            members[zone_name(step)] = labels[zone.within(tile.window)]
    # Last: what neighbours need comes with the beginning of the file, in one reading.
    members["core"] = labels[tile.core.within(tile.window)]
    write_archive(path, members)
    return len(table)


class OpenTiles:
    """Tile files kept open while their neighbours are worked on, so that each is opened once.

    Those used last stay, as long as they hold no more than ``keep_bytes``.
    """

    def __init__(self, scratch: Scratch, *, keep_bytes: int = 1 << 26) -> None:
        self._scratch = scratch
        self._room = keep_bytes
        self._open: OrderedDict[int, tuple[Archive, np.ndarray]] = OrderedDict()

    def __getitem__(self, index: int) -> tuple[Archive, np.ndarray]:
        """A finished tile's file and its table of views.

        Raises:
            CorruptError: The file is missing or damaged.
        """
        found = self._open.pop(index, None)
        if found is None:
            archive = self._scratch.open(index)
            found = archive, archive.read("views")[0]
            self._room -= _size(found)
        self._open[index] = found
        while self._room < 0 and len(self._open) > 1:
            self._room += _size(self._open.popitem(last=False)[1])
        return found


def _size(opened: tuple[Archive, np.ndarray]) -> int:
    return len(opened[0].head) + opened[1].nbytes


def zone_name(step: tuple[int, ...]) -> str:
    """Name of the member that holds the zone shared with the neighbour at ``step``."""
    return "zone" + "".join("-0+"[s + 1] for s in step)
