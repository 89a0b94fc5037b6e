"""What a run's page says of its plan."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import stores
from runs import plan_of

from cytopave.engine.gpu.vram import GIB, Gpu
from cytopave.engine.segmenters import Threshold
from cytopave.engine.tiling import Tiling
from cytopave.tasks.report import plan_page, seam_table


def test_the_plan_with_the_vram_of_each_worker(tmp_path: Path) -> None:
    image = stores.ome_image(tmp_path / "a.zarr", np.zeros((100, 90), np.uint16), chunks=(50, 50))
    plan = plan_of(image, segmenter=Threshold(threshold=7), tiling=Tiling(tile=(50, 50), halo=5))
    gpu = Gpu(
        visible=True,
        name="NVIDIA H200",
        total_bytes=140 * GIB,
        free_bytes=120 * GIB,
        budget_bytes=96 * GIB,
        source="nvml",
        note="",
    )
    text = plan_page(plan, [gpu, gpu], started_by="[another run](/runs/1)")
    assert f"| Image | `{image}`, level 0, 100 x 90 (yx) |" in text
    assert "| Tiles | 4 of 50 x 50 pixels, halo 5 x 5, in 4 batches |" in text
    assert "| Memory | 0.1 MiB a tile, of 1024.0 GiB: plenty |" in text
    assert "| Started by | [another run](/runs/1) |" in text
    for worker in (0, 1):
        assert f"| {worker} | NVIDIA H200 | 140.0 GiB | 120.0 GiB | 96.0 GiB |" in text
    assert text.endswith("- threshold: 7.0")
    without = plan_page(plan, [])
    assert "VRAM" not in without
    assert "Started by" not in without


def test_the_seams_have_a_column_an_axis() -> None:
    """The UI cuts off what is wider than its page."""
    counts = {"objects at seams": 3, "end there": 1}
    report: Any = SimpleNamespace(
        seam_rows=lambda: [{"axis": "y", **counts}, {"axis": "x", **counts, "end there": 2}]
    )
    assert seam_table(report) == [
        {"count": "objects at seams", "axis y": 3, "axis x": 3},
        {"count": "end there", "axis y": 1, "axis x": 2},
    ]
