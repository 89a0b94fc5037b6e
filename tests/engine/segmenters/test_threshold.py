from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from images import ImageOf
from scipy import ndimage
from skimage.filters import threshold_otsu

from cytopave.engine.errors import SegmenterError
from cytopave.engine.segmenters import Threshold

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def image_of(tmp_path: Path) -> ImageOf:
    return ImageOf(tmp_path)


def blobs(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    smooth = ndimage.gaussian_filter(rng.normal(size=shape), 2)
    pixels: np.ndarray = (1000 + 4000 * smooth / smooth.max()).clip(0).astype(np.uint16)
    return pixels


def test_otsu_is_taken_once_from_the_whole_image(image_of: ImageOf) -> None:
    pixels = blobs((90, 70))
    resolved = Threshold().resolve(image_of(pixels), channels=())
    assert resolved.threshold == threshold_otsu(hist=np.unique(pixels, return_counts=True)[::-1])
    assert resolved.resolve(image_of(pixels * 2), channels=()) == resolved


def test_a_given_threshold_is_kept(image_of: ImageOf) -> None:
    given_one = Threshold(threshold=12.5)
    assert given_one.resolve(image_of(blobs((20, 20))), channels=()) == given_one


@pytest.mark.parametrize(("connectivity", "expected"), [("full", 1), ("face", 2)])
def test_pixels_that_share_a_corner(connectivity: Any, expected: int) -> None:
    tile = np.eye(2, dtype=np.uint8)
    assert Threshold(threshold=0, connectivity=connectivity).load()(tile).max() == expected


@example(np.array([[0, 0, 0, 1]], np.uint8), 0.0, "full")  # wrong in cc3d's path for masks
@given(
    hnp.arrays(
        st.sampled_from([np.bool_, np.uint8, np.int16, np.uint64, np.float32, np.float64]),
        hnp.array_shapes(min_dims=2, max_dims=3, max_side=6),
    ),
    st.floats(-300, 300),
    st.sampled_from(["full", "face"]),
)
def test_labels_are_the_components_of_what_is_brighter(
    tile: np.ndarray, threshold: float, connectivity: Any
) -> None:
    labels = Threshold(threshold=threshold, connectivity=connectivity).load()(tile)
    foreground = np.array([float(v) > threshold for v in tile.ravel()]).reshape(tile.shape)
    structure = ndimage.generate_binary_structure(
        tile.ndim, tile.ndim if connectivity == "full" else 1
    )
    expected, count = ndimage.label(foreground, structure)
    assert labels.max(initial=0) == count
    np.testing.assert_array_equal(labels > 0, foreground)
    pairs = np.unique(np.stack([labels[foreground], expected[foreground]]), axis=1)
    assert pairs.shape[1] == count


def test_small_objects_are_dropped_and_others_keep_their_pixels() -> None:
    tile = np.zeros((10, 10), np.uint8)
    tile[0, :3] = tile[5:8, 5:8] = 9
    kept = Threshold(threshold=1, min_size=4).load()(tile)
    assert np.count_nonzero(kept) == 9
    assert np.count_nonzero(Threshold(threshold=1, min_size=3).load()(tile)) == 12


def test_nan_is_background() -> None:
    tile = np.array([[np.nan, 5.0], [np.inf, -np.inf]], np.float32)
    labels = Threshold(threshold=1).load()(tile)
    np.testing.assert_array_equal(labels > 0, [[False, True], [True, False]])


def test_several_channels_are_refused(image_of: ImageOf) -> None:
    image = image_of(np.zeros((2, 8, 8), np.uint8), axes="cyx")
    with pytest.raises(SegmenterError, match="one channel and 2 are selected"):
        Threshold().resolve(image, channels=(0, 1))


def test_an_open_threshold_cannot_be_loaded() -> None:
    with pytest.raises(SegmenterError, match="resolve"):
        Threshold().load()


def test_it_needs_no_gpu() -> None:
    assert Threshold().device_bytes((4096, 4096), 2, 1) == 0
    assert Threshold().smaller() is None


def test_digest_follows_what_decides_the_labels() -> None:
    digests = {
        Threshold(threshold=1).digest(),
        Threshold(threshold=2).digest(),
        Threshold(threshold=1, min_size=3).digest(),
        Threshold(threshold=1, connectivity="face").digest(),
    }
    assert len(digests) == 4
    assert Threshold(threshold=1).digest() == Threshold(threshold=1.0).digest()
