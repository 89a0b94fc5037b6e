"""Tile files and the folders that hold them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import worlds

from cytopave.engine.errors import CorruptError, OutputError
from cytopave.engine.scratch.archive import write_bytes
from cytopave.engine.scratch.tenancy import DEFAULT_FOLDER, occupied
from cytopave.engine.scratch.tiles import Scratch, shared_zone, zone_name
from cytopave.engine.scratch.views import views
from cytopave.engine.tiling import Grid

GRID = Grid((60, 70), (20, 30), (6, 4))


@pytest.fixture
def labels() -> np.ndarray:
    return worlds.dense(worlds.disks(GRID.shape, radius=4, pitch=9))


def test_what_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"x/a\.json cannot be written: Not a directory") as e:
        write_bytes(tmp_path / "file" / "x" / "a.json", b"")
    assert "\n" not in str(e.value)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_committed_tile_reads_back(labels: np.ndarray, tmp_path: Path) -> None:
    scratch, tile = Scratch(tmp_path), GRID[4]
    window = worlds.dense(labels[tile.window.slices])
    assert not scratch.has(4)
    assert scratch.commit(GRID, tile, window) == window.max()
    assert scratch.finished() == {4}
    core, *zones = scratch.open(4).read(
        "core", *(zone_name(step) for step, _ in GRID.neighbours(tile))
    )
    np.testing.assert_array_equal(core, window[tile.core.within(tile.window)])
    for zone, (step, _) in zip(zones, GRID.neighbours(tile), strict=True):
        box = shared_zone(GRID, tile, step)
        assert box is not None
        np.testing.assert_array_equal(zone, window[box.within(tile.window)])


def test_both_sides_of_a_seam_name_the_same_zone() -> None:
    for tile in GRID:
        for step, other in GRID.neighbours(tile):
            back = tuple(-s for s in step)
            assert shared_zone(GRID, tile, step) == shared_zone(GRID, other, back)


def test_views_know_area_place_and_cuts(labels: np.ndarray) -> None:
    tile = GRID[4]
    window = worlds.dense(labels[tile.window.slices])
    table = views(GRID, tile, window)
    image = np.zeros(GRID.shape, np.int64)
    image[tile.window.slices] = window
    core = np.zeros_like(image)
    core[tile.core.slices] = image[tile.core.slices]
    for number, row in enumerate(table, 1):
        mine = image == number
        assert row["area"] == mine.sum()
        assert row["core_area"] == (core == number).sum()
        assert row["first"] == np.flatnonzero(mine)[0]
        assert row["first_core"] == next(iter(np.flatnonzero(core == number)), -1)
        sides = [window[0], window[-1], window[:, 0], window[:, -1]]
        assert row["cut"] == sum(1 << i for i, s in enumerate(sides) if (s == number).any())


def test_nothing_is_cut_at_the_border_of_the_image(labels: np.ndarray) -> None:
    grid = Grid(GRID.shape, GRID.shape, (0, 0))
    assert (views(grid, grid[0], labels)["cut"] == 0).all()


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_damage_is_noticed_and_named(damage: str, labels: np.ndarray, tmp_path: Path) -> None:
    scratch, tile = Scratch(tmp_path), GRID[4]
    scratch.commit(GRID, tile, worlds.dense(labels[tile.window.slices]))
    path = scratch.tile_path(4)
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    else:
        where = data.index(b"core") + 40  # within the compressed labels
        data[where] ^= 0xFF
        path.write_bytes(data)
    with pytest.raises(CorruptError, match="delete it and run again"):
        scratch.open(4).read("core")


def test_an_interrupted_write_leaves_no_tile(tmp_path: Path, labels: np.ndarray) -> None:
    script = (
        "import os, numpy as np, pathlib, sys\n"
        "from cytopave.engine.scratch import archive\n"
        "os.fsync = lambda _: os._exit(9)\n"
        "archive.write_bytes(pathlib.Path(sys.argv[1]), b'x' * 1000)\n"
    )
    path = Scratch(tmp_path).tile_path(4)
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == 9
    assert not path.exists()
    assert Scratch(tmp_path).finished() == frozenset()


def test_the_last_run_to_leave_deletes_the_folder(tmp_path: Path) -> None:
    root = tmp_path / DEFAULT_FOLDER / "a"
    with occupied(root, remove=True):
        (root / "tile").write_text("x")
        script = (
            "import pathlib, sys\n"
            "from cytopave.engine.scratch.tenancy import occupied\n"
            "with occupied(pathlib.Path(sys.argv[1]), remove=True): pass\n"
        )
        subprocess.run([sys.executable, "-c", script, str(root)], check=True)
        assert (root / "tile").exists()
    assert not root.parent.exists()


def test_a_failed_run_keeps_the_folder(tmp_path: Path) -> None:
    root = tmp_path / "runs" / "a"
    with pytest.raises(RuntimeError, match="as it was"), occupied(root, remove=True):
        raise RuntimeError("as it was")
    assert root.exists()
    with occupied(root, remove=False):
        pass
    assert root.exists()
