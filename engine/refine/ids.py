"""Ids changed or made smaller by their runs along the last axis: far fewer than pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable


def map_ids(labels: np.ndarray, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Labels whose ids are others.

    Args:
        labels: Ids, 0 the background, which stays.
        change: From distinct, sorted ids to the new ones, in their order.
    """
    distinct, inverse, length = _by_runs(labels)
    new = np.zeros(1, distinct.dtype)
    if len(distinct) > 1 or distinct[0] > 0:
        kept = distinct > 0
        changed = change(distinct[kept])
        new = np.zeros(len(distinct), changed.dtype)
        new[kept] = changed
    return np.repeat(new[inverse], length).reshape(labels.shape)


def compact(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ids numbered through in their order.

    Returns:
        The distinct ids with 0 as the first, and int32 labels that are indices of them.
    """
    distinct, inverse, length = _by_runs(labels)
    if distinct[0] > 0:
        distinct, inverse = np.concatenate([np.zeros(1, distinct.dtype), distinct]), inverse + 1
    return distinct, np.repeat(inverse.astype(np.int32), length).reshape(labels.shape)


def _by_runs(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct ids, sorted; which of them each run of equal ids has; and the runs' lengths."""
    flat = labels.ravel()
    start = np.flatnonzero(np.concatenate([[True], flat[1:] != flat[:-1]]))
    distinct, inverse = np.unique(flat[start], return_inverse=True)
    return distinct, inverse, np.diff(start, append=flat.size)
