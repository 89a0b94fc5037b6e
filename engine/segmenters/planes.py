"""Stacks segmented plane by plane: sections that match become one object.

A run makes each plane a tile of its own, and the merge joins the sections that face each other in
neighbouring planes. Where a function is handed several planes at once, this does the same by the
merge's own rule.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cytopave.engine.merge.links import Merge, Side, compare
from cytopave.engine.scratch.views import VIEW

if TYPE_CHECKING:
    from collections.abc import Iterable


def stitched(planes: Iterable[np.ndarray], rule: Merge | None = None) -> np.ndarray:
    """One label image of a stack from those of its planes.

    Args:
        planes: ``(Y, X)`` integer labels of each plane, in order; ids mean nothing beyond a plane.
        rule: When two sections are one object.

    Returns:
        ``(Z, Y, X)`` labels; of a single plane, its own ids.
    """
    stack = np.stack([plane.astype(np.uint32) for plane in planes])
    if len(stack) == 1:
        return stack
    rule = rule or Merge()
    before = np.cumsum([0, *(plane.max(initial=0) for plane in stack)])
    pairs = [np.zeros((2, 0), np.int64)]
    none = np.zeros(0, VIEW)  # planes that face each other are compared by their pixels alone
    for z, (a, b) in enumerate(itertools.pairwise(stack)):
        rows = compare(Side(a, none), Side(b, none), rule, same_pixels=False)
        pairs.append(np.stack([rows["view_a"] + before[z], rows["view_b"] + before[z + 1]]))
    ends = np.concatenate(pairs, axis=1) - 1
    edges = coo_array((np.ones(ends.shape[1], bool), tuple(ends)), shape=(before[-1],) * 2)
    _, objects = connected_components(edges, directed=False)
    final = np.concatenate([[0], objects + 1])
    return np.asarray(final[np.where(stack > 0, stack + before[:-1, None, None], 0)])
