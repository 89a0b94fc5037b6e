"""The labels do not depend on who computed what, in which order, or how many at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import stores
import worlds
from distributed import LocalCluster
from runs import labels_of, run_here

from cytopave.engine.segmenters import Custom
from cytopave.engine.tiling import Tiling

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from runs import Flows


def test_any_number_of_workers_and_any_batches(
    folder: Path, flows: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a function whose outlines differ from tile to tile, so that the merge has to decide."""
    world = worlds.disks((330, 310), radius=9, pitch=17)
    image = stores.ome_image(folder / "image.zarr", world.astype(np.uint16), chunks=(64, 64))
    request = {
        "segmenter": Custom(function="worlds:grown", kwargs={"missing": 0.1}),
        "tiling": Tiling(tile=(64, 64), halo=16),
    }
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as one:
        flows.segment(image, name="one-worker", cluster=one.scheduler_address, **request)
    flows.segment(image, name="two-workers", **request)
    monkeypatch.setenv("CYTOPAVE_BATCH_SECONDS", "0.001")
    flows.segment(image, name="tile-by-tile", **request)
    run_here(image, name="here", **request)
    first = labels_of(image, "here")
    assert first.max() > 200
    for name in ("one-worker", "two-workers", "tile-by-tile"):
        np.testing.assert_array_equal(labels_of(image, name), first)
