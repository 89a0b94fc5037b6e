"""What segmenters do to label images of one tile."""

from __future__ import annotations

import numpy as np


def drop_small(labels: np.ndarray, min_size: int) -> np.ndarray:
    """Make objects of fewer than ``min_size`` pixels background; ids of the others stay.

    Args:
        labels: Label image whose largest id is of the order of its number of objects.
        min_size: Pixels.
    """
    if min_size <= 1:
        return labels
    keep = np.bincount(labels.ravel()) >= min_size
    kept: np.ndarray = np.where(keep, np.arange(len(keep)), 0).astype(labels.dtype)[labels]
    return kept
