"""Tile files that stay open while their neighbours are worked on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiled
import worlds

from cytopave.engine.errors import CorruptError
from cytopave.engine.scratch.tiles import OpenTiles, Scratch
from cytopave.engine.tiling import Grid

GRID = Grid((60, 70), (20, 30), (6, 4))


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    image = worlds.disks(GRID.shape, radius=4, pitch=9)
    return tiled.stage(GRID, image, worlds.perfect, tmp_path)


def test_those_used_last_stay_open(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [len(scratch.open(i).head) + scratch.open(i).read("views")[0].nbytes for i in range(3)]
    opened: list[int] = []
    open_ = Scratch.open

    def recorded(self: Scratch, index: int) -> object:
        opened.append(index)
        return open_(self, index)

    monkeypatch.setattr(Scratch, "open", recorded)
    tiles = OpenTiles(scratch, keep_bytes=sum(sorted(sizes)[1:]))  # any two of the three
    for index in (0, 1, 0, 2, 0, 1):
        archive, views = tiles[index]
        np.testing.assert_array_equal(views, archive.read("views")[0])
    assert opened == [0, 1, 2, 1]


def test_one_larger_than_the_limit_is_kept_alone(scratch: Scratch) -> None:
    tiles = OpenTiles(scratch, keep_bytes=1)
    assert tiles[3][0] is tiles[3][0]
    assert tiles[4][0].path == scratch.tile_path(4)


def test_a_missing_tile_is_named(scratch: Scratch) -> None:
    scratch.tile_path(3).unlink()
    with pytest.raises(CorruptError, match="000000003"):
        OpenTiles(scratch)[3]
