"""Objects grown into the background around them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from cytopave.engine.refine.ids import compact
from cytopave.engine.refine.quantity import NEARLY, Given, spacing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.omezarr.image import Image


class Expand(BaseModel):
    """Grow objects by a distance, without overlap: background goes to the nearest object.

    As scikit-image's ``expand_labels``; background as near to several goes to that of the lowest
    id, where ``expand_labels`` leaves it open. A physical distance takes the pixels' size along
    each axis into account; pixels count alike along every axis.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["expand"] = "expand"
    distance: Given = Field(description="How far: pixels, or a length such as 2.5um.")

    def check(self, labels: Image) -> None:
        """Refuse what these labels cannot have; a `LabelError`."""
        spacing(self.distance, labels)

    def halo(self, labels: Image) -> tuple[int, ...]:
        """Pixels around a block that its result depends on."""
        return reach(self.distance.value, spacing(self.distance, labels))

    def grow(self, window: np.ndarray, labels: Image) -> np.ndarray:
        """The ids of a window after growing; right but for its `halo`."""
        return expand(window, self.distance.value, spacing(self.distance, labels))


def reach(distance: float, sizes: Sequence[float]) -> tuple[int, ...]:
    """How many pixels along each axis a distance spans at most."""
    return tuple(int(distance / s * (1 + NEARLY)) for s in sizes)


def expand(labels: np.ndarray, distance: float, sizes: Sequence[float]) -> np.ndarray:
    """Grow objects by a distance.

    Args:
        labels: Ids, 0 the background.
        distance: How far; equal distances are those equal but for rounding.
        sizes: Distance between neighbouring pixels along each axis.
    """
    from scipy import ndimage

    background = labels == 0
    if background.all() or not background.any():
        return labels
    nearest, place = ndimage.distance_transform_edt(background, sampling=sizes, return_indices=True)
    gained = background & (nearest <= distance * (1 + NEARLY))
    out = labels.copy()
    out[gained] = labels[tuple(axis[gained] for axis in place)]
    del place
    ids, small = compact(labels)
    torn = gained & _between(small, reach(distance, sizes))
    if torn.any():
        where = np.nonzero(torn)
        out[where] = ids[_lowest(small, where, nearest[where], distance, sizes)]
    return out


def _between(small: np.ndarray, radii: Sequence[int]) -> np.ndarray:
    """Pixels that have several objects in the box around them."""
    from scipy import ndimage

    size = [2 * r + 1 for r in radii]
    most = ndimage.maximum_filter(small, size, mode="constant", cval=0)
    none = np.iinfo(small.dtype).max
    filled = np.where(small == 0, none, small)
    return np.asarray(ndimage.minimum_filter(filled, size, mode="constant", cval=none) < most)


def _lowest(
    small: np.ndarray,
    where: tuple[np.ndarray, ...],
    nearest: np.ndarray,
    distance: float,
    sizes: Sequence[float],
) -> np.ndarray:
    """The lowest id among all pixels that are as near to a pixel as the nearest one.

    Args:
        small: Ids of up to 32 bits.
        where: The pixels, an array of indices an axis.
        nearest: Distance of each from the nearest object.
        distance: The largest of them.
        sizes: Distance between neighbouring pixels along each axis.
    """
    radii = reach(distance, sizes)
    none = np.iinfo(small.dtype).max
    padded = np.pad(
        np.where(small == 0, none, small), [(r, r) for r in radii], constant_values=none
    )
    strides = np.array(padded.strides) // padded.itemsize
    place = sum((index + r) * s for index, r, s in zip(where, radii, strides.tolist(), strict=True))
    steps, edges, groups = _shells(radii, sizes, distance)
    jumps = steps @ strides
    shell = np.searchsorted(edges, nearest * (1 - NEARLY))
    order = np.argsort(shell, kind="stable")
    found = np.full(len(order), none, small.dtype)
    flat = padded.ravel()
    bounds = np.searchsorted(shell[order], np.arange(len(edges) + 1))
    for number in np.unique(shell):
        members = order[bounds[number] : bounds[number + 1]]
        at = place[members]
        lowest = found[members]
        for jump in jumps[groups[number] : groups[number + 1]]:
            np.minimum(lowest, flat[at + jump], out=lowest)
        found[members] = lowest
    return found


def _shells(
    radii: Sequence[int], sizes: Sequence[float], distance: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All steps within a distance, those of equal length together.

    Returns:
        Steps (n, axes) by length; the largest length of each group of equal ones; and where each
        group begins, with n as the last entry.
    """
    steps = np.indices([2 * r + 1 for r in radii]).reshape(len(radii), -1).T - np.array(radii)
    length = np.sqrt(((steps * np.asarray(sizes)) ** 2).sum(axis=1))
    inside = (length > 0) & (length <= distance * (1 + NEARLY))
    steps, length = steps[inside], length[inside]
    order = np.argsort(length, kind="stable")
    steps, length = steps[order], length[order]
    begin = np.flatnonzero(np.diff(length, prepend=-math.inf) > NEARLY * length)
    ends = np.append(begin[1:], len(length))
    return steps, length[ends - 1], np.append(begin, len(length))
