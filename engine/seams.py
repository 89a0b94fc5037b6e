"""The proof in every run: are objects cut at seams more often than inside tiles?

Along each seam, and along a control line through the middle of each tile, the two planes of pixels
that face each other are compared. An object that fills at least ``MIN_PIXELS`` of one plane and
none of the other ends exactly there. Real objects do that now and then, equally often at any line;
what the seams show beyond the control lines, and beyond chance, was cut by the tiles.
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

type _Line = tuple[np.ndarray, np.ndarray]

_SEAM, _CONTROL = 0, 1
_PIXELS_AT_ONCE = 1 << 20


class LineCounts(BaseModel):
    """Objects met on the two planes beside lines of one kind, and how many end there."""

    model_config = ConfigDict(frozen=True)

    met: int = 0
    cut: int = 0

    @property
    def rate(self) -> float:
        """Share of the objects met that end at the line."""
        return self.cut / self.met if self.met else 0.0


class AxisSeams(BaseModel):
    """Seams across one axis, beside the control lines across the same axis."""

    model_config = ConfigDict(frozen=True)

    axis: str
    seams: LineCounts = LineCounts()
    control: LineCounts = LineCounts()

    @property
    def excess(self) -> float:
        """Objects that end at seams beyond the control lines' rate; see `chance`."""
        return self.seams.cut - self.control.rate * self.seams.met

    @property
    def chance(self) -> float:
        """Two standard deviations of `excess` where the tiles cut nothing.

        From the rate over all lines: a difference of two binomial counts.
        """
        if not self.seams.met or not self.control.met:
            return 0.0
        rate = (self.seams.cut + self.control.cut) / (self.seams.met + self.control.met)
        spread = 1 + self.seams.met / self.control.met
        return 2 * math.sqrt(self.seams.met * rate * (1 - rate) * spread)


class SeamCounter:
    """Counts along seams and control lines, tile by tile, in any order.

    A tile's outer planes wait until the tile on the other side comes. Counters of parts of a grid
    are joined by `state` and `join`.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._totals = np.zeros((len(grid.shape), 2, 2), np.int64)  # axis; seams, control; met, cut
        self._lines: list[list[_Line]] = [[] for _ in range(2 * len(grid.shape))]
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
        """What was counted, and the planes that wait for tiles of other parts."""
        self._count()
        keys = np.array(sorted(self._waiting), np.int64).reshape(-1, 2)
        planes = [self._waiting[i, axis] for i, axis in keys.tolist()]
        return {
            "totals": self._totals,
            "keys": keys,
            "shapes": np.array([p.shape for p in planes], np.int64).reshape(
                -1, self._totals.shape[0] - 1
            ),
            "pixels": np.concatenate([np.zeros(0, np.uint32), *(p.ravel() for p in planes)]),
        }

    def join(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what another counter counted and what it waits for."""
        self._totals = self._totals + state["totals"]
        ends = np.cumsum(state["shapes"].prod(axis=1))[:-1]
        planes = np.split(state["pixels"], ends) if len(state["keys"]) else []
        for key, shape, plane in zip(
            state["keys"].tolist(), state["shapes"].tolist(), planes, strict=True
        ):
            self._face((key[0], key[1]), plane.reshape(shape))

    def report(self, axes: Sequence[str]) -> list[AxisSeams]:
        """One entry an axis that has seams; ``axes`` are the names of the spatial axes."""
        self._count()
        counts = [[LineCounts(met=m, cut=c) for m, c in kind] for kind in self._totals.tolist()]
        return [
            AxisSeams(axis=name, seams=seams, control=control)
            for name, (seams, control), n in zip(axes, counts, self._grid.counts, strict=True)
            if n > 1
        ]

    def _face(self, key: tuple[int, int], plane: np.ndarray) -> None:
        """A plane at the seam after a tile, along an axis."""
        facing = self._waiting.pop(key, None)
        if facing is None:
            self._waiting[key] = plane
        else:
            self._meet(key[1], _SEAM, facing, plane)

    def _meet(self, axis: int, kind: int, before: np.ndarray, after: np.ndarray) -> None:
        self._lines[2 * axis + kind].append((before, after))
        self._pixels += before.size
        if self._pixels >= _PIXELS_AT_ONCE:
            self._count()

    def _count(self) -> None:
        for total, lines in zip(self._totals.reshape(-1, 2), self._lines, strict=True):
            total += count_lines(lines)
            lines.clear()
        self._pixels = 0


def count_lines(lines: Sequence[_Line]) -> tuple[int, int]:
    """Compare the two planes of final labels that face each other across each of some lines.

    Returns:
        Objects met, and how many of them end at their line; an object counts once a plane.
    """
    if not lines:
        return 0, 0
    sides = [_objects([line[k] for line in lines]) for k in (0, 1)]
    met = cut = 0
    for (ids, pixels), (others, _) in (sides, sides[::-1]):
        large = ids[pixels >= MIN_PIXELS]
        met += len(large)
        cut += int((~np.isin(large, others, assume_unique=True)).sum())
    return met, cut


def _objects(planes: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The objects of each plane, told apart by plane, and their numbers of pixels."""
    ids = np.concatenate([p.ravel() for p in planes]).astype(np.uint64)
    of_line = np.repeat(np.arange(len(planes), dtype=np.uint64), [p.size for p in planes])
    # 2^40 objects are more than anybody can store; 2^24 lines are more than are counted at once.
    keys = (of_line << np.uint64(40)) | ids
    return np.unique(keys[ids > 0], return_counts=True)
