"""What decides about objects: size, first pixel and distance from the edge, block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.scratch.views import runs

if TYPE_CHECKING:
    from cytopave.engine.boxes import Box

ROW = np.dtype(
    [
        ("time", np.int32),
        ("label", np.uint64),
        ("n", np.int64),  # pixels
        ("first", np.int64),  # first pixel in raster order of all time points
        ("edge", np.int64),  # pixels between the object and the image's nearest edge
        ("edge_yx", np.int64),  # the same, of edges in Y and X
    ]
)
"""An object at a time point, or what a block holds of it."""


def count_block(labels: np.ndarray, box: Box, shape: tuple[int, ...], time: int) -> np.ndarray:
    """The objects in a block.

    Args:
        labels: ``([Z], Y, X)`` ids, 0 the background.
        box: Where the block lies.
        shape: Of the whole image.
        time: Index of the time point.

    Returns:
        One `ROW` an object, by increasing id.
    """
    label, begin, length = runs(labels)
    rows = np.empty(len(label), ROW)
    places = [p + a for p, a in zip(np.unravel_index(begin, labels.shape), box.start, strict=True)]
    first = np.full(len(label), time, np.int64)
    for place, n in zip(places, shape, strict=True):
        first = first * n + place
    ends = [*places[:-1], places[-1] + length - 1]
    away = [np.minimum(low, n - 1 - high) for low, high, n in zip(places, ends, shape, strict=True)]
    rows["time"], rows["label"], rows["n"], rows["first"] = time, label, length, first
    rows["edge"] = np.minimum.reduce(away)
    rows["edge_yx"] = np.minimum(*away[-2:])
    return join(rows)


def join(rows: np.ndarray) -> np.ndarray:
    """Join the rows of the same object and time; sorted by time and id."""
    rows = rows[np.lexsort((rows["label"], rows["time"]))]
    if not len(rows):
        return rows
    same = (rows["time"][1:] == rows["time"][:-1]) & (rows["label"][1:] == rows["label"][:-1])
    begin = np.flatnonzero(np.concatenate([[True], ~same]))
    out = rows[begin]
    out["n"] = np.add.reduceat(rows["n"], begin)
    for name in ("first", "edge", "edge_yx"):
        out[name] = np.minimum.reduceat(rows[name], begin)
    return out
