"""Nobody can find the tiles: Cellpose tiled and merged, against the undivided image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import zarr
from placed import segmented
from stacks import blobs
from worlds import same_partition

from cytopave.engine import samples
from cytopave.engine.omezarr.image import Image, open_image
from cytopave.engine.segmenters import Cellpose
from cytopave.engine.segmenters.cellpose_weights import installed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    installed()[1] != 4, reason="the bundled network runs in Cellpose 4"
)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def mosaic(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Real held-out fields of nuclei, 640 x 768 pixels, in chunks that no tile follows."""
    pixels, _ = samples.mosaic(samples.nuclei_fields("held-out"), 2, 2, side=384)
    path = str(tmp_path_factory.mktemp("mosaic") / "mosaic.zarr")
    array = zarr.create_array(path, shape=(640, 768), chunks=(100, 90), dtype="u2")
    array[:] = pixels[:640]
    return open_image(path)


@pytest.fixture(scope="module")
def cellpose(mosaic: Image) -> Cellpose:
    tiny = Cellpose(model="nuclei-tiny", device="cpu", use_bfloat16=False)
    return tiny.resolve(mosaic, channels=())


@pytest.fixture(scope="module")
def untiled(
    mosaic: Image, cellpose: Cellpose, tmp_path_factory: pytest.TempPathFactory
) -> np.ndarray:
    root = tmp_path_factory.mktemp("untiled")
    return segmented(mosaic, cellpose, root, tile=1000, halo=64)


def test_untiled_means_the_network_sees_the_image_once(
    mosaic: Image, cellpose: Cellpose, untiled: np.ndarray
) -> None:
    pixels = np.asarray(zarr.open_array(mosaic.url)[:])
    assert same_partition(cellpose.load()(pixels), untiled)
    assert untiled.max() > 80


@pytest.mark.parametrize("tile", [256, 384, 512])
def test_tiled_and_merged_every_object_is_the_same_pixel_for_pixel(
    mosaic: Image, cellpose: Cellpose, untiled: np.ndarray, tmp_path: Path, tile: int
) -> None:
    merged = segmented(mosaic, cellpose, tmp_path, tile=tile, halo=64)
    assert same_partition(untiled, merged)


def test_with_a_diameter_too(mosaic: Image, cellpose: Cellpose, tmp_path: Path) -> None:
    scaled = cellpose.model_copy(update={"diameter": 45.0, "niter": 300})
    one = segmented(mosaic, scaled, tmp_path / "one", tile=1000, halo=64)
    many = segmented(mosaic, scaled, tmp_path / "many", tile=300, halo=64)
    assert one.max() > 60
    assert same_partition(one, many)


def test_in_three_dimensions_too(tmp_path: Path) -> None:
    """A minute stack, for the sake of time; larger ones are in test_stacks.py and benchmarks."""
    pixels, _ = blobs((6, 24, 38), radius=9, flat=2.0, seed=1)
    array = zarr.create_array(
        str(tmp_path / "stack.zarr"), shape=pixels.shape, chunks=(6, 20, 20), dtype="u2"
    )
    array[:] = pixels
    stack = open_image(str(tmp_path / "stack.zarr"))
    tiny = Cellpose(model="nuclei-tiny", device="cpu", use_bfloat16=False, do_3D=True)
    tiny = tiny.resolve(stack, channels=())
    one = segmented(stack, tiny, tmp_path / "one", tile=64, halo=16)
    many = segmented(stack, tiny, tmp_path / "many", tile=19, halo=16)
    assert one.max() >= 2
    assert same_partition(one, many)


def test_stock_needs_no_more_than_the_window(mosaic: Image, cellpose: Cellpose) -> None:
    from cytopave.engine.boxes import Box

    window = Box((200, 200), (300, 300))
    stock = cellpose.model_copy(update={"path": "stock"})
    assert stock.region(window, (640, 768)) == window
    region = cellpose.region(window, (640, 768))
    assert all(a < b for a, b in zip(region.start, window.start, strict=True))
    assert all(a > b for a, b in zip(region.stop, window.stop, strict=True))
