"""The tile grid and its boxes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cytopave.engine.boxes import Box
from cytopave.engine.errors import PlanError
from cytopave.engine.tiling import Grid


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    ndim = draw(st.integers(2, 3))
    shape = tuple(draw(st.integers(1, 40)) for _ in range(ndim))
    tile = tuple(draw(st.integers(1, 20)) for _ in range(ndim))
    halo = tuple(draw(st.integers(0, t)) for t in tile)
    return Grid(shape, tile, halo, draw(st.integers(1, 3)))


@given(grids())
def test_cores_partition_the_image(grid: Grid) -> None:
    owner = np.full((grid.times, *grid.shape), -1)
    for tile in grid:
        assert (owner[tile.time][tile.core.slices] == -1).all()
        owner[tile.time][tile.core.slices] = tile.index
    assert (owner >= 0).all()
    assert len(grid) == owner.max() + 1


@given(grids())
def test_windows_reach_direct_neighbours_only_and_never_exceed_tile_plus_halos(grid: Grid) -> None:
    for tile in grid:
        near = {other.index for _, other in grid.neighbours(tile)} | {tile.index}
        assert {t.index for t in grid.covering(tile.time, tile.window)} <= near
        for n, t, h, length in zip(
            grid.shape, grid.tile, grid.halo, tile.window.shape, strict=True
        ):
            assert length <= min(n, t + 2 * h)


@given(grids(), st.data())
def test_covering_finds_exactly_the_cores_that_meet_a_box(grid: Grid, data: st.DataObject) -> None:
    start = tuple(data.draw(st.integers(0, n - 1)) for n in grid.shape)
    stop = tuple(data.draw(st.integers(a + 1, n)) for a, n in zip(start, grid.shape, strict=True))
    box = Box(start, stop)
    expected = [t.index for t in grid if t.time == 0 and t.core.intersect(box).size]
    assert [t.index for t in grid.covering(0, box)] == expected


@given(grids(), st.data())
def test_blocks_hold_every_tile_once(grid: Grid, data: st.DataObject) -> None:
    per_axis = tuple(data.draw(st.integers(1, 5)) for _ in grid.shape)
    blocks = list(grid.blocks(per_axis))
    assert sorted(i for block in blocks for i in block) == list(range(len(grid)))
    for block in blocks:
        assert len({grid[i].time for i in block}) == 1


def test_neighbours_are_mutual_and_of_one_time_point() -> None:
    grid = Grid((30, 30, 30), (10, 10, 10), (2, 2, 2), times=2)
    for tile in grid:
        for step, other in grid.neighbours(tile):
            assert other.time == tile.time
            back = dict(grid.neighbours(other))[tuple(-s for s in step)]
            assert back == tile
    middle = grid[grid.index(1, (1, 1, 1))]
    assert len(list(grid.neighbours(middle))) == 26


def test_a_rest_thinner_than_the_halo_joins_the_last_tile() -> None:
    grid = Grid((2100,), (512,), (60,))
    assert grid.edges == ((0, 512, 1024, 1536, 2100),)
    assert Grid((2108,), (512,), (60,)).edges == ((0, 512, 1024, 1536, 2048, 2108),)


@pytest.mark.parametrize(
    ("tile", "halo", "message"),
    [
        ((64, 64), (65, 8), "a halo of 65 pixels does not fit a tile of 64"),
        ((64,), (8,), "give one number an axis"),
    ],
)
def test_impossible_grids_are_refused(
    tile: tuple[int, ...], halo: tuple[int, ...], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        Grid((100, 100), tile, halo)


def test_a_halo_may_exceed_a_tile_that_holds_the_whole_axis() -> None:
    assert len(Grid((40, 300), (40, 100), (64, 64))) == 3


@given(st.data())
def test_box_blocks_partition_along_multiples(data: st.DataObject) -> None:
    start = tuple(data.draw(st.integers(0, 30)) for _ in range(2))
    stop = tuple(a + data.draw(st.integers(1, 30)) for a in start)
    step = tuple(data.draw(st.integers(1, 12)) for _ in range(2))
    box = Box(start, stop)
    count = np.zeros((60, 60), int)
    for part in box.blocks(step):
        count[part.slices] += 1
        for a, b, s in zip(part.start, part.stop, step, strict=True):
            assert a // s == (b - 1) // s
    assert (count[box.slices] == 1).all()
    assert count.sum() == box.size
