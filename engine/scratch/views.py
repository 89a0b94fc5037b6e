"""What a tile knows of each object that it saw: one row of a table for each of its labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.tiling import Grid, Tile

VIEW = np.dtype(
    [
        ("area", np.int64),  # pixels in the window
        ("core_area", np.int64),  # of these, pixels in the core
        ("first", np.int64),  # first pixel in raster order of the whole image
        ("first_core", np.int64),  # the same among the core's pixels; -1 where there are none
        ("cut", np.uint8),  # bit 2 * axis + side: reaches that end of the window, inside the image
    ]
)


def views(grid: Grid, tile: Tile, labels: np.ndarray) -> np.ndarray:
    """The table of a tile's labels: one row of type ``VIEW`` a label, in the order of the ids.

    Taken from the runs of equal labels along the last axis: there are far fewer than pixels.
    """
    table = np.zeros(int(labels.max(initial=0)), VIEW)
    label, start, length = runs(labels)
    places = np.unravel_index(start, labels.shape)
    rows = [p + a for p, a in zip(places, tile.window.start, strict=True)]
    left = rows.pop()
    right = left + length
    table["area"] = _sums(label, length, len(table))
    table["first"] = _firsts(label, _linear(grid, tile.time, [*rows, left]), len(table))
    core_left = np.maximum(left, tile.core.start[-1])
    core_right = np.minimum(right, tile.core.stop[-1])
    inside = core_left < core_right
    for row, a, b in zip(rows, tile.core.start, tile.core.stop, strict=False):
        inside &= (a <= row) & (row < b)
    table["core_area"] = _sums(label[inside], (core_right - core_left)[inside], len(table))
    first = _linear(grid, tile.time, [*rows, core_left])
    table["first_core"] = _firsts(label[inside], first[inside], len(table))
    ends = zip([*rows, left], [*rows, right - 1], strict=True)
    for axis, (low, high) in enumerate(ends):
        for side, (reached, edge, border) in enumerate(
            (
                (low, tile.window.start[axis], 0),
                (high, tile.window.stop[axis] - 1, grid.shape[axis] - 1),
            )
        ):
            if edge != border:
                cut = np.zeros(len(table) + 1, np.uint8)
                cut[label[reached == edge]] = 1 << (2 * axis + side)
                table["cut"] |= cut[1:]
    return table


def runs(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Label, position in memory and length of each run of equal labels, background left out."""
    flat = labels.ravel()
    begins = np.empty(flat.size, bool)
    np.not_equal(flat[1:], flat[:-1], out=begins[1:])
    begins[:: labels.shape[-1]] = True
    start = np.flatnonzero(begins)
    length = np.diff(start, append=flat.size)
    label = flat[start]
    kept = label > 0
    return label[kept], start[kept], length[kept]


def _sums(label: np.ndarray, values: np.ndarray, n: int) -> np.ndarray:
    return np.bincount(label, values, minlength=n + 1)[1:]  # exact below 2^53


def _firsts(label: np.ndarray, values: np.ndarray, n: int) -> np.ndarray:
    """The first value of each label 1..n, -1 for absent ones."""
    first = np.full(n + 1, -1, np.int64)
    first[label[::-1]] = values[::-1]
    return first[1:]


def _linear(grid: Grid, time: int, places: Sequence[np.ndarray]) -> np.ndarray:
    """Index of pixels in the raster order of the whole image."""
    linear = np.full(len(places[0]), time, np.int64)
    for place, length in zip(places, grid.shape, strict=True):
        linear = linear * length + place
    return linear
