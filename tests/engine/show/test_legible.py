"""Pictures of images of which some chunks cannot be read."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import pytest
import stores

from cytopave.engine.boxes import Box
from cytopave.engine.errors import CorruptError
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.show.legible import legible
from cytopave.engine.show.overlay import draw_overlay

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_damaged_chunks_are_black_and_no_others(
    tmp_path: Path, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    pixels = stores.pixels((2, 50, 70)) | 1
    path = stores.ome_image(
        tmp_path / "i.zarr", pixels, axes="cyx", version=version, chunks=(1, 16, 20)
    )
    expected = pixels.copy()
    for channel, y, x in ((0, 1, 2), (0, 3, 3), (1, 0, 0)):  # the second at both borders
        name = f"c/{channel}/{y}/{x}" if version == "0.5" else f"{channel}/{y}/{x}"
        (path / "s0" / name).write_bytes(b"no chunk")
        expected[channel, 16 * y : 16 * y + 16, 20 * x : 20 * x + 20] = 0
    image = open_image(path)
    with pytest.raises(CorruptError):
        image.read(Box.of((50, 70)))
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(legible(image).read(Box.of((50, 70))), expected)
    assert len([r for r in caplog.records if "left black" in r.message]) == 3
    part = Box((10, 33), (40, 61))
    np.testing.assert_array_equal(
        legible(image).read(part, channels=(0,)), expected[0][part.slices]
    )


def test_coarser_levels_are_read_in_the_same_way(tmp_path: Path) -> None:
    path = stores.ome_image(
        tmp_path / "i.zarr", stores.pixels((64, 64)) | 1, n_levels=2, chunks=(16, 16)
    )
    labels = open_image(
        stores.ome_image(tmp_path / "l.zarr", np.zeros((64, 64), np.uint32), n_levels=2)
    )
    (path / "s1" / "c" / "0" / "0").write_bytes(b"no chunk")
    image = open_image(path)
    with pytest.raises(CorruptError):
        draw_overlay(image, labels, side=32)
    picture = draw_overlay(legible(image), labels, side=32)
    assert not picture[:16, :16].any()
    assert picture[16:].any()
