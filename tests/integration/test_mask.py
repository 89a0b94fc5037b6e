"""A mask in whole runs: tiles without foreground are not segmented, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stores
import tile_functions
from runs import blobs, components, labels_of, provenance

from cytopave.engine.errors import ImageError, TileError
from cytopave.engine.planning.foreground import Mask
from cytopave.engine.segmenters import Custom, Threshold
from cytopave.engine.tiling import Grid, Tiling

if TYPE_CHECKING:
    from runs import Flows

TILING = Tiling(tile=(64, 64), halo=16)


def tissue(shape: tuple[int, int]) -> np.ndarray:
    """A disc in a corner: about a third of the tiles have part in it."""
    y, x = np.ogrid[: shape[0], : shape[1]]
    return np.asarray(np.hypot(y - 130, x - 150) < 110)


def write(folder: Path) -> tuple[Path, Path, np.ndarray]:
    shape = (512, 600)
    objects = blobs(shape) & tissue(shape)
    image = stores.ome_image(
        folder / "image.zarr", objects.astype(np.uint16) * 900, chunks=(64, 64), n_levels=3
    )
    # As a tool would write it that sees the slide at an eighth of its resolution.
    coarse = tissue(shape).reshape(64, 8, 75, 8).any((1, 3))
    mask = stores.ome_image(folder / "mask.zarr", coarse.astype(np.uint8), scale=4.0, version="0.4")
    return image, mask, objects


@pytest.mark.parametrize("by", ["mask", "otsu"])
def test_only_tiles_with_foreground_are_segmented(by: str, folder: Path, flows: Flows) -> None:
    image, mask, objects = write(folder)
    report = flows.segment(
        image,
        segmenter=Threshold(threshold=500),
        tiling=TILING,
        mask=str(mask) if by == "mask" else by,
    )
    np.testing.assert_array_equal(labels_of(image), components(objects))
    assert report.n_tiles == 80
    assert 30 <= report.n_skipped <= 60
    (stage,) = [s for s in report.stages if s.name == "segment"]
    assert stage.units == 80 - report.n_skipped
    facts = provenance(image)
    assert facts["n_skipped"] == report.n_skipped
    assert len(facts["mask"].pop("digest")) == 64
    assert facts["mask"] == (
        {"image": str(mask), "level": 0, "dark": False, "clip": False}
        if by == "mask"
        else {"threshold": [0.0], "level": 0, "dark": False, "clip": False}
    )


def test_no_foreground_at_all(folder: Path, flows: Flows) -> None:
    image, _, _ = write(folder)
    stores.plain_array(folder / "none.zarr", np.zeros((64, 75), np.uint8))
    report = flows.segment(
        image, segmenter=Threshold(), tiling=TILING, mask=str(folder / "none.zarr")
    )
    assert report.n_objects == 0
    assert report.n_skipped == report.n_tiles == 80
    assert not labels_of(image).any()


def test_a_run_that_failed_goes_on_with_the_same_mask(
    tmp_path: Path, folder: Path, flows: Flows
) -> None:
    image, mask, objects = write(folder)
    notes = tmp_path / "notes"
    notes.mkdir()
    parameters: dict[str, Any] = {
        "segmenter": Custom(function="tile_functions:recorded", kwargs={"folder": str(notes)}),
        "tiling": TILING,
        "mask": Mask(image=str(mask), clip=True),
    }
    pixels = objects.astype(np.uint16) * 900
    one = Grid(objects.shape, (64, 64), (16, 16))[12]  # in the middle of the tissue
    (notes / tile_functions.key_of(pixels[one.window.slices])).write_text("raise 1")
    with pytest.raises(TileError, match="tile 12 "):
        flows.segment(image, **parameters)
    report = flows.segment(image, **parameters)
    np.testing.assert_array_equal(labels_of(image), components(objects))
    assert report.n_reused == 80 - report.n_skipped - 1
    calls = tile_functions.calls(notes)
    assert sum(calls.values()) == 80 - report.n_skipped + 1


def test_a_mask_of_another_field_of_view_is_refused_before_anything_starts(
    folder: Path, flows: Flows
) -> None:
    image, _, _ = write(folder)
    other = stores.ome_image(folder / "other.zarr", np.ones((99, 99), np.uint8))
    with pytest.raises(ImageError, match="shows another field of view"):
        flows.segment(image, segmenter=Threshold(), tiling=TILING, mask=str(other))
    assert not Path(image, "labels").exists()
