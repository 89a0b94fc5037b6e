from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import stores
from yaozarrs import validate_zarr_store

from cytopave.engine.boxes import Box
from cytopave.engine.errors import OutputError
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.omezarr.write import CHUNK, write_image


@pytest.mark.parametrize(
    ("axes", "shape", "dtype"),
    [("yx", (1301, 700), "uint16"), ("cyx", (2, 300, 1100), "uint8"), ("zyx", (3, 600, 513), "f4")],
)
def test_what_is_written_is_valid_and_read_back(
    tmp_path: Path, axes: str, shape: tuple[int, ...], dtype: str
) -> None:
    pixels = stores.pixels(shape, dtype)
    write_image(tmp_path / "a.zarr", pixels, axes=axes, pixel_size=0.25, attributes={"mine": 1})
    validate_zarr_store(str(tmp_path / "a.zarr"))
    image = open_image(tmp_path / "a.zarr")
    assert (image.axes, image.shape, image.version) == (axes, shape, "0.5")
    assert image.of("yx", image.scale) == (0.25, 0.25)
    assert image.of("yx", image.units) == ("micrometer", "micrometer")
    channels = image.channel_indices()
    whole = image.read(Box.of(image.spatial_shape), channels=channels)
    np.testing.assert_array_equal(whole, pixels)


def test_each_level_is_the_mean_of_the_one_before_at_its_centre(tmp_path: Path) -> None:
    pixels = stores.pixels((700, 1025), "uint16")
    write_image(tmp_path / "a.zarr", pixels, pixel_size=2.0)
    image = open_image(tmp_path / "a.zarr")
    assert [level.shape for level in image.levels] == [(700, 1025), (350, 513), (175, 257)]
    assert [level.scale for level in image.levels] == [(2.0, 2.0), (4.0, 4.0), (8.0, 8.0)]
    assert [level.translation[0] for level in image.levels] == [0.0, 1.0, 3.0]
    coarse = image.at_level(1).read(Box.of((350, 513)))
    even = pixels[:, :1024].reshape(350, 2, 512, 2).mean(axis=(1, 3))
    np.testing.assert_array_equal(coarse[:, :512], np.rint(even))
    np.testing.assert_array_equal(
        coarse[:, 512], np.rint(pixels[:, 1024].reshape(350, 2).mean(axis=1))
    )


def test_one_file_holds_many_chunks(tmp_path: Path) -> None:
    write_image(tmp_path / "a.zarr", stores.pixels((1024, 1024)))
    assert len(stores.chunk_files(tmp_path / "a.zarr" / "0")) == 1
    assert open_image(tmp_path / "a.zarr").chunks == (CHUNK, CHUNK)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be written"):
        write_image(tmp_path / "file" / "a.zarr", stores.pixels((8, 8)))
