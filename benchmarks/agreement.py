"""Do two label images of the same pixels hold the same objects?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Agreement:
    """What became of the objects of one label image in another.

    Attributes:
        objects: Their number.
        extra: Objects of the other image that have no partner at IoU 0.5.
        iou: Per object, the best intersection over union with any of the other image.
        identical: Per object, whether it is there pixel for pixel.
        fused: Objects of the other image that hold most pixels of two or more objects.
        split: Objects that hold most pixels of two or more objects of the other image.
    """

    objects: int
    extra: int
    iou: np.ndarray
    identical: np.ndarray
    fused: int
    split: int


def agreement(before: np.ndarray, after: np.ndarray) -> Agreement:
    """Compare labels; ids need not correspond.

    Args:
        before: Labels, 0 being the background.
        after: Labels of the same pixels.
    """
    sizes = [np.unique(image, return_counts=True) for image in (before, after)]
    areas = [dict(zip(ids.tolist(), counts.tolist(), strict=True)) for ids, counts in sizes]
    both = (before > 0) & (after > 0)
    pairs, shared = np.unique(np.stack([before[both], after[both]]), axis=1, return_counts=True)
    a, b = pairs
    area_a = np.array([areas[0][k] for k in a.tolist()], float)
    area_b = np.array([areas[1][k] for k in b.tolist()], float)
    iou = shared / np.maximum(1, area_a + area_b - shared)
    ids = sizes[0][0][sizes[0][0] > 0]
    best = np.zeros(len(ids))
    np.maximum.at(best, np.searchsorted(ids, a), iou)
    partners = len(np.unique(b[iou >= 0.5]))
    return Agreement(
        objects=len(ids),
        extra=len(areas[1].keys() - {0}) - partners,
        iou=best,
        identical=best == 1,
        fused=_repeated(b[shared > area_a / 2]),
        split=_repeated(a[shared > area_b / 2]),
    )


def _repeated(ids: np.ndarray) -> int:
    return int((np.unique(ids, return_counts=True)[1] > 1).sum())
