"""A halo from the data: the shortest whose tiles cannot be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stores
from worlds import disks

from cytopave.engine.boxes import Box
from cytopave.engine.errors import PlanError
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.planning.calibrate import Trial, calibrate, choose_crop, compare
from cytopave.engine.planning.foreground import Mask
from cytopave.engine.segmenters import Custom, Threshold, Watershed

if TYPE_CHECKING:
    from pathlib import Path

    from cytopave.engine.omezarr.image import Image


def image_of(path: Path, data: np.ndarray, **how: Any) -> Image:
    return open_image(stores.ome_image(path / "image.zarr", data, chunks=(64, 64), **how))


@pytest.fixture
def discs(tmp_path: Path) -> Image:
    """Discs of up to 20 pixels across in one corner of an image."""
    pixels = np.zeros((600, 700), np.uint8)
    pixels[260:580, 330:650] = (disks((320, 320), radius=10, pitch=24) > 0) * 200
    return image_of(tmp_path, pixels, n_levels=3)


def test_the_crop_is_the_block_with_the_most_foreground(discs: Image) -> None:
    foreground = Mask(threshold=100).resolve(discs, channels=())
    time, box, share = choose_crop(discs, foreground, side=200)
    blocks = [
        Box((top, left), (top + 200, left + 200))
        for top in (0, 200, 400)
        for left in (50, 250, 450)
    ]
    assert time == 0
    assert box == max(blocks, key=lambda b: (discs.read(b) > 100).sum())
    assert share == pytest.approx((discs.read(box) > 100).mean())


def test_a_stack_over_time_has_a_crop_in_time(tmp_path: Path) -> None:
    pixels = np.zeros((3, 9, 90, 90), np.uint8)
    pixels[1, 2:5, 50:80, 5:40] = 200
    path = stores.ome_image(tmp_path / "image.zarr", pixels, axes="tzyx")
    image = open_image(path)
    foreground = Mask(threshold="otsu").resolve(image, channels=())
    time, box, _ = choose_crop(image, foreground, side=45)
    assert (time, box) == (1, Box((0, 45, 0), (9, 90, 45)))


def test_the_shortest_halo_that_changes_nothing_is_taken(discs: Image) -> None:
    """A method that finds an object only if it sees 12 pixels around it."""
    method = Custom(function="tile_functions:with_a_margin", kwargs={"margin": 12})
    told: list[Trial] = []
    made = calibrate(
        discs,
        method,
        channels=(),
        side=320,
        halos=(4, 16, 24, 36, 60),
        mask=Mask(threshold=100),
        told=told.append,
    )
    assert [t.halo for t in told] == [t.halo for t in made.trials]
    assert made.trials[0].changed > 0
    assert made.trials[0].on_seams > 20
    assert made.invisible
    assert made.trials[-1].invisible
    # Twenty across and twelve around: from 32 on it has to do, and below 12 it cannot.
    assert made.halo in ((16, 16), (24, 24), (36, 36))
    works = [t.work for t in made.trials]
    assert works == sorted(works)
    assert works[0] > 1


def test_connected_components_need_hardly_any(discs: Image) -> None:
    method = Threshold(threshold=100)
    made = calibrate(discs, method, channels=(), side=256, halos=(1, 8))
    assert made.halo == (1, 1)
    assert made.trials[0].objects > 20
    assert made.rows()[0]["changed"] == 0


def test_what_no_halo_mends_is_said(discs: Image) -> None:
    method = Custom(function="tile_functions:dependent_on_the_window")
    made = calibrate(discs, method, channels=(), side=256, halos=(8, 16))
    assert not made.invisible
    assert len(made.trials) == 2


def test_a_method_that_reads_beyond_the_window(discs: Image) -> None:
    method = Watershed(threshold=100).resolve(discs, channels=())
    made = calibrate(discs, method, channels=(), side=256)
    assert made.invisible
    assert 8 <= made.halo[0] <= 48


def test_stacks_get_no_halo_along_z_where_a_tile_holds_all_planes(tmp_path: Path) -> None:
    pixels = np.zeros((10, 120, 120), np.uint8)
    pixels[3:7] = (disks((120, 120), radius=8, pitch=24) > 0) * 200
    image = open_image(stores.ome_image(tmp_path / "s.zarr", pixels, scale=(2.0, 0.5, 0.5)))
    made = calibrate(image, Threshold(threshold=100), channels=(), side=120, halos=(8,))
    assert made.halo == (0, 8, 8)
    assert made.trials[0].tile == (10, 30, 30)


def test_requests_that_cannot_be(discs: Image, tmp_path: Path) -> None:
    method = Threshold(threshold=100)
    with pytest.raises(PlanError, match="is too small to try a halo of 64"):
        calibrate(discs, method, channels=(), side=64, halos=(64, 99))
    with pytest.raises(PlanError, match="nothing was found in the crop"):
        calibrate(discs, Threshold(threshold=250), channels=(), side=256)
    flat = open_image(stores.ome_image(tmp_path / "flat.zarr", np.full((99, 99), 7, np.uint8)))
    with pytest.raises(PlanError, match="no foreground was found to choose a crop by"):
        calibrate(flat, method, channels=())


def test_comparison_counts_what_tiles_do() -> None:
    whole = np.zeros((20, 60), np.uint32)
    for i in range(5):
        whole[2:18, 12 * i : 12 * i + 10] = i + 1
    assert compare(whole, whole) == {
        "objects": 5,
        "changed": 0,
        "split": 0,
        "fused": 0,
        "lowest": 1.0,
    }
    tiled = whole.copy()
    tiled[tiled == 2] = 1  # two became one
    tiled[2:10, 24:34] = 9  # one became two
    tiled[tiled == 4] = 0  # one is gone
    tiled[17, 48:58] = 0  # one lost a row of sixteen
    assert compare(whole, tiled) == {
        "objects": 5,
        "changed": 5,
        "split": 1,
        "fused": 2,
        "lowest": 0.0,
    }
