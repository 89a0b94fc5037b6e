"""Final labels of a tile's core, from its own labels and what its neighbours drew there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.merge.resolve import HIDDEN, WHOLE
from cytopave.engine.scratch.tiles import OpenTiles, shared_zone, zone_name

if TYPE_CHECKING:
    from cytopave.engine.merge.resolve import Resolution
    from cytopave.engine.scratch.archive import Archive
    from cytopave.engine.scratch.tiles import Scratch
    from cytopave.engine.tiling import Grid, Tile

# Who gets a pixel: place in the core, whether the view is cut, its area, its number.
_CLAIM = np.dtype([(name, np.int64) for name in ("place", "cut", "area", "view")])


def paint(scratch: Scratch, grid: Grid, resolution: Resolution, index: int) -> np.ndarray:
    """Paint the core of one tile: see `Painter.paint`."""
    return Painter(scratch, grid, resolution).paint(index)


class Painter:
    """Paints the cores of tiles; of neighbouring tiles best one after another."""

    def __init__(self, scratch: Scratch, grid: Grid, resolution: Resolution) -> None:
        self._tiles = OpenTiles(scratch)
        self._grid = grid
        # Plain arrays, also where they are mapped into memory: indexing these is cheaper.
        self._offsets = np.asarray(resolution.offsets)
        self._final = np.asarray(resolution.final)
        self._mode = np.asarray(resolution.mode)
        self._beyond: dict[int, np.ndarray | None] = {}

    def paint(self, index: int) -> np.ndarray:
        """Paint the core of a tile.

        Returns:
            Final ids of the core, ``([Z], Y, X)``. A pixel that several objects claim goes to an
            object that was seen whole before one that was not, then to the smaller one.

        Raises:
            CorruptError: A tile's file is missing or damaged.
        """
        tile = self._grid[index]
        archive, views = self._tiles[index]
        (labels,) = archive.read("core")
        begin = self._offsets[index]
        final = self.final(index)
        out = final.take(labels)
        claims = [
            c for step, other in self._grid.steps(tile) for c in self._guest(tile, step, other)
        ]
        if claims:
            place = np.unique(np.concatenate([c["place"] for c in claims]))
            own = labels.ravel()[place]
            drawn = final[own] > 0
            claims.append(_claims(place[drawn], own[drawn], views, begin))
            winner = _first_of_each_place(np.concatenate(claims))
            out.ravel()[winner["place"]] = self._final[winner["view"]]
        return out

    def final(self, index: int) -> np.ndarray:
        """What a tile's own labels become: ``(labels + 1,)`` final ids, 0 of those that yield."""
        _, views = self._tiles[index]
        mine = slice(self._offsets[index], self._offsets[index] + len(views))
        final = np.zeros(len(views) + 1, self._final.dtype)
        final[1:] = np.where(self._mode[mine] != HIDDEN, self._final[mine], 0)
        return final

    def archive(self, index: int) -> Archive:
        """A tile's file, open from painting it."""
        return self._tiles[index][0]

    def _guest(self, tile: Tile, step: tuple[int, ...], other: int) -> list[np.ndarray]:
        """What a neighbour draws in a tile's core: nothing, or an array of claims."""
        zone = shared_zone(self._grid, tile, step)
        if zone is None or any(s and not h for s, h in zip(step, self._grid.halo, strict=True)):
            return []
        draws = self._beyond_core(other)
        if draws is None:
            return []
        archive, views = self._tiles[other]
        (labels,) = archive.read(zone_name(tuple(-s for s in step)))
        box = zone.intersect(tile.core)
        labels = labels[box.within(zone)]
        found = np.flatnonzero(draws.take(labels))
        if not len(found):
            return []
        inside = np.unravel_index(found, labels.shape)
        within = (i + a - b for i, a, b in zip(inside, box.start, tile.core.start, strict=True))
        place = np.ravel_multi_index(tuple(within), tile.core.shape)
        return [_claims(place, labels[inside], views, self._offsets[other])]

    def _beyond_core(self, index: int) -> np.ndarray | None:
        """Which labels of a tile are painted beyond its core; None if none is."""
        if index not in self._beyond:
            _, views = self._tiles[index]
            begin = self._offsets[index]
            whole = self._mode[begin : begin + len(views)] == WHOLE
            draws = np.concatenate([[False], whole & (views["area"] > views["core_area"])])
            self._beyond[index] = draws if draws.any() else None
        return self._beyond[index]


def _claims(place: np.ndarray, label: np.ndarray, views: np.ndarray, begin: int) -> np.ndarray:
    row = label.astype(np.int64) - 1
    claims = np.empty(len(place), _CLAIM)
    claims["place"], claims["view"] = place, begin + row
    claims["cut"], claims["area"] = views["cut"][row] != 0, views["area"][row]
    return claims


def _first_of_each_place(claims: np.ndarray) -> np.ndarray:
    names = claims.dtype.names or ()
    claims = claims[np.lexsort([claims[name] for name in reversed(names)])]
    return np.asarray(claims[np.diff(claims["place"], prepend=-1) > 0])
