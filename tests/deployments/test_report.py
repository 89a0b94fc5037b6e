"""Which label image ``cytopave report`` is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import stores
import tifffile
from converted import convert_here
from runs import run_here

from cytopave.deployments.cli.report import find_labels
from cytopave.engine.segmenters import Threshold
from cytopave.engine.tiling import Tiling

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("version", ["0.4", "0.5", "converted"])
def test_the_image_and_its_label_image_are_told_apart(tmp_path: Path, version: str) -> None:
    """An image that cytopave converted carries a note of cytopave as its labels do."""
    pixels = np.zeros((128, 128), np.uint16)
    pixels[10:20, 10:20] = 1000
    if version == "converted":
        tifffile.imwrite(tmp_path / "scan.tif", pixels)
        image = convert_here(tmp_path / "scan.tif")[0].url
    else:
        image = str(stores.ome_image(tmp_path / "i.zarr", pixels, version=version))
    tiling = Tiling(tile=(64, 64), halo=8)
    run_here(image, segmenter=Threshold(threshold=10), tiling=tiling, name="n")
    labels = f"{image}/labels/n"
    assert find_labels(image, "n")[0] == labels
    place, made = find_labels(labels, "cells")
    assert place == labels
    assert made["n_objects"] == 1
