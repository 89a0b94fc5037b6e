"""On real nuclei that the small network never saw, tiles cost no accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import stores
from runs import labels_of, run_here

from cytopave.engine import samples
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.score import average_precision
from cytopave.engine.segmenters import Cellpose
from cytopave.engine.segmenters import cellpose_weights as weights
from cytopave.engine.tiling import Tiling

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

# The fields with the most nuclei, of two cell lines; the others are smaller or nearly empty.
FIELDS = (
    "validation/2022-05-26_RPE1/2198",
    "test/2022-10-14_U2OS/4",
)


@pytest.mark.skipif(weights.installed()[1] != 4, reason="the bundled network runs in Cellpose 4")
def test_tiled_is_as_accurate_as_untiled(folder: Path) -> None:
    fields = [f for f in samples.nuclei_fields("held-out") if f.name in FIELDS]
    assert len(fields) == len(FIELDS)
    truth: list[np.ndarray] = []
    tiled: list[np.ndarray] = []
    untiled: list[np.ndarray] = []
    for number, field in enumerate(fields):
        path = stores.ome_image(folder / f"{number}.zarr", field.image, chunks=(256, 256))
        segmenter = Cellpose(model="nuclei-tiny", device="cpu", use_bfloat16=False)
        segmenter = segmenter.resolve(open_image(path), channels=())
        plan = run_here(path, segmenter=segmenter, tiling=Tiling(tile=(256, 256), halo=48))
        assert len(plan.grid) >= 4
        truth.append(field.masks)
        tiled.append(labels_of(path))
        # The same function, with the intensity range of the whole image, on the image at once.
        untiled.append(segmenter.load()(field.image))
    whole, by_tiles = average_precision(truth, untiled), average_precision(truth, tiled)
    assert whole > 0.6
    assert abs(by_tiles - whole) <= 0.02, (by_tiles, whole)
