"""What is compared or sorted at once, to save time or memory, changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import tiled
import worlds

from cytopave.engine.merge import Merge, scan
from cytopave.engine.scratch.tiles import OpenTiles
from cytopave.engine.tiling import Grid


@pytest.mark.parametrize("at_once", [1, 7, 1 << 23])
def test_ids_follow_the_first_pixels_whatever_is_sorted_at_once(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["cytopave.engine.merge.resolve"]
    monkeypatch.setattr(module, "_SORTED_AT_ONCE", at_once)
    image = worlds.disks((150, 130), radius=5, pitch=12)
    grid = Grid(image.shape, (40, 50), (12, 12))
    scratch = tiled.stage(grid, image, worlds.dense, tmp_path)
    labels, _ = tiled.merge(grid, scratch)
    ids, first = np.unique(labels[labels > 0], return_index=True)
    assert ids.tolist() == list(range(1, len(np.unique(image))))
    assert (np.diff(first) > 0).all()


@pytest.mark.parametrize("at_once", [1, 5000, 1 << 20])
def test_seams_compared_together_give_the_links_of_each(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["cytopave.engine.merge.links"]
    image = worlds.confluent((150, 130), pitch=14)
    grid = Grid(image.shape, (40, 50), (12, 12))
    scratch = tiled.stage(grid, image, worlds.shifted, tmp_path)
    monkeypatch.setattr(module, "_AT_ONCE", 1)
    alone = scan(OpenTiles(scratch), grid, range(len(grid)), Merge())
    monkeypatch.setattr(module, "_AT_ONCE", at_once)
    together = scan(OpenTiles(scratch), grid, range(len(grid)), Merge())
    names = ["tile_a", "view_a", "tile_b", "view_b"]
    np.testing.assert_array_equal(np.sort(alone, order=names), np.sort(together, order=names))
