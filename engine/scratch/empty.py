"""Files of tiles in which nothing was looked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.scratch.archive import write_archive
from cytopave.engine.scratch.tiles import shared_zone, zone_name
from cytopave.engine.scratch.views import VIEW

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from cytopave.engine.scratch.tiles import Scratch
    from cytopave.engine.tiling import Grid, Tile


def commit_empty(scratch: Scratch, grid: Grid, tiles: Iterable[Tile]) -> None:
    """Write the files of unfinished tiles as if each had been segmented and held nothing.

    They differ in the shapes of cores and zones alone: one of each kind is written, and gets the
    names of the others as well, which takes a twentieth of the time.
    """
    written: dict[tuple[object, ...], Path] = {}
    for tile in tiles:
        if scratch.has(tile.index):
            continue
        zones = {step: shared_zone(grid, tile, step) for step, _ in grid.steps(tile)}
        parts = {"core": tile.core, **{zone_name(s): z for s, z in zones.items() if z is not None}}
        kind = tuple((name, *box.shape) for name, box in parts.items())
        path = scratch.tile_path(tile.index)
        if kind in written and _linked(written[kind], path):
            continue
        empty = {name: np.zeros(box.shape, np.uint8) for name, box in parts.items()}
        write_archive(path, {"views": np.zeros(0, VIEW), **empty})
        written[kind] = path


def _linked(existing: Path, path: Path) -> bool:
    """Give a file a second name; False where the file system cannot, or no more of them."""
    path.parent.mkdir(exist_ok=True)
    try:
        os.link(existing, path)
    except FileExistsError:
        pass  # an earlier attempt, whose task lives on, was faster
    except OSError:
        return False
    return True
