"""The merge on its own: segment tiles of an array, merge them, in this process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from worlds import Function, dense

from cytopave.engine.merge import Merge, Resolution, paint, resolve, scan
from cytopave.engine.scratch.tiles import OpenTiles, Scratch
from cytopave.engine.tiling import Grid


def stage(grid: Grid, image: np.ndarray, function: Function, root: Path) -> Scratch:
    """Segment all tiles and commit them."""
    scratch = Scratch(root)
    for tile in grid:
        pixels = image[tile.time] if grid.times > 1 else image
        scratch.commit(grid, tile, dense(function(pixels[tile.window.slices])))
    return scratch


def merge(
    grid: Grid, scratch: Scratch, *, order: Iterable[int] | None = None, rule: Merge | None = None
) -> tuple[np.ndarray, Resolution]:
    """Merge committed tiles; ``order`` is the order in which tiles are scanned and listed."""
    tiles = list(order) if order is not None else list(range(len(grid)))
    rule = rule or Merge()
    links = scan(OpenTiles(scratch), grid, tiles, rule)
    tables = {i: scratch.open(i).read("views")[0] for i in tiles}
    counts = np.array([len(tables[i]) for i in range(len(grid))])
    resolution = resolve(counts, tables.items(), links, rule)
    out = np.zeros((grid.times, *grid.shape), resolution.final.dtype)
    for tile in grid:
        out[tile.time][tile.core.slices] = paint(scratch, grid, resolution, tile.index)
    return out if grid.times > 1 else out[0], resolution


def tiled(
    image: np.ndarray,
    function: Function,
    root: Path,
    *,
    tile: tuple[int, ...],
    halo: tuple[int, ...],
) -> np.ndarray:
    """The merged labels of an image, with the ids checked: 1..n without gaps."""
    grid = Grid(image.shape, tile, halo)
    labels, resolution = merge(grid, stage(grid, image, function, root))
    ids = np.unique(labels[labels > 0])
    assert ids.tolist() == list(range(1, resolution.n_objects + 1))
    return labels
