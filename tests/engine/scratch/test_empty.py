from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from cytopave.engine.scratch.empty import commit_empty
from cytopave.engine.scratch.tiles import Scratch
from cytopave.engine.tiling import Grid

if TYPE_CHECKING:
    from pathlib import Path

GRID = Grid((70, 95), (16, 16), (4, 4), times=2)


@pytest.mark.parametrize("links", [True, False])
def test_they_are_what_a_tile_without_objects_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, links: bool
) -> None:
    if not links:  # as on file systems that have none

        def no_link(*_: object) -> None:
            raise OSError("not supported")

        monkeypatch.setattr(os, "link", no_link)
    empty, segmented = Scratch(tmp_path / "empty"), Scratch(tmp_path / "segmented")
    commit_empty(empty, GRID, GRID)
    assert empty.finished() == set(range(len(GRID)))
    for tile in GRID:
        segmented.commit(GRID, tile, np.zeros(tile.window.shape, np.uint32))
        found, expected = empty.open(tile.index), segmented.open(tile.index)
        assert set(found.index) == set(expected.index)
        for name in expected.index:
            (a,), (b,) = found.read(name), expected.read(name)
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            np.testing.assert_array_equal(a, b)


def test_a_finished_tile_stays_as_it_is(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    labels = np.ones(GRID[3].window.shape, np.uint32)
    scratch.commit(GRID, GRID[3], labels)
    commit_empty(scratch, GRID, [GRID[2], GRID[3]])
    (core,) = scratch.open(3).read("core")
    assert core.all()
    # Nor does a tile that is segmented anew change those that shared its file.
    scratch.commit(GRID, GRID[2], np.ones(GRID[2].window.shape, np.uint32))
    commit_empty(scratch, GRID, GRID)
    scratch.commit(GRID, GRID[4], np.ones(GRID[4].window.shape, np.uint32))
    assert not scratch.open(5).read("core")[0].any()
