"""Voids of objects in stacks, filled without a loop over objects: `holes` in three dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

_AT_ONCE = 1 << 26
"""Voxels of the picture that is searched at once."""


def fill_voids(labels: np.ndarray, boxes: np.ndarray) -> bool:
    """Give objects what they enclose, in place; of objects in each other the outermost wins.

    Args:
        labels: ``(Z, Y, X)`` integers, 0 being the background.
        boxes: Of type `holes.BOX`: the objects that may have voids.

    Returns:
        Whether an object lost voxels to another.
    """
    size = boxes["planes"] * boxes["rows"] * boxes["columns"]
    boxes = boxes[np.argsort(size, kind="stable")]
    found = [_voids(labels, boxes[group], group) for group in _groups(boxes)]
    place, owner = (np.concatenate(parts) for parts in zip(*found, strict=True))
    # the largest object is written last
    order = np.argsort(owner, kind="stable")
    place, owner = place[order], owner[order]
    swallowed = bool((labels.flat[place] > 0).any())
    labels.flat[place] = boxes["label"][owner]
    return swallowed


def _groups(boxes: np.ndarray) -> Iterator[np.ndarray]:
    """Indices of boxes of about the same section, whose picture is not too large."""
    order = np.argsort(boxes["rows"] * boxes["columns"], kind="stable")
    while len(order):
        some = boxes[order]
        size = np.cumsum(some["planes"] + 2)
        for name in ("rows", "columns"):
            size = size * (np.maximum.accumulate(some[name]) + 2)
        count = max(1, int(np.searchsorted(size, _AT_ONCE, side="right")))
        yield order[:count]
        order = order[count:]


def _voids(
    labels: np.ndarray, boxes: np.ndarray, numbers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Flat indices of what boxes' objects enclose, and the number of each one's box.

    All boxes stand one behind the other in one picture, with a frame around each, so that what is
    outside of any object is one part.
    """
    import cc3d

    heights = boxes["planes"] + 2
    first = np.cumsum(heights) - heights
    owner = np.repeat(np.arange(len(boxes)), heights)
    box = boxes[owner]
    sizes = len(owner), int(boxes["rows"].max()) + 2, int(boxes["columns"].max()) + 2
    z = box["front"] + np.arange(sizes[0]) - first[owner] - 1
    y = box["top"][:, None] + np.arange(sizes[1]) - 1
    x = box["left"][:, None] + np.arange(sizes[2]) - 1
    valid = [(at >= 0) & (at < n) for at, n in zip((z, y, x), labels.shape, strict=True)]
    z, y, x = (at.clip(0, n - 1) for at, n in zip((z, y, x), labels.shape, strict=True))
    picture = labels[z[:, None, None], y[:, :, None], x[:, None, :]] != box["label"][:, None, None]
    # outside of the array there is nothing of the object
    picture |= ~(valid[0][:, None, None] & valid[1][:, :, None] & valid[2][:, None, :])
    parts = cc3d.connected_components(picture, connectivity=6)
    k, j, i = np.nonzero((parts > 0) & (parts != parts[0, 0, 0]))
    place = np.ravel_multi_index((z[k], y[k, j], x[k, i]), labels.shape)
    return place, numbers[owner[k]]
