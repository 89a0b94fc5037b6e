"""Stores as other projects' readers see them (``make readers``)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stores
from measured import measure_here
from runs import blobs, components, labels_of, run_here

from cytopave.engine.segmenters import Threshold
from cytopave.engine.tables.planner import plan_measurement
from cytopave.engine.tables.read import open_table
from cytopave.engine.tiling import Tiling

PYTHON = Path(__file__).parents[2] / ".venv-readers" / "bin" / "python"
SCRIPT = Path(__file__).parents[1] / "helpers" / "readers.py"


@pytest.mark.skipif(not PYTHON.exists(), reason="needs `make readers`")
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_all_readers_see_the_same(folder: Path, version: str) -> None:
    mask = blobs((2, 300, 280))[0]
    pixels = np.stack([mask * 1000, stores.pixels((300, 280), "uint8")]).astype(np.uint16)
    image = stores.ome_image(
        folder / "image.zarr", pixels, axes="cyx", version=version, n_levels=2,
        chunks=(1, 64, 64),
    )  # fmt: skip
    request: dict[str, Any] = {
        "segmenter": Threshold(threshold=500),
        "tiling": Tiling(tile=(100, 100), halo=8),
        "channels": [0],
    }
    run_here(image, **request)
    measure_here(plan_measurement(str(image), labels="cells"))
    labels, table = labels_of(image), open_table(image, "cells").read()
    n = int(components(mask).max())
    done = subprocess.run(
        [PYTHON, "-W", "ignore", SCRIPT, image], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    sums = [int(plane[labels > 0].sum(dtype=np.int64)) for plane in pixels]
    assert seen["ngio"] == {
        "labels": ["cells"],
        "tables": ["cells"],
        "type": "FeatureTableV1",
        "region": "cells",
        "index": list(range(1, n + 1)),
        "sum": sums,
        "shape": [300, 280],
    }
    spatial = [table["centroid_x"].mean(), table["centroid_y"].mean()]
    assert seen["spatialdata"] == {
        "region": "cells",
        "regions": ["cells"],
        "index": list(range(1, n + 1)),
        "spatial": pytest.approx(spatial),
    }
    assert seen["anndata"] == {"shape": [n, 10], "sum": sums[0]}
    assert seen["ome-zarr-py"]["cells"] == [[300, 280], [150, 140]]
    assert ["labels", "cells", 2] in seen["napari-ome-zarr"]
