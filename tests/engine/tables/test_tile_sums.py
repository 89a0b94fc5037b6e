"""Sums that are taken while tiles are in memory: the same table as of the finished labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stores
import worlds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from measured import measured
from runs import blobs, labels_of, merge_here, plan_of, skip_here
from skimage.measure import regionprops_table

from cytopave.engine.planning.foreground import Mask
from cytopave.engine.segment import segment_tiles
from cytopave.engine.segmenters import Custom, Threshold
from cytopave.engine.tables import tile_sums
from cytopave.engine.tables.read import open_table
from cytopave.engine.tables.tile_sums import interior, strips
from cytopave.engine.tiling import Grid, Tiling

if TYPE_CHECKING:
    from pathlib import Path

    from cytopave.engine.planning.plan import Plan


def image_of(world: np.ndarray, folder: Path, *, time: bool = False, **options: Any) -> Path:
    """What tile functions are given, and two channels of noise before and after it."""
    folder.mkdir(exist_ok=True)
    noise = [stores.pixels(world.shape, seed=seed) for seed in (1, 2)]
    pixels = np.stack([noise[0], world.astype(np.uint16), noise[1]], axis=1 if time else 0)
    axes = "tczyx" if world.ndim == 4 else ("tcyx" if time else "czyx"[: world.ndim + 1])
    axes = "cyx" if world.ndim == 2 else axes
    return stores.ome_image(folder / "image.zarr", pixels, axes=axes, **options)


def segment(plan: Plan) -> None:
    if plan.foreground is not None:
        skip_here(plan)
    for batch in plan.batches:
        segment_tiles(plan, batch)


def request_of(function: str, tile: Any, halo: Any, **more: Any) -> dict[str, Any]:
    return {
        "segmenter": Custom(function=f"worlds:{function}"),
        "channels": [1],
        "tiling": Tiling(tile=tile, halo=halo),
        "measure": True,
        **more,
    }


def check(image: Path) -> dict[str, np.ndarray]:
    """The run's table beside that of the labels as they lie there; returns it."""
    measured(image, "cells", name="again")
    ours, theirs = (open_table(image, name).read() for name in ("cells", "again"))
    for name, column in theirs.items():
        if column.dtype.kind != "f":
            np.testing.assert_array_equal(ours[name], column, err_msg=name)
            continue
        # That of a circle is the square root of what rounding leaves.
        atol = 1e-6 if name == "eccentricity" else 1e-9
        np.testing.assert_allclose(ours[name], column, rtol=1e-11, atol=atol, err_msg=name)
    return ours


@pytest.mark.parametrize("function", ["grown", "fusing"])
@pytest.mark.parametrize(
    ("tile", "halo"),
    [((64, 64), 0), ((64, 64), 1), ((48, 80), (20, 7)), ((64, 64), 32), ((64, 50), (50, 50))],
    ids=str,
)
def test_tiles_that_disagree(tmp_path: Path, function: str, tile: Any, halo: Any) -> None:
    """Ragged grids; halos of nothing, of a pixel, of half a tile and of all of it."""
    image = image_of(worlds.confluent((203, 170), pitch=24), tmp_path, chunks=(3, 50, 50))
    plan = plan_of(image, **request_of(function, tile, halo))
    assert plan.measured == (0, 1, 2)
    assert plan.measured_in_tiles
    segment(plan)
    merge_here(plan, table=True)
    table = check(image)
    assert len(table["label"]) == labels_of(image).max() > 30


@pytest.mark.parametrize("world", ["rods", "rings", "crescents"])
def test_objects_over_many_tiles(tmp_path: Path, world: str) -> None:
    image = image_of(getattr(worlds, world)((300, 280)), tmp_path)
    plan = plan_of(image, **request_of("perfect", (48, 48), 10))
    segment(plan)
    merge_here(plan, table=True)
    labels = labels_of(image)
    table = check(image)
    pixels = np.stack([stores.pixels(labels.shape, seed=s) for s in (1, 2)], axis=-1)
    wanted = regionprops_table(
        labels.astype(np.int64),
        pixels.astype(float),
        properties=("label", "num_pixels", "intensity_mean", "intensity_std", "axis_major_length"),
        spacing=(0.5, 0.5),
    )
    np.testing.assert_array_equal(table["label"], wanted["label"])
    np.testing.assert_array_equal(table["n_pixels"], wanted["num_pixels"])
    np.testing.assert_allclose(table["axis_major_length"], wanted["axis_major_length"])
    np.testing.assert_allclose(table["channel_0_mean"], wanted["intensity_mean-0"])
    np.testing.assert_allclose(table["channel_2_std"], wanted["intensity_std-1"])
    assert table["n_tiles"].max() > 8


@pytest.mark.parametrize("halo", [(0, 4, 4), (3, 4, 4), (9, 20, 20)], ids=str)
def test_stacks(tmp_path: Path, halo: Any) -> None:
    image = image_of(worlds.confluent((30, 62, 58), pitch=14), tmp_path)
    plan = plan_of(image, **request_of("grown", (11, 24, 24), halo))
    segment(plan)
    merge_here(plan, table=True)
    assert len(check(image)["label"]) > 20


def test_time_points(tmp_path: Path) -> None:
    world = np.stack([worlds.disks((120, 110), radius=8, pitch=18, seed=t) for t in range(3)])
    image = image_of(world, tmp_path, time=True)
    plan = plan_of(image, **request_of("shifted", (50, 50), 9))
    segment(plan)
    merge_here(plan, table=True)
    assert set(check(image)["time"].tolist()) == {0, 1, 2}


@pytest.mark.parametrize("dtype", ["uint8", "bool", "float32", "float64", ">u2"])
def test_pixels_of_any_type(tmp_path: Path, dtype: str) -> None:
    """Without an axis of channels."""
    image = stores.ome_image(tmp_path / "image.zarr", blobs((150, 140)).astype(dtype))
    plan = plan_of(
        image,
        segmenter=Threshold(threshold=0.5),
        tiling=Tiling(tile=(40, 40), halo=6),
        measure=True,
    )
    segment(plan)
    merge_here(plan, table=True)
    assert (check(image)["intensity_mean"] == 1).all()


@pytest.mark.parametrize("absent", ["some", "all", "other channels"])
def test_tiles_that_hold_no_sums(
    tmp_path: Path, absent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left by a run without a table, they are read again and not segmented again."""
    image = image_of(worlds.confluent((203, 170), pitch=24), tmp_path)
    plan = plan_of(image, **request_of("grown", (48, 48), 10))
    before = plan_of(image, **request_of("grown", (48, 48), 10, measure=False))
    if absent == "other channels":
        before = plan.model_copy(update={"measured": (0, 1)})
    assert plan.root == before.root
    assert before.sums is None or absent == "other channels"
    for batch in list(before.batches)[: 1 if absent == "some" else None]:
        segment_tiles(before, batch)
    done = {i: plan.scratch.tile_path(i).stat().st_mtime_ns for i in plan.scratch.finished()}
    segment(plan)
    assert done
    assert all(plan.scratch.tile_path(i).stat().st_mtime_ns == t for i, t in done.items())
    monkeypatch.setattr(tile_sums, "_AT_ONCE", 500)
    merge_here(plan, table=True)
    check(image)


def test_a_run_without_a_table_after_one_with_it(tmp_path: Path) -> None:
    image = image_of(worlds.confluent((120, 110), pitch=24), tmp_path)
    segment(plan_of(image, **request_of("grown", (48, 48), 10)))
    plan = plan_of(image, **request_of("grown", (48, 48), 10, measure=False))
    assert len(plan.scratch.finished()) == len(plan.grid)
    assert plan.sums is None
    merge_here(plan)
    assert not list(plan.root.glob("table-*"))


def test_tiles_that_are_left_out(tmp_path: Path) -> None:
    """Neighbours draw in them."""
    image = image_of(worlds.disks((200, 190), radius=10, pitch=24), tmp_path)
    plan = plan_of(image, **request_of("perfect", (48, 48), 20))
    missing = [5, 6, 12]
    for batch in plan.batches:
        segment_tiles(plan, tuple(i for i in batch if i not in missing))
    part = plan.without(missing)
    merge_here(part, table=True)
    labels = labels_of(image)
    assert any(labels[plan.grid[i].core.slices].any() for i in missing)
    check(image)


def test_tiles_that_are_skipped(tmp_path: Path) -> None:
    world = worlds.disks((200, 190), radius=10, pitch=24)
    image = image_of(world, tmp_path)
    mask = np.zeros(world.shape, np.uint8)
    mask[:, :100] = 1
    stores.ome_image(tmp_path / "mask.zarr", mask)
    plan = plan_of(
        image, **request_of("perfect", (48, 48), 20, mask=Mask(image=str(tmp_path / "mask.zarr")))
    )
    segment(plan)
    merge_here(plan, table=True)
    check(image)


def test_memory_that_does_not_suffice_for_both(tmp_path: Path) -> None:
    """Then tiles keep nothing, and what was painted is read again."""
    image = image_of(worlds.confluent((120, 110), pitch=24), tmp_path)
    plan = plan_of(image, **request_of("grown", (48, 48), 10))
    plan = plan.model_copy(update={"measured_in_tiles": False})
    segment(plan)
    assert set(plan.scratch.open(0).index) == {"views", "core", "zone0+", "zone+0", "zone++"}
    merge_here(plan, table=True)
    check(image)


@pytest.mark.parametrize("of_chunk", [1, 2, 3])
def test_the_image_is_read_once_and_the_labels_never(
    of_chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every channel of it, of which one is segmented, whichever lie together."""
    world = worlds.disks((256, 256), radius=9, pitch=20)
    image = image_of(world + 1, tmp_path, chunks=(of_chunk, 32, 32))
    plan = plan_of(
        image,
        segmenter=Threshold(threshold=1.5),
        channels=[1],
        tiling=Tiling(tile=(64, 64), halo=16),
        measure=True,
    )
    traffic = stores.Traffic(monkeypatch)
    segment_tiles(plan, tuple(range(len(plan.grid))))
    merge_here(plan, table=True)
    read = traffic.chunks(traffic.reads)
    assert [n for k, n in read.items() if "/s0/c" in k] == -(-3 // of_chunk) * 64 * [1]
    assert not [k for k in read if "/labels/" in k and "staging/0/c" in k]
    monkeypatch.undo()
    check(image)


def test_a_few_pixels_of_the_segmented_channels_are_what_the_function_gets(
    tmp_path: Path,
) -> None:
    """In the order that was asked for, whatever else is read."""
    image = image_of(worlds.confluent((60, 70), pitch=8), tmp_path)
    got = {}
    for name, measure in (("with", True), ("without", False)):
        plan = plan_of(
            image,
            segmenter=Custom(function="tile_functions:second_of_two"),
            channels=[2, 1],
            tiling=Tiling(tile=(32, 32), halo=4),
            measure=measure,
            scratch=tmp_path / name,
        )
        segment(plan)
        got[name] = [plan.scratch.open(i).read("core")[0] for i in range(len(plan.grid))]
    assert any(core.any() for core in got["with"])
    for a, b in zip(got["with"], got["without"], strict=True):
        np.testing.assert_array_equal(a, b)


@given(
    shape=st.lists(st.integers(1, 40), min_size=2, max_size=3),
    tile=st.lists(st.integers(1, 40), min_size=3, max_size=3),
    halo=st.lists(st.integers(0, 40), min_size=3, max_size=3),
)
def test_interior_and_strips_partition_the_core(
    shape: list[int], tile: list[int], halo: list[int]
) -> None:
    n = len(shape)
    halo = [min(h, t) for h, t in zip(halo, tile, strict=True)][:n]
    grid = Grid(tuple(shape), tuple(tile[:n]), tuple(halo))
    tiles = list(grid)
    for tile_ in (tiles[0], tiles[len(tiles) // 2], tiles[-1]):
        count = np.zeros(tile_.core.shape, int)
        inner = interior(grid, tile_)
        for box in [*strips(grid, tile_), *([inner] if inner.size else [])]:
            count[box.within(tile_.core)] += 1
        assert (count == 1).all()
        for _, other in grid.neighbours(tile_):
            shared = other.window.intersect(inner)
            assert not shared.size or all(
                s == 0 or not h
                for s, h in zip(
                    (b - a for a, b in zip(tile_.position, other.position, strict=True)),
                    grid.halo,
                    strict=True,
                )
            )


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    tile=st.tuples(st.integers(16, 70), st.integers(16, 70)),
    halo=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    seed=st.integers(0, 99),
)
def test_any_grid(
    tmp_path_factory: pytest.TempPathFactory,
    tile: tuple[int, int],
    halo: tuple[int, int],
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    halo = (min(halo[0], tile[0]), min(halo[1], tile[1]))
    image = image_of(worlds.confluent((90, 101), pitch=17, seed=seed), folder)
    plan = plan_of(image, **request_of("grown", tile, halo))
    segment(plan)
    merge_here(plan, table=True)
    check(image)
