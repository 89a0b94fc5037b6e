"""Pixels that objects of two label images have in common, and each object's parent by them."""

from __future__ import annotations

import numpy as np

PAIR = np.dtype(
    [
        ("time", np.int32),
        ("label", np.uint64),  # the child
        ("parent", np.uint64),  # 0: where no parent is
        ("n", np.int64),  # pixels that both have
    ]
)
"""What a child and a parent have in common."""

CHILD = np.dtype(
    [("time", np.int32), ("label", np.uint64), ("parent", np.uint64), ("fraction", np.float64)]
)
"""A child, its parent (0: none), and the share of the child's pixels that lies in it."""

COUNT = np.dtype([("time", np.int32), ("label", np.uint64), ("n", np.int64)])
"""A parent, and how many children it has."""


def count_pairs(child: np.ndarray, parent: np.ndarray, time: int) -> np.ndarray:
    """What the objects of a block have in common.

    Args:
        child: Ids, 0 the background.
        parent: The same pixels of the other label image.
        time: Index of the time point.

    Returns:
        One `PAIR` a child and parent, sorted; background of the child is left out.
    """
    inner, outer = child.ravel(), parent.ravel()
    change = (inner[1:] != inner[:-1]) | (outer[1:] != outer[:-1])
    start = np.flatnonzero(np.concatenate([[True], change]))
    length = np.diff(start, append=inner.size)
    kept = inner[start] > 0
    rows = np.empty(int(kept.sum()), PAIR)
    rows["time"] = time
    rows["label"], rows["parent"] = inner[start[kept]], outer[start[kept]]
    rows["n"] = length[kept]
    return join(rows)


def join(rows: np.ndarray) -> np.ndarray:
    """Join rows of the same child and parent at the same time; sorted by these."""
    rows = rows[np.lexsort((rows["parent"], rows["label"], rows["time"]))]
    begin = _begins(rows, "time", "label", "parent")
    out: np.ndarray = rows[begin]
    if len(out):
        out["n"] = np.add.reduceat(rows["n"], begin)
    return out


def parents_of(pairs: np.ndarray) -> np.ndarray:
    """Each child's parent: of those it overlaps, the one that has most of it, then the lowest id.

    Args:
        pairs: All pairs of some children, as `join` gives them.

    Returns:
        One `CHILD` a child, by time and id.
    """
    begin = _begins(pairs, "time", "label")
    out = np.zeros(len(begin), CHILD)
    if not len(begin):
        return out
    out["time"], out["label"] = pairs["time"][begin], pairs["label"][begin]
    inside = np.where(pairs["parent"] > 0, pairs["n"], 0)
    most = np.maximum.reduceat(inside, begin)
    child = np.repeat(np.arange(len(begin)), np.diff(begin, append=len(pairs)))
    best = np.flatnonzero((inside == most[child]) & (inside > 0))
    which, first = np.unique(child[best], return_index=True)  # parents are sorted
    out["parent"][which] = pairs["parent"][best[first]]
    out["fraction"] = most / np.add.reduceat(pairs["n"], begin)
    return out


def count_children(children: np.ndarray) -> np.ndarray:
    """How many children each parent has: one `COUNT` a parent that has any, by time and id."""
    rows = np.zeros(int((children["parent"] > 0).sum()), COUNT)
    inside = children[children["parent"] > 0]
    rows["time"], rows["label"], rows["n"] = inside["time"], inside["parent"], 1
    return add_counts(rows)


def add_counts(rows: np.ndarray) -> np.ndarray:
    """Join `COUNT` rows of the same parent at the same time."""
    rows = rows[np.lexsort((rows["label"], rows["time"]))]
    begin = _begins(rows, "time", "label")
    out: np.ndarray = rows[begin]
    if len(out):
        out["n"] = np.add.reduceat(rows["n"], begin)
    return out


def _begins(rows: np.ndarray, *names: str) -> np.ndarray:
    """Where runs of rows begin that are alike in these fields."""
    change = np.zeros(max(len(rows) - 1, 0), bool)
    for name in names:
        change |= rows[name][1:] != rows[name][:-1]
    return np.flatnonzero(np.concatenate([np.ones(min(len(rows), 1), bool), change]))
