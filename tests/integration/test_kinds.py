"""Every kind of image goes through the flow and comes out as the whole image's own result."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np
import pytest
import stores
import tile_functions
from PIL import Image as Picture
from runs import labels_of, provenance
from worlds import same_partition

from cytopave.engine import samples
from cytopave.engine.errors import ImageError
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.planning.foreground import Mask
from cytopave.engine.segmenters import Custom, TorchNetwork, Watershed
from cytopave.engine.tiling import Tiling

if TYPE_CHECKING:
    from pathlib import Path

    from runs import Flows


def test_a_time_series_of_a_channel_by_name(folder: Path, flows: Flows) -> None:
    """T, C, Y, X; real nuclei, other ones at each time, in the second of two channels."""
    row, _ = samples.mosaic(samples.nuclei_fields("held-out"), 1, 3, side=220)
    nuclei = np.stack(np.hsplit(row, 3))[:, :200]
    pixels = np.stack([nuclei[::-1] // 3, nuclei], axis=1)
    path = stores.ome_image(
        folder / "series.zarr", pixels, axes="tcyx", chunks=(1, 1, 64, 64), channels=["ER", "DAPI"]
    )
    report = flows.segment(
        path,
        segmenter=Watershed(),
        channels=["DAPI"],
        tiling=Tiling(tile=(96, 96), halo=48),
    )
    labels = labels_of(path)
    assert labels.shape == nuclei.shape
    method = Watershed().resolve(open_image(path), channels=(1,))
    assert provenance(path)["segmenter"]["threshold"] == method.threshold
    count = 0
    for frame, found in zip(nuclei, labels, strict=True):
        assert same_partition(method.load()(frame), found)
        ids = np.unique(found[found > 0])
        assert ids[0] == count + 1  # numbered through, never joined in time
        count = int(ids[-1])
    assert report.n_objects == count > 8


def test_a_stack_whose_planes_lie_further_apart(folder: Path, flows: Flows) -> None:
    """The voxel size says how far, and the method takes it from there."""
    pixels = samples.stack3d().image[::2]
    path = stores.ome_image(
        folder / "stack.zarr", pixels, chunks=(8, 64, 64), scale=(1.0, 0.5, 0.5)
    )
    report = flows.segment(
        path, segmenter=Watershed(sigma=1), tiling=Tiling(tile=(16, 32, 32), halo=(12, 24, 24))
    )
    method = Watershed(sigma=1).resolve(open_image(path), channels=())
    assert method.spacing == 2
    assert provenance(path)["segmenter"]["spacing"] == 2
    labels = labels_of(path)
    assert same_partition(method.load()(pixels), labels)
    assert report.n_objects > 15
    assert report.n_tiles == 4  # two along Y and X: the rests join them


def test_a_slide_in_red_green_and_blue(folder: Path, flows: Flows) -> None:
    """Stained tissue in a plain array, colours last; where there is glass, nothing is done."""
    with Picture.open(str(files("skimage.data") / "ihc.png")) as picture:
        tissue = np.asarray(picture)[..., :3]
    slide = np.full((600, 1100, 3), 240, np.uint8)
    slide[40:552, 60:572] = tissue
    path = folder / "slide.zarr"
    stores.plain_array(path, slide, chunks=(128, 128, 3))
    dye = Custom(function="tile_functions:haematoxylin", kwargs={"above": 0.06})
    report = flows.segment(
        path,
        axes="yxc",
        segmenter=dye,
        mask=Mask(threshold=200, dark=True),
        tiling=Tiling(tile=(128, 128), halo=32),
    )
    truth = tile_functions.haematoxylin(np.moveaxis(slide, -1, 0), above=0.06)
    np.testing.assert_array_equal(labels_of(folder / "slide.labels.zarr"), truth)
    assert report.n_objects > 100
    assert report.n_skipped == 20  # of 5 x 9 tiles, the four columns on the right
    assert provenance(folder / "slide.labels.zarr")["channels"] == [0, 1, 2]


def test_a_torch_network_of_ones_own(folder: Path, flows: Flows) -> None:
    y, x = np.indices((300, 420))
    pixels = np.where((y % 60 - 30) ** 2 + (x % 60 - 30) ** 2 <= 15**2, 900, 20).astype(np.uint16)
    path = stores.ome_image(folder / "image.zarr", pixels, chunks=(64, 64))
    network = TorchNetwork(
        network="torch_functions:build",
        kwargs={"reach": 2},
        labels="torch_functions:parts",
        label_kwargs={"above": 0.4},
        intensity=((0.0, 1000.0),),
        diameter=30.0,
    )
    report = flows.segment(path, segmenter=network, tiling=Tiling(tile=(128, 128)))
    assert report.n_objects == 5 * 7
    by_itself = network.resolve(open_image(path), channels=()).load()(pixels)
    np.testing.assert_array_equal(labels_of(path), by_itself)
    made = provenance(path)["segmenter"]
    assert made["network"] == "torch_functions:build"
    assert made["device"] == "cpu"
    assert len(made["network_sha256"]) == len(made["labels_sha256"]) == 64


def test_channels_that_are_not_there(folder: Path, flows: Flows) -> None:
    pixels = np.zeros((2, 64, 64), np.uint8)
    path = stores.ome_image(folder / "image.zarr", pixels, axes="cyx", channels=["DAPI", "GFP"])
    with pytest.raises(ImageError) as raised:
        flows.segment(path, segmenter=Watershed(), channels=["DAPI", "mCherry"])
    assert str(raised.value) == (
        f"there is no channel 'mCherry' in {path}: its channels are 0 (DAPI), 1 (GFP)"
    )
