"""Touching discs are parted, alike in every window that holds their clump; nothing is per tile."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stores
from hypothesis import given, settings
from hypothesis import strategies as st
from images import ImageOf
from placed import segmented
from scipy import ndimage
from worlds import disks, same_partition

from cytopave.engine import samples
from cytopave.engine.boxes import Box
from cytopave.engine.errors import SegmenterError
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.score import match
from cytopave.engine.segmenters import Watershed
from cytopave.engine.segmenters.place import Place
from cytopave.engine.segmenters.watershed import part_clumps

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def image_of(tmp_path: Path) -> ImageOf:
    return ImageOf(tmp_path)


def discs(*centres: tuple[int, int], radius: float, shape: tuple[int, int] = (60, 90)) -> Any:
    y, x = np.ogrid[: shape[0], : shape[1]]
    return np.any([np.hypot(y - cy, x - cx) <= radius for cy, cx in centres], axis=0)


def test_two_discs_that_overlap_are_parted_in_the_middle() -> None:
    mask = discs((30, 30), (30, 54), radius=14)
    labels = part_clumps(mask, depth=1, spacing=(1, 1))
    left, right = labels[30, 20], labels[30, 64]
    assert left != right
    assert set(np.unique(labels)) == {0, left, right}
    assert (labels[:, :42][mask[:, :42]] == left).all()
    assert (labels[:, 43:][mask[:, 43:]] == right).all()


def test_the_depth_decides_what_is_narrow() -> None:
    """Radius 14, centres 12 apart: the waist is 12.65 wide on either side, 1.35 less."""
    mask = discs((30, 30), (30, 42), radius=14)
    assert len(np.unique(part_clumps(mask, depth=1.0, spacing=(1, 1)))) == 3
    assert len(np.unique(part_clumps(mask, depth=2.0, spacing=(1, 1)))) == 2


def test_planes_further_apart_are_counted_so() -> None:
    """Two balls one above the other in a stack whose planes are four pixels apart."""
    z, y, x = np.ogrid[:14, :40, :40]
    balls = [(4 * (z - c)) ** 2 + (y - 20) ** 2 + (x - 20) ** 2 <= 16**2 for c in (4, 10)]
    mask = balls[0] | balls[1]
    parted = part_clumps(mask, depth=1.5, spacing=(4, 1, 1))
    assert len(np.unique(parted)) == 3
    assert (parted[:6] != parted[9:].max()).all()


@given(st.integers(0, 10_000), st.tuples(st.integers(0, 9), st.integers(0, 9)))
@settings(max_examples=30)
def test_a_clump_is_parted_by_itself_wherever_it_lies(seed: int, shift: tuple[int, int]) -> None:
    """Ties, of which discs on a grid have many, are settled within the clump."""
    rng = np.random.default_rng(seed)
    centres = [tuple(c) for c in rng.integers(8, 50, (9, 2))]
    mask = discs(*centres, radius=6, shape=(58, 58))
    together = part_clumps(mask, depth=0.5, spacing=(1, 1))
    clumps, n = ndimage.label(mask, np.ones((3, 3)))
    for number in range(1, n + 1):
        alone = np.zeros((70, 70), bool)
        alone[shift[0] : shift[0] + 58, shift[1] : shift[1] + 58] = clumps == number
        parts = part_clumps(alone, depth=0.5, spacing=(1, 1))
        parts = parts[shift[0] : shift[0] + 58, shift[1] : shift[1] + 58]
        assert same_partition(parts, np.where(clumps == number, together, 0))


def test_holes_up_to_a_size_are_filled_and_what_the_edge_cuts_is_none() -> None:
    tile = np.full((30, 40), 9, np.uint8)
    tile[5:8, 5:8] = tile[20:24, 20:24] = tile[0:2, 30:32] = 0
    segmenter = Watershed(threshold=5, sigma=0, max_hole=9, spacing=1, depth=100)
    labels = segmenter.load()(tile)
    assert labels[6, 6]
    assert not labels[22, 22]
    assert not labels[0, 30]


def test_flat_places_at_the_threshold_are_background() -> None:
    """Smoothed they come out a rounding error higher or lower."""
    for value in (7, 20, 50_000):
        tile = np.full((40, 40), value, np.uint16)
        for sigma in (0, 0.7, 1, 3.3):
            assert not Watershed(threshold=value, sigma=sigma, spacing=1).load()(tile).any()


def test_what_is_no_number_does_not_spread() -> None:
    tile = np.full((30, 30), 10.0, np.float32)
    tile[12:18, 12:18] = 90
    found = Watershed(threshold=50, spacing=1).load()(tile) > 0
    tile[2, 2], tile[2, 27], tile[27, 2] = np.nan, np.inf, -np.inf
    np.testing.assert_array_equal(Watershed(threshold=50, spacing=1).load()(tile) > 0, found)
    assert found.sum() >= 30


def test_all_that_is_global_is_fixed_from_the_whole_image(image_of: ImageOf) -> None:
    pixels = np.where(disks((120, 90)) > 0, 900, 100).astype(np.uint16)
    resolved = Watershed().resolve(image_of(pixels), channels=())
    assert resolved.threshold is not None
    assert 100 <= resolved.threshold < 900
    assert resolved.spacing == 1
    assert resolved.resolve(image_of(pixels // 9), channels=()) == resolved


def test_the_distance_of_planes_is_that_of_the_image(tmp_path: Path) -> None:
    pixels = np.zeros((3, 8, 8), np.uint8)
    image = open_image(stores.ome_image(tmp_path / "s.zarr", pixels, scale=(2.0, 0.5, 0.5)))
    assert Watershed(threshold=1).resolve(image, channels=()).spacing == 4
    assert Watershed(threshold=1, spacing=2).resolve(image, channels=()).spacing == 2


def test_more_than_one_channel_is_refused(image_of: ImageOf) -> None:
    image = image_of(np.zeros((2, 3, 8, 8), np.uint8), axes="czyx")
    with pytest.raises(SegmenterError, match=re.escape("segments one channel and 2 are selected")):
        Watershed().resolve(image, channels=(0, 1))


def test_it_has_to_be_resolved() -> None:
    with pytest.raises(SegmenterError, match="call resolve"):
        Watershed().load()(np.zeros((4, 4)))


def test_the_foreground_is_the_same_in_every_window() -> None:
    """The smoothing looks beyond the window, so the window's edge cannot be seen."""
    pixels = np.random.default_rng(0).normal(100, 30, (90, 80)).astype(np.float32)
    segmenter = Watershed(threshold=104, sigma=2.3, max_hole=0, min_size=0, spacing=1)
    whole = segmenter.load()(pixels) > 0
    for window in (Box((0, 0), (30, 30)), Box((33, 41), (60, 80)), Box((50, 10), (51, 11))):
        region = segmenter.region(window, (90, 80))
        place = Place("image", 0, (90, 80), region, window)
        labels = segmenter.at(place)(pixels[region.slices])
        np.testing.assert_array_equal(labels > 0, whole[window.slices])


@pytest.mark.parametrize("tile", [64, 100])
def test_tiled_it_is_the_untiled_result_for_clumps_within_the_halo(
    tile: int, image_of: ImageOf, tmp_path: Path
) -> None:
    world = disks((310, 330), radius=9, pitch=40) > 0
    world |= np.roll(world, (7, 11), (0, 1))  # pairs that touch
    pixels = np.where(world, 200, 20).astype(np.uint8)
    image = image_of(pixels)
    segmenter = Watershed(threshold=110).resolve(image, channels=())
    whole = segmenter.load()(pixels)
    assert _longest(whole > 0) + 1 < 60
    assert len(np.unique(whole)) > ndimage.label(whole > 0, np.ones((3, 3)))[1] + 20
    merged = segmented(image, segmenter, tmp_path / "run", tile=tile, halo=60)
    assert same_partition(whole, merged)


def _longest(mask: np.ndarray) -> int:
    labels, _ = ndimage.label(mask, np.ones((3, 3)))
    boxes = ndimage.find_objects(labels)
    return max(int(s.stop - s.start) for box in boxes for s in box)


def test_real_nuclei_tiled_and_untiled(image_of: ImageOf, tmp_path: Path) -> None:
    pixels, truth = samples.mosaic(samples.nuclei_fields("held-out"), 2, 2, side=384)
    image = image_of(pixels)
    segmenter = Watershed().resolve(image, channels=())
    whole = segmenter.load()(pixels)
    merged = segmented(image, segmenter, tmp_path / "run", tile=256, halo=64)
    assert same_partition(whole, merged)
    assert match(truth, merged, 0.5).average_precision > 0.55
