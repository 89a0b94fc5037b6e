"""Convex areas of objects in planes, from the ends of their rows: exact, and joined like sums.

An object's convex hull is that of the first and last pixels of its rows. Of those, a block keeps
only the rows at which its own part may have a corner, so that what is kept of an object grows far
slower than its size. All objects are worked on at once.

The convex area is scikit-image's (``area_convex`` of ``regionprops``): a pixel has the corners of a
diamond, half a pixel from its middle along both axes, and the hull of these holds a pixel if it
holds its middle, edges included. Everything is computed in integers.
"""

from __future__ import annotations

import numpy as np

from cytopave.engine.errors import LabelError

POINT = np.dtype(
    [
        ("time", np.int32),
        ("label", np.uint64),
        ("y", np.int32),
        ("left", np.int32),  # first pixel of the object in this row
        ("right", np.int32),  # last one
    ]
)
"""A row of an object, or of a part of it."""

_AT_ONCE = 1 << 20  # rows of objects whose convex area is computed at once
_MOST = 2**31 - 1


def row_ends(
    labels: np.ndarray, y: np.ndarray, x: np.ndarray, length: np.ndarray, *, time: int
) -> np.ndarray:
    """The rows of objects that may have corners of their hulls.

    Args:
        labels: Object of each run of pixels, ``(runs,)``, sorted.
        y: Its row; increasing within an object, as is ``x`` within a row.
        x: Its first pixel.
        length: Its pixels.
        time: Index of the time point.

    Returns:
        Of type `POINT`, by increasing id and row.

    Raises:
        LabelError: The image is longer than 2^31 pixels.
    """
    if len(x) and max(int(y.max()), int((x + length).max())) > _MOST:
        raise LabelError(f"solidity is measured in images of up to {_MOST} pixels along an axis")
    first = np.ones(len(labels), bool)
    first[1:] = (labels[1:] != labels[:-1]) | (y[1:] != y[:-1])
    begin = np.flatnonzero(first)
    last = begin + np.diff(begin, append=len(labels)) - 1
    points = np.empty(len(begin), POINT)
    points["time"], points["label"] = time, labels[begin]
    points["y"], points["left"] = y[begin], x[begin]
    points["right"] = x[last] + length[last] - 1
    return _outer(points)


def join_rows(points: np.ndarray) -> np.ndarray:
    """Join the rows of parts of objects, given in any order; returns what `row_ends` does."""
    order = np.lexsort((points["y"], points["label"], points["time"]))
    points = points[order]
    first = np.ones(len(points), bool)
    for name in ("time", "label", "y"):
        first[1:] &= points[name][1:] == points[name][:-1]
    first[1:] = ~first[1:]
    begin = np.flatnonzero(first)
    if not len(begin):
        return points
    joined = points[begin]
    joined["left"] = np.minimum.reduceat(points["left"], begin)
    joined["right"] = np.maximum.reduceat(points["right"], begin)
    return _outer(joined)


def convex_pixels(points: np.ndarray) -> np.ndarray:
    """The convex area of each object.

    Args:
        points: What `join_rows` gives for whole objects.

    Returns:
        ``(objects,)`` int64, by increasing time and id: pixels.
    """
    begin = np.flatnonzero(_begins(points))
    end = begin + np.diff(begin, append=len(points))
    heights = points["y"][end - 1].astype(np.int64) - points["y"][begin] + 1
    edges = np.searchsorted(np.cumsum(heights), np.arange(0, np.sum(heights), _AT_ONCE))
    edges = np.unique([*edges, len(begin)]).astype(int)
    parts = [np.empty(0, np.int64)]
    for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        parts.append(_count(points[begin[a] : end[b - 1]], begin[a:b] - begin[a]))
    return np.concatenate(parts)


def _outer(points: np.ndarray) -> np.ndarray:
    """Leave out the rows at which an object has no corner; points are sorted, each row once."""
    kept = np.zeros(len(points), bool)
    for name, sign in (("left", -1), ("right", 1)):
        kept[_corners(points, sign * points[name].astype(np.int64))] = True
    return points[kept]


def _corners(points: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Indices of the corners of each object's right boundary ``x``.

    A point that lies on or behind the line between two others of its object is no corner, whatever
    becomes of these: all such points are dropped at once, again and again until none is left.
    """
    y = points["y"].astype(np.int64)
    begins = _begins(points)
    ends = np.append(begins[1:], True)
    index = np.arange(len(points))
    while True:
        ys, xs = y[index], x[index]
        inner = np.flatnonzero(~(begins | ends)[index])
        before, after = inner - 1, inner + 1
        across = (xs[inner] - xs[before]) * (ys[after] - ys[before])
        dropped = inner[across <= (xs[after] - xs[before]) * (ys[inner] - ys[before])]
        if not len(dropped):
            return index
        index = np.delete(index, dropped)


def _begins(points: np.ndarray) -> np.ndarray:
    """Whether each row is the first one of its object."""
    begins = np.ones(len(points), bool)
    begins[1:] = (points["label"][1:] != points["label"][:-1]) | (
        points["time"][1:] != points["time"][:-1]
    )
    return begins


def _count(points: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """Convex areas of objects that begin at these rows."""
    end = begin + np.diff(begin, append=len(points))
    heights = points["y"][end - 1].astype(np.int64) - points["y"][begin] + 1
    least = np.repeat(np.minimum.reduceat(points["left"], begin).astype(np.int64), end - begin)
    reach = _reach(points, points["right"] - least) + _reach(points, least - points["left"]) + 1
    return np.asarray(np.add.reduceat(reach, np.cumsum(heights) - heights))


def _reach(points: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The last pixel in each row of each object whose middle lies in the hull of the diamonds.

    That hull is the hull of the pixels with a diamond around each of its points. So it reaches half
    a pixel further to the right; and more, where the boundary there is flatter than a diamond's
    side: half of what its slope, just below the row or just above it, has beyond one.
    """
    index = _corners(points, x)
    x, y = x[index], points["y"][index].astype(np.int64)
    first = _begins(points[index])
    last = np.append(first[1:], True)
    # From a corner to the next one the boundary moves by `run` in `rise` rows. Where there is
    # none before or after, a slope of one stands for it, which adds nothing.
    run = np.where(last, 1, np.diff(x, append=0))
    rise = np.where(last, 1, np.diff(y, append=0))
    run_before = np.where(first, -1, np.roll(run, 1))
    rise_before = np.where(first, 1, np.roll(rise, 1))
    edge = np.repeat(np.arange(len(y)), rise)
    down = np.arange(len(edge)) - np.repeat(np.cumsum(rise) - rise, rise)  # rows below the corner
    a, b = run[edge], rise[edge]
    c, d = (np.where(down > 0, *both) for both in ((a, run_before[edge]), (b, rise_before[edge])))
    further = np.maximum(0, np.maximum((a - b) * d, (-c - d) * b))
    return np.asarray(((2 * x[edge] + 1) * b * d + 2 * a * down * d + further) // (2 * b * d))
