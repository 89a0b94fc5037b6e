"""Holes of objects, filled without a loop over objects."""

from __future__ import annotations

import numpy as np

BOX = np.dtype(
    [(name, np.int64) for name in ("label", "front", "top", "left", "planes", "rows", "columns")]
)
"""An object's id and the smallest box that holds it; `front` and `planes` in stacks only."""


def fill_holes(labels: np.ndarray, boxes: np.ndarray) -> bool:
    """Give objects what they enclose, in place.

    A hole is a part of what is not the object, connected by faces, that does not reach the edge
    of the object's box; objects inside it are swallowed. As Cellpose does, but that of objects
    in each other the outermost wins here, whatever their numbers.

    Args:
        labels: ``([Z], Y, X)`` integers, 0 being the background.
        boxes: Of type `BOX`: the objects that may have holes.

    Returns:
        Whether an object lost pixels to another.
    """
    import cc3d

    if not len(boxes):
        return False
    if labels.ndim == 3:
        from cytopave.engine.cellpose_fast.voids import fill_voids

        return fill_voids(labels, boxes)
    # All of them one below the other in one picture, with a frame around each, so that what is
    # outside of any object is one part; sorted, so that outer objects are written last.
    boxes = boxes[np.argsort(boxes["rows"] * boxes["columns"], kind="stable")]
    strip, owner, top = _strip(labels, boxes)
    parts = cc3d.connected_components(np.logical_not(strip, out=strip), connectivity=4)
    y, x = np.nonzero((parts > 0) & (parts != parts[0, 0]))
    box = boxes[owner[y]]
    hole = (box["top"] + y - top[owner[y]] - 1, box["left"] + x - 1)
    swallowed = bool((labels[hole] > 0).any())
    labels[hole] = box["label"]
    return swallowed


def _strip(labels: np.ndarray, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One picture of all boxes: their own pixels, the box of each row, and each box's first row."""
    heights = boxes["rows"] + 2
    top = np.cumsum(heights) - heights
    owner = np.repeat(np.arange(len(boxes)), heights)
    strip = np.zeros((int(heights.sum()), int(boxes["columns"].max()) + 2), bool)
    box = boxes[owner]
    y = box["top"] + np.arange(len(owner)) - top[owner] - 1
    x = box["left"][:, None] + np.arange(strip.shape[1]) - 1
    # outside of the array, and of the box, there is nothing of the object
    inside = (y >= 0) & (y < labels.shape[0])
    valid = inside[:, None] & (x >= 0) & (x < labels.shape[1])
    x = x.clip(0, labels.shape[1] - 1)
    strip[:] = valid & (labels[y.clip(0, labels.shape[0] - 1)[:, None], x] == box["label"][:, None])
    return strip, owner, top
