"""The merge against worlds of known truth."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import cc3d
import numpy as np
import pytest
import worlds
from hypothesis import given, settings
from hypothesis import strategies as st
from tiled import merge, stage, tiled

from cytopave.engine.merge import Merge
from cytopave.engine.seams import SeamCounter
from cytopave.engine.tiling import Grid

SHAPE = (700, 650)  # ragged at any of the tiles below


@pytest.mark.parametrize("world", worlds.WORLDS)
@pytest.mark.parametrize(("tile", "halo"), [(256, 1), (256, 20), (128, 60), (100, 100)])
def test_perfect_tiles_make_a_perfect_image(
    world: str, tile: int, halo: int, tmp_path: Path
) -> None:
    truth = worlds.WORLDS[world](SHAPE)
    found = tiled(truth, worlds.perfect, tmp_path, tile=(tile, tile), halo=(halo, halo))
    assert worlds.same_partition(truth, found)
    # Raster order of first pixels is a property of the labels alone.
    np.testing.assert_array_equal(found, worlds.dense(truth))


@pytest.mark.parametrize("gap", [0, 1])
@pytest.mark.parametrize("halo", [(1, 1, 1), (6, 12, 12)])
def test_perfect_tiles_in_3d(gap: int, halo: tuple[int, ...], tmp_path: Path) -> None:
    truth = worlds.confluent((50, 90, 100), pitch=24, gap=gap)
    found = tiled(truth, worlds.perfect, tmp_path, tile=(20, 32, 40), halo=halo)
    np.testing.assert_array_equal(found, worlds.dense(truth))


@pytest.mark.parametrize("world", ["confluent", "gaps", "clumps", "nuclei", "rods"])
@pytest.mark.parametrize(
    "function",
    [partial(worlds.shifted, px=1), worlds.grown],
    ids=["shifted", "grown"],
)
@pytest.mark.parametrize(("tile", "halo"), [(256, 20), (128, 60)])
def test_unsteady_outlines_fuse_and_split_nothing(
    world: str, function: worlds.Function, tile: int, halo: int, tmp_path: Path
) -> None:
    truth = worlds.without_crumbs(worlds.WORLDS[world](SHAPE))
    found = tiled(truth, function, tmp_path, tile=(tile, tile), halo=(halo, halo))
    assert worlds.fused(truth, found) == 0
    assert worlds.split(truth, found) == 0
    assert worlds.slivers(truth, found) == 0


@pytest.mark.parametrize("world", ["clumps", "nuclei", "gaps"])
def test_an_object_that_some_tile_saw_whole_is_there_whole(world: str, tmp_path: Path) -> None:
    truth = worlds.WORLDS[world](SHAPE)
    grid = Grid(SHAPE, (256, 256), (40, 40))
    miss = partial(worlds.grown, missing=0.05, px=0)
    scratch = stage(grid, truth, miss, tmp_path)
    found, _ = merge(grid, scratch)
    for tile in grid:
        seen = worlds.dense(miss(truth[tile.window.slices]))
        table = scratch.open(tile.index).read("views")[0]
        for number in np.flatnonzero(table["cut"] == 0) + 1:
            ids = found[tile.window.slices][seen == number]
            assert ids[0] > 0
            assert (ids == ids[0]).all()
            assert (found == ids[0]).sum() == len(ids)


def test_a_tile_that_fuses_cells_spreads_no_error(tmp_path: Path) -> None:
    truth = worlds.without_crumbs(worlds.confluent(SHAPE))
    grid = Grid(SHAPE, (256, 256), (60, 60))
    found, _ = merge(grid, stage(grid, truth, worlds.fusing, tmp_path))
    drawn = {t.index: worlds.dense(worlds.fusing(truth[t.window.slices])) for t in grid}
    for number in range(1, int(truth.max()) + 1):
        where = truth == number
        home = max(grid, key=lambda t: int(where[t.core.slices].sum()))
        seen = drawn[home.index]
        view = seen == np.bincount(seen[where[home.window.slices]]).argmax()
        alone = (truth[home.window.slices][view] == number).all()
        if alone and view.sum() == where.sum():
            ids = found[where]
            assert (found == np.bincount(ids).argmax()).sum() == where.sum()


@settings(max_examples=60)
@given(data=st.data())
def test_components_tiled_equal_components_untiled(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ndim = data.draw(st.sampled_from([2, 2, 3]))
    shape = tuple(data.draw(st.integers(1, 40 if ndim == 2 else 16)) for _ in range(ndim))
    tile = tuple(data.draw(st.integers(3, 20)) for _ in range(ndim))
    halo = tuple(data.draw(st.integers(1, t)) for t in tile)
    connectivity = data.draw(st.sampled_from([4, 8] if ndim == 2 else [6, 18, 26]))
    seed, density = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.floats(0.05, 0.95))
    image = (np.random.default_rng(seed).random(shape) < density).astype(np.uint8)
    components = partial(cc3d.connected_components, connectivity=connectivity)
    root = tmp_path_factory.mktemp("run")
    found = tiled(image, components, root, tile=tile, halo=halo)
    np.testing.assert_array_equal(found, worlds.dense(components(image)))


def test_result_does_not_depend_on_the_order_of_tiles(tmp_path: Path) -> None:
    truth = worlds.confluent(SHAPE)
    grid = Grid(SHAPE, (128, 128), (24, 24))
    scratch = stage(grid, truth, partial(worlds.shifted, px=2), tmp_path)
    straight, _ = merge(grid, scratch)
    shuffled, _ = merge(grid, scratch, order=np.random.default_rng(3).permutation(len(grid)))
    np.testing.assert_array_equal(straight, shuffled)


def test_merging_is_idempotent(tmp_path: Path) -> None:
    truth = worlds.confluent(SHAPE)
    first = tiled(
        truth,
        partial(worlds.shifted, px=2),
        tmp_path / "1",
        tile=(128, 128),
        halo=(24, 24),
    )
    again = worlds.connected(first)
    found = tiled(again, worlds.perfect, tmp_path / "2", tile=(200, 150), halo=(16, 16))
    np.testing.assert_array_equal(found, worlds.dense(again))


@pytest.mark.parametrize("side", [1, 3])
@pytest.mark.parametrize("connectivity", [4, 8])
def test_checkerboards(side: int, connectivity: int, tmp_path: Path) -> None:
    board = worlds.checkerboard((70, 66), side).astype(np.uint8)
    components = partial(cc3d.connected_components, connectivity=connectivity)
    found = tiled(board, components, tmp_path, tile=(16, 20), halo=(2, 1))
    np.testing.assert_array_equal(found, worlds.dense(components(board)))


@pytest.mark.parametrize("ndim", [2, 3])
def test_objects_that_meet_at_the_corner_of_all_tiles(ndim: int, tmp_path: Path) -> None:
    # One object an orthant, each touching the corner; and one that straddles it.
    half = 24
    corner = np.indices((2 * half,) * ndim) >= half
    orthants = 1 + sum(c * 2**i for i, c in enumerate(corner))
    distance = np.abs(np.indices((2 * half,) * ndim) - half + 0.5).max(0)
    ball = np.where(distance < 5, 9, 0)
    for truth in (orthants, ball, np.where(ball, ball, orthants)):
        for halo in (1, 8):
            root = tmp_path / f"{halo}{int(truth[0].max())}{int(truth.sum())}"
            found = tiled(truth, worlds.perfect, root, tile=(half,) * ndim, halo=(halo,) * ndim)
            np.testing.assert_array_equal(found, worlds.dense(truth))


def test_an_object_joined_on_a_neighbours_word_is_a_suspect(tmp_path: Path) -> None:
    # A fork: the left tile sees two prongs, the right one sees that they are one object.
    image = np.zeros((40, 80), np.uint8)
    image[10:14, 10:60] = image[24:28, 10:60] = image[10:28, 60:64] = 1
    grid = Grid(image.shape, (40, 40), (8, 8))
    labels, resolution = merge(grid, stage(grid, image, worlds.perfect, tmp_path))
    assert (labels.max(), resolution.n_suspects, resolution.n_joined) == (1, 1, 1)
    report = SeamCounter(grid).report("yx", resolution.suspects)
    assert [(a.axis, a.suspects) for a in report.axes] == [("x", 1)]
    assert report.suspects == [(0, 10, 10)]


def test_time_points_are_never_merged(tmp_path: Path) -> None:
    frame = worlds.disks((200, 200))
    grid = Grid((200, 200), (64, 64), (16, 16), times=3)
    movie = np.stack([frame, frame, frame])
    found, resolution = merge(grid, stage(grid, movie, worlds.perfect, tmp_path))
    n = int(frame.max())
    assert resolution.n_objects == 3 * n
    for t in range(3):
        np.testing.assert_array_equal(found[t], np.where(frame, worlds.dense(frame) + t * n, 0))


def test_without_halo_planes_are_stitched_by_their_overlap(tmp_path: Path) -> None:
    # Two columns: one drifts by a pixel a plane, the other is cut off after three planes.
    stack = np.zeros((6, 40, 40), np.uint8)
    for z in range(6):
        stack[z, 5:15, 5 + z : 15 + z] = 1
        if z < 3:
            stack[z, 25:35, 5:15] = 1
        else:
            stack[z, 25:35, 25:35] = 1
    found = tiled(
        stack,
        partial(cc3d.connected_components, connectivity=6),
        tmp_path,
        tile=(1, 40, 40),
        halo=(0, 0, 0),
    )
    assert found.max() == 3
    assert len(np.unique(found[:, 10, 12])) == 1


def test_touching_cells_stay_apart_without_halo_and_are_joined_on_request(tmp_path: Path) -> None:
    image = np.zeros((20, 40), np.uint8)
    image[2:10, 10:20], image[8:18, 20:30] = 1, 2  # touch along two of eight pixels
    grid = Grid(image.shape, (20, 20), (0, 0))
    scratch = stage(grid, image, worlds.perfect, tmp_path)
    apart, _ = merge(grid, scratch)
    joined, _ = merge(grid, scratch, rule=Merge(rule="touch"))
    assert (apart.max(), joined.max()) == (2, 1)


def test_touch_rule_joins_a_whole_tissue_into_one(tmp_path: Path) -> None:
    truth = worlds.confluent(SHAPE)
    grid = Grid(SHAPE, (64, 64), (8, 8))
    # Cells meet in the shared zones only where two tiles draw different cells: with unsteady
    # outlines that joins nearly all of them. It must stay fast, and lose no pixel.
    scratch = stage(grid, truth, partial(worlds.shifted, px=2), tmp_path)
    found, resolution = merge(grid, scratch, rule=Merge(rule="touch"))
    assert (found > 0).all()
    assert resolution.n_objects < 20


@pytest.mark.parametrize("n", [0, 1])
def test_empty_and_single_tiles(n: int, tmp_path: Path) -> None:
    image = np.zeros((90, 90), np.uint8)
    image[:n] = 1
    found = tiled(image, worlds.perfect, tmp_path, tile=(32, 32), halo=(8, 8))
    np.testing.assert_array_equal(found, image)
