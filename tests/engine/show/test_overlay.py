from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stores
from PIL import Image as Pillow

from cytopave.engine.errors import OutputError
from cytopave.engine.omezarr.image import Image, open_image
from cytopave.engine.show import planes
from cytopave.engine.show.overlay import draw_overlay
from cytopave.engine.show.planes import save_png

if TYPE_CHECKING:
    from cytopave.engine.boxes import Box


def written(path: Path, data: np.ndarray, **kwargs: Any) -> Image:
    return open_image(stores.ome_image(path, data, **kwargs))


def coloured(picture: np.ndarray) -> np.ndarray:
    return np.asarray((picture != picture[..., :1]).any(axis=-1))


def pair(
    tmp_path: Path, image: np.ndarray, labels: np.ndarray, **kwargs: Any
) -> tuple[Image, Image]:
    return (
        written(tmp_path / "image.zarr", image, **kwargs),
        written(tmp_path / "labels.zarr", labels, **kwargs),
    )


def test_outlines_are_one_pixel_inside_each_object_and_the_rest_is_grey(tmp_path: Path) -> None:
    labels = np.zeros((12, 14), np.uint32)
    labels[2:7, 2:6] = 1
    labels[2:7, 6:10] = 2  # touches 1
    picture = draw_overlay(*pair(tmp_path, np.zeros((12, 14), np.uint16), labels))
    expected = np.zeros((12, 14), bool)
    for left in (2, 6):
        expected[2:7, left : left + 4] = True
        expected[3:6, left + 1 : left + 3] = False
    assert picture.shape == (12, 14, 3)
    assert picture.dtype == np.uint8
    np.testing.assert_array_equal(coloured(picture), expected)
    # A cut object shows: its parts have different colours.
    assert not (picture[4, 5] == picture[4, 6]).all()


def test_the_window_is_the_whole_images_and_not_a_numbers_is_black(tmp_path: Path) -> None:
    image = np.linspace(0, 1000, 10_000, dtype=np.float32).reshape(100, 100)
    image[0, 0] = np.nan
    picture = draw_overlay(*pair(tmp_path, image, np.zeros((100, 100), np.uint32)))
    low, high = np.nanpercentile(image, planes.WINDOW)
    expected = np.nan_to_num(((image - low) / (high - low)).clip(0, 1) * 255)
    np.testing.assert_allclose(picture[..., 1], expected, atol=1.0)


def test_of_several_channels_the_brightest_counts_or_those_that_were_chosen(tmp_path: Path) -> None:
    image = np.zeros((2, 10, 10), np.uint8)
    image[0, 2, 2], image[1, 7, 7] = 200, 20
    source = written(tmp_path / "image.zarr", image, axes="cyx")
    labels = written(tmp_path / "labels.zarr", np.zeros((10, 10), np.uint32))
    both = draw_overlay(source, labels)
    assert both[2, 2, 0] == both[7, 7, 0] == 255
    second = draw_overlay(source, labels, channels=(1,))
    assert (second[2, 2, 0], second[7, 7, 0]) == (0, 255)


def test_of_stacks_the_middle_plane_and_of_series_the_first_time_point(tmp_path: Path) -> None:
    labels = np.zeros((2, 3, 8, 8), np.uint32)
    labels[0, 1, 2:5, 2:5] = 1
    labels[1] = labels[0, 0] = labels[0, 2] = 9
    picture = draw_overlay(*pair(tmp_path, np.zeros((2, 3, 8, 8), np.uint8), labels, axes="tzyx"))
    expected = np.zeros((8, 8), bool)
    expected[2:5, 2:5] = True
    expected[3, 3] = False
    np.testing.assert_array_equal(coloured(picture), expected)


@pytest.mark.parametrize("pyramid", [1, 3], ids=["without a pyramid", "with one"])
def test_a_large_image_is_sampled_and_outlines_stay_on_their_objects(
    tmp_path: Path, pyramid: int
) -> None:
    y, x = np.mgrid[:300, :400]
    inside = (y - 150) ** 2 + (x - 210) ** 2 < 90**2
    picture = draw_overlay(
        *pair(tmp_path, inside * np.uint16(1000), inside.astype(np.uint32), n_levels=pyramid),
        side=100,
    )
    assert picture.shape == (75, 100, 3)
    edge = coloured(picture)
    rows, cols = np.nonzero(edge)
    radius = np.hypot(rows * 4 + 2 - 150, cols * 4 + 2 - 210)
    assert edge.sum() > 100
    assert np.abs(radius - 90).max() < 8  # two pixels of the picture
    # Inside the outline it is white, outside black.
    assert picture[37, 52, 0] == 255
    assert picture[5, 5, 0] == 0


def test_no_more_than_a_block_is_read_at_a_time_and_blocks_do_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = stores.random_labels((310, 250), size=40)
    images = pair(tmp_path, stores.pixels((310, 250)), labels)
    whole = draw_overlay(*images, side=100)
    sizes: list[tuple[int, ...]] = []
    read = Image.read

    def watched(image: Image, box: Box, **kwargs: Any) -> np.ndarray:
        sizes.append(box.shape)
        return read(image, box, **kwargs)

    monkeypatch.setattr(planes, "BLOCK", 32)
    monkeypatch.setattr(Image, "read", watched)
    np.testing.assert_array_equal(draw_overlay(*images, side=100), whole)
    of_planes = sizes[1:]  # the first one is the histogram's
    assert len(of_planes) > 50
    assert max(map(max, of_planes)) <= 32


def test_grid_lines_are_faint_and_lie_under_the_outlines(tmp_path: Path) -> None:
    labels = np.zeros((20, 30), np.uint32)
    labels[8:13, 4:9] = 3
    images = pair(tmp_path, np.zeros((20, 30), np.uint8), labels)
    plain = draw_overlay(*images)
    lined = draw_overlay(*images, lines=[(0, 10, 20), (0, 15, 30)])
    changed = (plain != lined).any(axis=-1)
    expected = np.zeros((20, 30), bool)
    expected[10], expected[:, 15] = True, True
    expected[10, 4], expected[10, 8] = False, False
    np.testing.assert_array_equal(changed, expected)
    assert 0 < lined[0, 15].max() < 128


def test_a_picture_is_written_with_its_folders(tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(0, 255, (5, 7, 3), np.uint8)
    save_png(picture, tmp_path / "new" / "picture.png")
    with Pillow.open(tmp_path / "new" / "picture.png") as found:
        np.testing.assert_array_equal(np.asarray(found), picture)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"picture\.png cannot be written"):
        save_png(np.zeros((2, 2, 3), np.uint8), tmp_path / "file" / "picture.png")
