"""Files of tiles in which nothing was looked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.scratch.archive import archive_bytes, write_bytes
from cytopave.engine.scratch.tiles import shared_zone, zone_name
from cytopave.engine.scratch.views import VIEW

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cytopave.engine.scratch.tiles import Scratch
    from cytopave.engine.tiling import Grid, Tile


def commit_empty(scratch: Scratch, grid: Grid, tiles: Iterable[Tile]) -> None:
    """Write the files of unfinished tiles as if each had been segmented and held nothing.

    They differ in the shapes of cores and zones alone, so that few are ever made.
    """
    made: dict[tuple[object, ...], memoryview] = {}
    for tile in tiles:
        if scratch.has(tile.index):
            continue
        zones = {step: shared_zone(grid, tile, step) for step, _ in grid.steps(tile)}
        parts = {"core": tile.core, **{zone_name(s): z for s, z in zones.items() if z is not None}}
        key = tuple((name, *box.shape) for name, box in parts.items())
        if key not in made:
            empty = {name: np.zeros(box.shape, np.uint8) for name, box in parts.items()}
            made[key] = archive_bytes({"views": np.zeros(0, VIEW), **empty})
        write_bytes(scratch.tile_path(tile.index), made[key])
