"""Which tiles a mask or a threshold skips: exactly those in whose windows nothing can be."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stores
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import blobs, components, labels_of, plan_of, run_here, skip_here
from worlds import same_partition

from cytopave.engine.boxes import Box
from cytopave.engine.errors import ImageError
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.planning.foreground import Foreground, Mask
from cytopave.engine.planning.placement import Overlay
from cytopave.engine.segmenters import Threshold
from cytopave.engine.tiling import Grid, Tiling

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cytopave.engine.omezarr.image import Image

type Opens = Callable[..., Image]


@pytest.fixture
def opens(tmp_path: Path) -> Opens:
    """Writes OME-Zarr images and opens them."""
    numbers = itertools.count()

    def write(data: np.ndarray, *, plain: bool = False, **how: Any) -> Image:
        path = tmp_path / f"image{next(numbers)}.zarr"
        if plain:
            stores.plain_array(path, data, **how)
        else:
            stores.ome_image(path, data, **how)
        return open_image(path)

    return write


def resolved(mask: Any, image: Image, channels: tuple[int, ...] = ()) -> Foreground:
    return Mask.model_validate(mask).resolve(image, channels=channels)


def tiles_of(foreground: Foreground, grid: Grid) -> list[bool]:
    """By all blocks one by one, in any order."""
    found = [foreground.tiles(grid, [block]) for block in reversed(foreground.blocks())]
    return [bool(b) for b in np.any(found, axis=0)]


# ------------------------------------------------------------------- placement
@given(
    n=st.integers(1, 70),
    ratio=st.sampled_from([0.5, 1.0, 2.0, 3.0, 8.0, 2.7]),
    offset=st.sampled_from([0.0, 1.0]),
    span=st.tuples(st.integers(0, 69), st.integers(1, 20)),
)
def test_no_pixel_that_may_overlap_is_left_out(
    n: int, ratio: float, offset: float, span: tuple[int, int]
) -> None:
    """By either reading of positions: centres of pixels, or corners."""
    start, stop = min(span[0], n - 1), min(n, min(span[0], n - 1) + span[1])
    length = max(1, int(np.ceil(n / ratio)))
    lay = Overlay(ratio, offset * ratio, abs(ratio - 1) / 2, length)
    first, last = lay.covering(start, stop)
    assert 0 <= first < last <= length
    for i in range(length):
        for shift in (-lay.room, 0, lay.room):
            a = lay.begin + shift + i * ratio
            if a < stop - 1e-6 and a + ratio > start + 1e-6:
                assert first <= i < last
    centre = (start + 0.5 - lay.begin) / ratio
    assert lay.at(start, stop)[0] == min(max(0, int(np.floor(centre + 1e-6))), length - 1)
    assert np.isin(lay.at(start, stop), np.arange(first, last)).all()


def test_at_the_images_own_resolution_there_is_no_room(opens: Opens) -> None:
    image = opens(np.zeros((40, 50), np.uint8))
    for mask in (opens(np.zeros((40, 50), np.uint8)), opens(np.zeros((40, 50), bool), plain=True)):
        for lay in resolved(mask.url, image).overlays:
            assert lay.covering(3, 9) == (3, 9)
            assert lay.at(3, 9).tolist() == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("translate", [False, True])
def test_levels_of_a_pyramid_cover_each_other(opens: Opens, translate: bool) -> None:
    """Whether or not the coarse levels' metadata give the half pixel by which centres move."""
    image = opens(np.zeros((64, 96), np.uint8), n_levels=3, translate=translate)
    for lay in resolved({"threshold": 1, "level": 2}, image).overlays:
        assert lay.at(0, 9).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2]
        assert lay.covering(8, 12) == (1, 4)


# ------------------------------------------------------------------- skipping
@given(
    seed=st.integers(0, 999), tile=st.integers(5, 20), halo=st.integers(0, 5), plain=st.booleans()
)
@settings(max_examples=40)
def test_a_mask_of_full_resolution_decides_pixel_by_pixel(
    tmp_path_factory: pytest.TempPathFactory, seed: int, tile: int, halo: int, plain: bool
) -> None:
    folder = tmp_path_factory.mktemp("mask")
    rng = np.random.default_rng(seed)
    pixels = (rng.random((47, 39)) < 0.003).astype(np.uint16) * 7
    stores.ome_image(folder / "image.zarr", np.zeros((47, 39), np.uint8))
    if plain:
        stores.plain_array(folder / "mask.zarr", pixels, chunks=(9, 16))
    else:
        stores.ome_image(folder / "mask.zarr", pixels, chunks=(9, 16))
    grid = Grid((47, 39), (tile, tile), (halo, halo))
    foreground = resolved(str(folder / "mask.zarr"), open_image(folder / "image.zarr"))
    expected = [bool(pixels[t.window.slices].any()) for t in grid]
    assert tiles_of(foreground, grid) == expected


def test_a_coarse_mask_decides_by_every_pixel_that_may_overlap(opens: Opens) -> None:
    image = opens(np.zeros((80, 80), np.uint8), scale=0.5)
    pixels = np.zeros((10, 10), np.uint8)
    pixels[5, 5] = 1  # pixels 40..48 of the image by corners, 36.5..44.5 by centres
    mask = opens(pixels, scale=4.0)
    grid = Grid((80, 80), (4, 80), (0, 0))
    found = tiles_of(resolved(mask.url, image), grid)
    assert [i for i, f in enumerate(found) if f] == [9, 10, 11, 12]


def test_planes_and_times_of_a_mask(opens: Opens) -> None:
    image = opens(np.zeros((3, 6, 16, 16), np.uint8), axes="tzyx")
    grid = Grid((6, 16, 16), (2, 8, 8), (0, 0, 0), times=3)
    flat = np.zeros((16, 16), bool)
    flat[1, 9] = True
    expected = np.zeros((3, 3, 2, 2), bool)
    expected[:, :, 0, 1] = True
    assert tiles_of(resolved(opens(flat).url, image), grid) == expected.ravel().tolist()
    stack = np.zeros((6, 16, 16), np.int32)
    stack[4, 9, 9] = -1
    expected = np.zeros((3, 3, 2, 2), bool)
    expected[:, 2, 1, 1] = True
    assert tiles_of(resolved(opens(stack).url, image), grid) == expected.ravel().tolist()
    series = np.zeros((3, 16, 16), np.float32)
    series[1, 1, 1], series[2] = 0.5, np.nan
    expected = np.zeros((3, 3, 2, 2), bool)
    expected[1, :, 0, 0] = True
    found = tiles_of(resolved(opens(series, axes="tyx").url, image), grid)
    assert found == expected.ravel().tolist()
    one = opens(flat[None].astype(np.uint8), axes="zyx")
    plane = opens(np.zeros((16, 16), np.uint8))
    assert tiles_of(resolved(one.url, plane), Grid((16, 16), (8, 8), (0, 0))) == [0, 1, 0, 0]


def test_a_threshold_at_the_image_s_level_is_exact(opens: Opens) -> None:
    pixels = np.random.default_rng(0).integers(0, 1000, (60, 70)).astype(np.uint16)
    image = opens(pixels, n_levels=3, chunks=(16, 16))
    grid = Grid((60, 70), (6, 6), (1, 1))
    bright = resolved({"threshold": 985, "level": 0}, image)
    assert tiles_of(bright, grid) == [bool((pixels[t.window.slices] > 985).any()) for t in grid]
    dark = resolved({"threshold": 14, "level": 0, "dark": True}, image)
    assert tiles_of(dark, grid) == [bool((pixels[t.window.slices] <= 14).any()) for t in grid]
    assert not all(tiles_of(bright, grid))
    assert not all(tiles_of(dark, grid))


@pytest.mark.parametrize("corner", [(0, 0), (13, 27), (30, 9), (23, 25), (56, 40), (41, 56)])
def test_an_object_that_holds_a_coarse_pixel_is_found_whole(
    tmp_path: Path, corner: tuple[int, int]
) -> None:
    """A square of twice the side of a coarse pixel, wherever it lies, in a level of every 4th."""
    objects = np.zeros((64, 64), np.uint8)
    objects[corner[0] : corner[0] + 8, corner[1] : corner[1] + 8] = 200
    path = stores.ome_image(tmp_path / "image.zarr", objects, n_levels=3)
    plan = run_here(
        path,
        segmenter=Threshold(threshold=100),
        tiling=Tiling(tile=(16, 16), halo=8),
        mask=Mask(threshold=100, level=2),
    )
    np.testing.assert_array_equal(labels_of(path), objects > 0)
    assert plan.foreground is not None
    assert sum(tiles_of(plan.foreground, plan.grid)) < 16


def test_otsu_per_channel_and_any_suffices(opens: Opens) -> None:
    pixels = np.zeros((2, 40, 40), np.uint8)
    pixels[0, 2:8, 2:8], pixels[1, 30:38, 30:38] = 90, 240
    image = opens(pixels, axes="cyx", channels=["a", "b"])
    grid = Grid((40, 40), (20, 20), (0, 0))
    both = resolved("otsu", image, channels=(0, 1))
    assert tiles_of(both, grid) == [True, False, False, True]
    assert len(both.cuts) == 2
    assert both.asked.resolve(image, channels=(0, 1)) == both
    assert tiles_of(resolved("otsu", image, channels=(1,)), grid) == [False] * 3 + [True]
    assert tiles_of(resolved(100, image, channels=(0,)), grid) == [False] * 4


# ------------------------------------------------------------------- whole runs
def half(shape: tuple[int, int]) -> np.ndarray:
    mask = np.zeros(shape, np.uint8)
    mask[20:90, 30:110] = 1
    return mask


def test_the_result_is_that_without_a_mask_where_all_objects_lie_in_it(tmp_path: Path) -> None:
    objects = blobs((200, 230)) & (half((200, 230)) > 0)
    path = stores.ome_image(tmp_path / "image.zarr", objects.astype(np.uint8) * 9, chunks=(32, 32))
    stores.ome_image(tmp_path / "mask.zarr", half((200, 230)), chunks=(64, 64))
    request: dict[str, Any] = {
        "segmenter": Threshold(threshold=5),
        "tiling": Tiling(tile=(32, 32), halo=8),
        "mask": Mask(image=str(tmp_path / "mask.zarr")),
    }
    plan = plan_of(path, **request)
    wanted = skip_here(plan)
    assert [bool(w) for w in wanted] == [
        t.window.intersect(Box((20, 30), (90, 110))).size > 0 for t in plan.grid
    ]
    assert plan.scratch.finished() == {i for i, w in enumerate(wanted) if not w}
    run_here(path, **request)
    np.testing.assert_array_equal(labels_of(path), components(objects))


@pytest.mark.parametrize("tile", [32, 70])
@pytest.mark.parametrize("coarse", [1, 4])
def test_clipped_labels_are_the_whole_image_s_clipped_ones(
    tmp_path: Path, tile: int, coarse: int
) -> None:
    objects = blobs((200, 230))
    path = stores.ome_image(tmp_path / "image.zarr", objects.astype(np.uint8) * 9, scale=1.0)
    mask = half((200, 230))[::coarse, ::coarse]
    stores.ome_image(tmp_path / "mask.zarr", mask, scale=float(coarse))
    run_here(
        path,
        segmenter=Threshold(threshold=5),
        tiling=Tiling(tile=(tile, tile), halo=30),
        mask=Mask(image=str(tmp_path / "mask.zarr"), clip=True),
    )
    inside = np.kron(mask, np.ones((coarse, coarse), int))[:200, :230] > 0
    assert same_partition(np.where(inside, components(objects), 0), labels_of(path))


def test_what_decides_the_foreground_is_in_the_digest(tmp_path: Path) -> None:
    path = stores.ome_image(tmp_path / "image.zarr", np.eye(90, dtype=np.uint8), n_levels=2)
    other = stores.ome_image(tmp_path / "mask.zarr", np.ones((90, 90), np.uint8))
    masks: list[Any] = [
        None,
        {"image": str(other)},
        {"image": str(other), "clip": True},
        {"threshold": 0.5},
        {"threshold": 0.25},
        {"threshold": 0.5, "level": 1},
        {"threshold": 0.5, "dark": True},
    ]
    tiling = Tiling(tile=(32, 32), halo=4)

    def digest(mask: Any) -> str:
        made = None if mask is None else Mask.model_validate(mask)
        return plan_of(path, segmenter=Threshold(threshold=0), tiling=tiling, mask=made).digest

    before = [digest(mask) for mask in masks]
    assert len(set(before)) == len(masks)
    stores.ome_image(other, np.zeros((90, 90), np.uint8))
    after = [digest(mask) for mask in masks]
    changed = [a != b for a, b in zip(before, after, strict=True)]
    assert changed == [False, True, True, False, False, False, False]


# ------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("shape", "how", "says"),
    [
        ((40, 60), {}, "shows another field of view"),
        ((40, 50), {"scale": 1.0}, "shows another field of view"),
        ((2, 40, 50), {"axes": "cyx"}, "has 2 channels"),
        ((3, 40, 50), {"axes": "tyx"}, "has 3 time points"),
        ((3, 40, 50), {"axes": "zyx"}, "is a stack"),
        ((10, 10), {"plain": True}, "differ in proportion"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(
    opens: Opens, shape: tuple[int, ...], how: dict[str, Any], says: str
) -> None:
    image = opens(np.zeros((40, 50), np.uint8))
    with pytest.raises(ImageError, match=says) as raised:
        resolved(opens(np.zeros(shape, np.uint8), **how).url, image)
    assert "\n" not in str(raised.value)


def test_a_mask_elsewhere_or_in_another_unit_is_refused(tmp_path: Path, opens: Opens) -> None:
    image = opens(np.zeros((40, 50), np.uint8))
    moved = stores.attributes("yx", version="0.5")
    (level,) = moved["ome"]["multiscales"][0]["datasets"]
    level["coordinateTransformations"].append({"type": "translation", "translation": [0.0, 4.0]})
    path = stores.ome_image(tmp_path / "moved.zarr", np.zeros((40, 50), np.uint8))
    stores.group(path, moved)
    stores.plain_array(path / "s0", np.zeros((40, 50), np.uint8))
    with pytest.raises(ImageError, match="along X it covers the image's pixels 8 to 58"):
        resolved(str(path), image)
    level["coordinateTransformations"].pop()
    moved["ome"]["multiscales"][0]["axes"][0]["unit"] = "millimeter"
    stores.group(path, moved)
    stores.plain_array(path / "s0", np.zeros((40, 50), np.uint8))
    with pytest.raises(ImageError, match="is measured in millimeters"):
        resolved(str(path), image)


def test_requests_that_cannot_be(opens: Opens) -> None:
    image = opens(np.zeros((40, 50), np.uint8), n_levels=2).at_level(1)
    with pytest.raises(ImageError, match="there is no image at"):
        resolved("nowhere.zarr", image)
    with pytest.raises(ImageError, match="level 1 is segmented and the mask is asked for at"):
        resolved({"threshold": 3, "level": 0}, image)
    with pytest.raises(ImageError, match="has no level 7"):
        resolved({"threshold": 3, "level": 7}, image)
    with pytest.raises(ImageError, match="2 thresholds and 1 channels"):
        resolved({"threshold": [3, 4]}, image)
    for wrong in ({}, {"image": "a", "threshold": 1}, {"image": "a", "dark": True}):
        with pytest.raises(ValueError, match="mask"):
            Mask.model_validate(wrong)


def test_short_forms() -> None:
    assert Mask.model_validate("otsu") == Mask(threshold="otsu")
    assert Mask.model_validate(5) == Mask.model_validate("5") == Mask(threshold=5.0)
    assert Mask.model_validate("tissue.zarr") == Mask(image="tissue.zarr")
