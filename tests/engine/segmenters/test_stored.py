"""Merging labels that are there already, through the engine's stages and without any server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stores
import worlds

from cytopave.engine.errors import LabelError, SegmenterError
from cytopave.engine.merge import Merge
from cytopave.engine.merge.stages import resolve_run, scan_tiles, write_blocks
from cytopave.engine.omezarr.labels import open_labels
from cytopave.engine.planning.budget import Budget
from cytopave.engine.planning.planner import make_plan
from cytopave.engine.segment import segment_tiles
from cytopave.engine.segmenters import Stored
from cytopave.engine.tiling import Grid, Tiling


def _merged(image: Path, tile: tuple[int, int]) -> np.ndarray:
    plan = make_plan(
        str(image),
        segmenter=Stored(),
        tiling=Tiling(tile=tile, halo=0),
        merge=Merge(),
        budget=Budget(2**30, "", on_gpu=False),
        workers=1,
        batch_seconds=20,
        name="merged",
    )
    for batch in plan.batches:
        segment_tiles(plan, batch)
    for batch in plan.batches:
        scan_tiles(plan, batch)
    resolution = resolve_run(plan, plan.batches)
    plan.target.create(resolution.final.dtype)
    write_blocks(plan, list(plan.target.blocks()))
    plan.target.writer().finish()
    plan.target.publish({})
    return np.asarray(open_labels(image, "merged").levels[0][:])


def _labelled_by_tiles(truth: np.ndarray, tile: tuple[int, int], start: int = 0) -> np.ndarray:
    out = np.zeros(truth.shape, np.int64)
    for part in Grid(truth.shape, tile, (0, 0)):
        labels = worlds.perfect(truth[part.core.slices])
        out[part.core.slices] = np.where(labels, labels + start, 0)
    return out


@pytest.mark.parametrize("start", [0, 2**40])
def test_labels_of_single_tiles_become_one_image(start: int, tmp_path: Path) -> None:
    truth = worlds.disks((300, 330))
    stored = _labelled_by_tiles(truth, (100, 110), start)
    image = stores.ome_image(tmp_path / "a.zarr", stored, axes="yx", dtype="int64", chunks=(64, 64))
    np.testing.assert_array_equal(_merged(image, (100, 110)), worlds.dense(truth))


def test_cells_without_space_between_them_stay_apart(tmp_path: Path) -> None:
    truth = worlds.without_crumbs(worlds.confluent((300, 300)))
    stored = _labelled_by_tiles(truth, (100, 100))
    image = stores.ome_image(tmp_path / "a.zarr", stored, axes="yx", dtype="int32")
    found = _merged(image, (100, 100))
    assert worlds.fused(truth, found) == 0
    assert worlds.split(truth, found) == 0


@pytest.mark.parametrize(
    ("dtype", "error", "message"),
    [("float32", SegmenterError, "are no labels"), ("int32", LabelError, "negative ids")],
)
def test_what_is_no_label_image_is_refused(
    dtype: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    pixels: Any = np.full((50, 50), -3)
    image = stores.ome_image(tmp_path / "a.zarr", pixels, axes="yx", dtype=dtype)
    with pytest.raises(error, match=message):
        _merged(image, (50, 50))
