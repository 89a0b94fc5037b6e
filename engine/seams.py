"""The proof in every run: are objects cut at seams more often than inside tiles?

Along each seam, and along a control line through the middle of each tile, the two planes of pixels
that face each other are compared. An object is met there if it fills at least ``MIN_PIXELS`` of one
plane, and ends exactly there if it fills none of the other. Real objects do that now and then,
equally often at any line; what the seams show beyond the control lines, and beyond chance, was cut
by the tiles. An object counts once for each tile along whose edge it lies.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cytopave.engine.tiling import Grid, Tile

MIN_PIXELS = 4

MOST_PLACES = 2000
"""Places of one kind that a report keeps; counts are always complete."""

type Place = tuple[int, ...]
"""Time point, then ([Z], Y, X) of a pixel of the label image."""
type _Line = tuple[np.ndarray, np.ndarray]

_SEAM, _CONTROL = 0, 1
_PIXELS_AT_ONCE = 1 << 20


class LineCounts(BaseModel):
    """Objects met beside lines of one kind, and how many end there."""

    model_config = ConfigDict(frozen=True)

    met: int = 0
    cut: int = 0

    @property
    def rate(self) -> float:
        """Share of the objects met that end at the line."""
        return self.cut / self.met if self.met else 0.0


class AxisSeams(BaseModel):
    """Seams across one axis, beside the control lines across the same axis.

    Attributes:
        axis: Name of the axis.
        seams: Counts along the seams.
        control: Counts along the control lines.
        suspects: Objects that reach over such a seam and hold two parts that one tile kept apart.
    """

    model_config = ConfigDict(frozen=True)

    axis: str
    seams: LineCounts = LineCounts()
    control: LineCounts = LineCounts()
    suspects: int = 0

    @property
    def excess(self) -> float:
        """Objects that end at seams beyond the control lines' rate; see `chance`."""
        return self.seams.cut - self.control.rate * self.seams.met

    @property
    def chance(self) -> float:
        """Three standard deviations of `excess` where the tiles cut nothing.

        From the rate over all lines: a difference of two binomial counts. Two of them would be
        exceeded by every fortieth axis of labels without a flaw.
        """
        if not self.seams.met or not self.control.met:
            return 0.0
        rate = (self.seams.cut + self.control.cut) / (self.seams.met + self.control.met)
        spread = 1 + self.seams.met / self.control.met
        return 3 * math.sqrt(self.seams.met * rate * (1 - rate) * spread)


class SeamReport(BaseModel):
    """What the seams look like, and where to look.

    Attributes:
        axes: One entry an axis that has seams.
        cut: Where objects end at a seam: pixels of the plane before it, `MOST_PLACES` at most.
        suspects: The first pixel of each object that holds two parts that one tile kept apart,
            joined because a neighbour saw them meet outside; as many at most.
    """

    model_config = ConfigDict(frozen=True)

    axes: list[AxisSeams] = []
    cut: list[Place] = []
    suspects: list[Place] = []


class SeamCounter:
    """Counts along seams and control lines, tile by tile, in any order.

    A tile's outer planes wait until the tile on the other side comes. Counters of parts of a grid
    are joined by `state` and `join`.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._totals = np.zeros((len(grid.shape), 2, 2), np.int64)  # axis; seams, control; met, cut
        self._lines: list[list[_Line]] = [[] for _ in range(2 * len(grid.shape))]
        # Which tile lies before each of the seams among them; the control lines' are not asked for.
        self._before: list[list[int]] = [[] for _ in grid.shape]
        self._places = np.zeros((0, 1 + len(grid.shape)), np.int64)
        self._pixels = 0
        self._waiting: dict[tuple[int, int], np.ndarray] = {}

    def add(self, tile: Tile, core: np.ndarray) -> None:
        """Take what is needed of a painted core: its outer planes and its control lines' planes."""
        for axis, length in enumerate(core.shape):
            if length >= 2:
                before, after = (core.take(length // 2 - i, axis=axis) for i in (1, 0))
                self._meet(axis, _CONTROL, before, after)
            position = tile.position[axis]
            if position > 0:
                stride = math.prod(self._grid.counts[axis + 1 :])
                self._face((tile.index - stride, axis), core.take(0, axis=axis))
            if position < self._grid.counts[axis] - 1:
                self._face((tile.index, axis), core.take(length - 1, axis=axis))

    def state(self) -> dict[str, np.ndarray]:
        """What was counted and where, and the planes that wait for tiles of other parts."""
        self._count()
        keys = np.array(sorted(self._waiting), np.int64).reshape(-1, 2)
        planes = [self._waiting[i, axis] for i, axis in keys.tolist()]
        return {
            "totals": self._totals,
            "places": self._places,
            "keys": keys,
            "shapes": np.array([p.shape for p in planes], np.int64).reshape(
                -1, self._totals.shape[0] - 1
            ),
            "pixels": np.concatenate([np.zeros(0, np.uint32), *(p.ravel() for p in planes)]),
        }

    def join(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what another counter counted and what it waits for."""
        self._totals = self._totals + state["totals"]
        self._keep(state["places"])
        ends = np.cumsum(state["shapes"].prod(axis=1))[:-1]
        planes = np.split(state["pixels"], ends) if len(state["keys"]) else []
        for key, shape, plane in zip(
            state["keys"].tolist(), state["shapes"].tolist(), planes, strict=True
        ):
            self._face((key[0], key[1]), plane.reshape(shape))

    def report(self, axes: Sequence[str], suspects: np.ndarray | None = None) -> SeamReport:
        """What was counted.

        Args:
            axes: Names of the spatial axes.
            suspects: As `cytopave.engine.merge.resolve.Resolution` has them.
        """
        self._count()
        counts = [[LineCounts(met=m, cut=c) for m, c in kind] for kind in self._totals.tolist()]
        first, reach = self._suspects(np.zeros((0, 2), int) if suspects is None else suspects)
        found = [
            AxisSeams(axis=name, seams=seams, control=control, suspects=over)
            for name, (seams, control), over, n in zip(
                axes, counts, reach, self._grid.counts, strict=True
            )
            if n > 1
        ]
        places = np.unravel_index(first[:MOST_PLACES], (self._grid.times, *self._grid.shape))
        return SeamReport(
            axes=found,
            cut=[tuple(p) for p in self._places.tolist()],
            suspects=[tuple(p) for p in np.stack(places, axis=1).tolist()],
        )

    def _suspects(self, rows: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """First pixels of the suspects, and how many of them reach over seams across each axis."""
        counts = self._grid.counts
        first, of_row = np.unique(rows[:, 0], return_inverse=True)
        tiles = np.unravel_index(rows[:, 1] % self._grid.tiles_per_time, counts)
        reach = []
        for position, n in zip(tiles, counts, strict=True):
            low, high = np.full(len(first), n), np.zeros(len(first), np.int64)
            np.minimum.at(low, of_row, position)
            np.maximum.at(high, of_row, position)
            reach.append(int((low < high).sum()))
        return first, reach

    def _face(self, key: tuple[int, int], plane: np.ndarray) -> None:
        """A plane at the seam after a tile, along an axis."""
        facing = self._waiting.pop(key, None)
        if facing is None:
            self._waiting[key] = plane
        else:
            self._before[key[1]].append(key[0])
            self._meet(key[1], _SEAM, facing, plane)

    def _meet(self, axis: int, kind: int, before: np.ndarray, after: np.ndarray) -> None:
        self._lines[2 * axis + kind].append((before, after))
        self._pixels += before.size
        if self._pixels >= _PIXELS_AT_ONCE:
            self._count()

    def _count(self) -> None:
        for axis, total in enumerate(self._totals):
            for kind, lines in enumerate(self._lines[2 * axis : 2 * axis + 2]):
                met, ends = compare_lines(lines)
                total[kind] += met, len(ends)
                if kind == _SEAM and len(ends):
                    self._keep(self._located(axis, lines, ends))
                lines.clear()
            self._before[axis].clear()
        self._pixels = 0

    def _located(self, axis: int, lines: Sequence[_Line], ends: np.ndarray) -> np.ndarray:
        """Places in the image, on the last plane before a seam, of what `compare_lines` found."""
        places = np.zeros((len(ends), self._places.shape[1]), np.int64)
        for line in np.unique(ends[:, 0]).tolist():
            tile = self._grid[self._before[axis][line]]
            start = list(tile.core.start)
            start[axis] = tile.core.stop[axis] - 1
            rows = ends[:, 0] == line
            plane = list(np.unravel_index(ends[rows, 1], lines[line][0].shape))
            plane.insert(axis, np.zeros_like(plane[0]))
            places[rows, 0] = tile.time
            places[rows, 1:] = np.stack(plane, axis=1) + start
        return places

    def _keep(self, places: np.ndarray) -> None:
        """Keep the first places in raster order, which does not depend on the order of work."""
        kept = np.unique(np.concatenate([self._places, places]), axis=0)
        self._places = kept[:MOST_PLACES]


def compare_lines(lines: Sequence[_Line]) -> tuple[int, np.ndarray]:
    """Compare the two planes of final labels that face each other across each of some lines.

    Returns:
        The number of objects met, an object counting once a line; and ``(n, 2)``, a row for each
        that ends at its line: number of the line, and where in that plane its first pixel is.
    """
    if not lines:
        return 0, np.zeros((0, 2), np.int64)
    sides = [_keys([line[k] for line in lines]) for k in (0, 1)]
    objects = [np.unique(keys[keys & _LABEL > 0], return_counts=True) for keys in sides]
    large = [own[pixels >= MIN_PIXELS] for own, pixels in objects]
    ends = []
    for keys, own, (others, _) in zip(sides, large, objects[::-1], strict=True):
        cut = own[~np.isin(own, others, assume_unique=True)]
        ends.append(_first_pixels(keys, cut, lines))
    return len(np.union1d(*large)), np.concatenate(ends)


# 2^40 objects are more than anybody can store; 2^24 lines are more than are counted at once.
_LINE_BITS = np.uint64(40)
_LABEL = np.uint64((1 << 40) - 1)


def _keys(planes: Sequence[np.ndarray]) -> np.ndarray:
    """Line and label of every pixel, as one number."""
    ids = np.concatenate([p.ravel() for p in planes]).astype(np.uint64)
    of_line = np.repeat(np.arange(len(planes), dtype=np.uint64), [p.size for p in planes])
    return np.asarray((of_line << _LINE_BITS) | ids)


def _first_pixels(keys: np.ndarray, wanted: np.ndarray, lines: Sequence[_Line]) -> np.ndarray:
    """Line, and place in its plane, of the first pixel of each wanted key."""
    here = np.flatnonzero(np.isin(keys, wanted))
    found, first = np.unique(keys[here], return_index=True)
    line = (found >> _LINE_BITS).astype(np.int64)
    begin = np.cumsum([0, *(before.size for before, _ in lines[:-1])])
    return np.stack([line, here[first] - begin[line]], axis=1)
