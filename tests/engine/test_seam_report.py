"""What the seam report says where the truth is known."""

from __future__ import annotations

import numpy as np
import worlds

from cytopave.engine.seams import AxisSeams, LineCounts, SeamCounter
from cytopave.engine.tiling import Grid

SHAPE = (600, 640)
GRID = Grid(SHAPE, (100, 160), (0, 0))


def _report(labels: np.ndarray) -> list[AxisSeams]:
    counter = SeamCounter(GRID)
    for tile in GRID:
        counter.add(tile, labels[tile.core.slices])
    return counter.report("yx").axes


def test_whole_objects_stay_within_chance() -> None:
    labels = worlds.confluent(SHAPE, pitch=30, gap=1)
    for axis in _report(labels):
        assert axis.seams.met > 50
        assert abs(axis.excess) <= max(axis.chance, 1)


def test_objects_that_every_tile_cuts_are_all_found() -> None:
    labels = worlds.confluent(SHAPE, pitch=30)
    cut = np.zeros(SHAPE, np.int64)
    for tile in GRID:
        core = labels[tile.core.slices].astype(np.int64)
        cut[tile.core.slices] = core + 10_000 * tile.index
    for axis in _report(cut):
        assert axis.seams.cut == axis.seams.met
        assert axis.excess > 5 * axis.chance


def test_chance_is_three_deviations_of_a_difference_of_counts() -> None:
    axis = AxisSeams(
        axis="y", seams=LineCounts(met=100, cut=8), control=LineCounts(met=300, cut=12)
    )
    assert axis.excess == 4
    # rate 20 / 400, 100 met at seams, a third as many as at the control lines
    assert np.isclose(axis.chance, 3 * (100 * 0.05 * 0.95 * (1 + 1 / 3)) ** 0.5)
