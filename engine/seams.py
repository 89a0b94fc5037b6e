"""The proof in every run: are objects cut at seams more often than inside tiles?

Along each seam, and along a control line through the middle of each tile, the two planes of pixels
that face each other are compared. An object that fills at least ``MIN_PIXELS`` of one plane and
none of the other ends exactly there. Real objects do that now and then, equally often at any line;
whatever the seams show beyond the control lines was cut by the tiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cytopave.engine.tiling import Grid, Tile

MIN_PIXELS = 4


class LineCounts(BaseModel):
    """Objects met on the two planes beside lines of one kind, and how many end there."""

    model_config = ConfigDict(frozen=True)

    met: int = 0
    cut: int = 0

    @property
    def rate(self) -> float:
        """Share of the objects met that end at the line."""
        return self.cut / self.met if self.met else 0.0

    def __add__(self, other: LineCounts) -> LineCounts:
        return LineCounts(met=self.met + other.met, cut=self.cut + other.cut)


class AxisSeams(BaseModel):
    """Seams across one axis, beside the control lines across the same axis."""

    model_config = ConfigDict(frozen=True)

    axis: str
    seams: LineCounts = LineCounts()
    control: LineCounts = LineCounts()

    @property
    def excess(self) -> float:
        """Objects that the tiles cut: those at seams beyond the control lines' rate."""
        return self.seams.cut - self.control.rate * self.seams.met


def count_line(before: np.ndarray, after: np.ndarray) -> LineCounts:
    """Compare the two planes of final labels that face each other across a line."""
    counts = LineCounts()
    for plane, other in ((before, after), (after, before)):
        ids, pixels = np.unique(plane, return_counts=True)
        ids = ids[(pixels >= MIN_PIXELS) & (ids > 0)]
        ends = ~np.isin(ids, other)
        counts += LineCounts(met=len(ids), cut=int(ends.sum()))
    return counts


def tile_planes(tile: Tile, core: np.ndarray) -> dict[str, np.ndarray]:
    """What the report needs of a painted core: its outer planes and its control lines' planes.

    Names are ``tile.axis.which``; ``which`` is ``first``, ``last``, ``before`` or ``after``.
    """
    planes = {}
    for axis, length in enumerate(core.shape):
        places = {"first": 0, "last": length - 1}
        if length >= 2:
            places |= {"before": length // 2 - 1, "after": length // 2}
        for which, place in places.items():
            planes[f"{tile.index}.{axis}.{which}"] = core.take(place, axis=axis)
    return planes


def seam_report(
    grid: Grid, axes: Sequence[str], groups: Iterable[Mapping[str, np.ndarray]]
) -> list[AxisSeams]:
    """Count along all seams and control lines of a run.

    Args:
        grid: The tiles.
        axes: Names of the spatial axes.
        groups: The planes of all tiles, in any order and grouping.

    Returns:
        One entry an axis that has seams.
    """
    seams = [LineCounts() for _ in axes]
    control = [LineCounts() for _ in axes]
    waiting: dict[tuple[int, int], np.ndarray] = {}
    for planes in groups:
        for name, plane in planes.items():
            index, axis, which = (int(p) if p.isdigit() else p for p in name.split("."))
            assert isinstance(index, int)
            assert isinstance(axis, int)
            if which == "before":
                control[axis] += count_line(plane, planes[f"{index}.{axis}.after"])
            elif which in ("first", "last"):
                key = _seam(grid, index, axis, last=which == "last")
                if key is None:
                    continue
                facing = waiting.pop(key, None)
                if facing is None:
                    waiting[key] = plane
                else:
                    seams[axis] += count_line(facing, plane)
    return [
        AxisSeams(axis=name, seams=s, control=c)
        for name, s, c, n in zip(axes, seams, control, grid.counts, strict=True)
        if n > 1
    ]


def _seam(grid: Grid, index: int, axis: int, *, last: bool) -> tuple[int, int] | None:
    """The seam as the tile before it and the axis; None at the image's border."""
    tile = grid[index]
    position = list(tile.position)
    if last:
        return None if position[axis] == grid.counts[axis] - 1 else (index, axis)
    position[axis] -= 1
    return None if position[axis] < 0 else (grid.index(tile.time, tuple(position)), axis)
