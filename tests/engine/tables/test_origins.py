"""Which tiles drew an object."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
import stores
from measured import measure_here
from runs import blobs, components, merge_here, plan_of

from cytopave.engine.errors import StaleTableError
from cytopave.engine.merge import stages
from cytopave.engine.segment import segment_tiles
from cytopave.engine.segmenters import Threshold
from cytopave.engine.tables import origins
from cytopave.engine.tables.origins import Origins
from cytopave.engine.tables.planner import plan_run
from cytopave.engine.tables.read import open_table
from cytopave.engine.tiling import Tiling

if TYPE_CHECKING:
    from pathlib import Path

    from cytopave.engine.planning.plan import Plan


def unpublished(image: Path) -> Plan:
    """A run up to its labels, which are written and not published."""
    plan = plan_of(image, segmenter=Threshold(threshold=0.5), tiling=Tiling(tile=(48, 48), halo=9))
    for batch in plan.batches:
        segment_tiles(plan, batch)
    tiles = [tuple(g) for g in itertools.batched(range(len(plan.grid)), 3)]
    for group in tiles:
        stages.scan_tiles(plan, group)
    plan.target.create(stages.resolve_run(plan, tiles).final.dtype)
    stages.write_blocks(plan, list(plan.target.blocks()))
    return plan


def test_the_table_of_a_run(folder: Path) -> None:
    mask = blobs((200, 180))
    image = stores.ome_image(folder / "image.zarr", mask.astype(np.uint8))
    plan = unpublished(image)
    measurement = plan_run(plan)
    n = measure_here(measurement)
    plan.target.writer().finish()
    plan.target.publish({"merge": plan.merge.model_dump()})
    table = open_table(image, "cells")
    assert len(table) == n == components(mask).max()
    assert table.made["digest"] == measurement.digest
    rows = table.read()
    seen_by: dict[int, set[int]] = {}
    resolution = stages.load_resolution(plan.merge_folder)
    for index, (a, b) in enumerate(itertools.pairwise(resolution.offsets.tolist())):
        for final in resolution.final[a:b].tolist():
            seen_by.setdefault(final, set()).add(index)
    assert rows["n_tiles"].tolist() == [len(seen_by[i]) for i in range(1, n + 1)]
    assert rows["tile"].tolist() == [min(seen_by[i]) for i in range(1, n + 1)]
    assert rows["n_tiles"].max() > 4
    # What one tile drew lies in its window; what several drew, in more than one core.
    low = np.stack([rows["bbox_y_min_px"], rows["bbox_x_min_px"]], axis=1)
    high = np.stack([rows["bbox_y_max_px"], rows["bbox_x_max_px"]], axis=1)
    for row in range(n):
        tile = plan.grid[rows["tile"][row]]
        inside = (low[row] >= tile.window.start).all() and (high[row] <= tile.window.stop).all()
        assert inside or rows["n_tiles"][row] > 1


def test_a_table_that_is_not_that_of_the_labels(folder: Path) -> None:
    """Another merge rule makes other labels of the same tiles, under the same digest."""
    image = stores.ome_image(folder / "image.zarr", blobs((100, 90)).astype(np.uint8))
    plan = unpublished(image)
    measure_here(plan_run(plan))
    merge_here(plan)  # publishes without saying by which rule
    with pytest.raises(StaleTableError):
        open_table(image, "cells")


def test_views_are_looked_through_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 9, 300)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    final = rng.integers(0, 400, offsets[-1]).astype(np.uint32)
    ids = rng.permutation(np.arange(100, 500, dtype=np.uint64))
    whole = Origins(offsets, final).of(ids)
    monkeypatch.setattr(origins, "_AT_ONCE", 7)
    parts = Origins(offsets, final).of(ids)
    tile_of = np.repeat(np.arange(300), counts)
    for name in ("tile", "n_tiles"):
        np.testing.assert_array_equal(whole[name], parts[name])
    for row, label in enumerate(ids.tolist()):
        tiles = set(tile_of[final == label].tolist())
        assert whole["n_tiles"][row] == len(tiles)
        assert whole["tile"][row] == (min(tiles) if tiles else -1)
    assert len(Origins(offsets, final).of(np.empty(0, np.uint64))["tile"]) == 0
