"""How the pixels of two images of one field of view lie on each other.

OME-Zarr gives the size of a pixel and the position of the first one. Whether that is the position
of its centre or of its corner, writers do not agree; the two readings are half a pixel of either
image apart. Which pixels *may* overlap is asked with that much room; where one value is needed for
each pixel, images whose first pixels have the same position begin at the same corner (so that the
levels of a pyramid cover each other, however they were made), and others are placed by centres.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.errors import ImageError

if TYPE_CHECKING:
    from cytopave.engine.omezarr.image import Image

_ROUNDING = 1e-6  # of positions computed from physical sizes, in pixels


@dataclass(frozen=True, slots=True)
class Overlay:
    """Along one axis: how the pixels of a mask lie on those of an image.

    Attributes:
        ratio: Length of a pixel of the mask, in pixels of the image.
        begin: Where the mask's first pixel begins, in pixels of the image from its first one's.
        room: How far from there it may lie by another reading of the metadata.
        length: Number of the mask's pixels.
    """

    ratio: float
    begin: float
    room: float
    length: int

    def covering(self, start: int, stop: int) -> tuple[int, int]:
        """The mask's pixels that may overlap pixels ``start..stop`` of the image, as a range.

        At least one: where the image reaches beyond the mask, the mask's last pixel counts.
        """
        room = self.room - _ROUNDING  # what would overlap by less than rounding does not
        first = math.floor((start - self.begin - room) / self.ratio)
        last = math.ceil((stop - self.begin + room) / self.ratio)
        first = min(max(first, 0), self.length - 1)
        return first, max(min(last, self.length), first + 1)

    def at(self, start: int, stop: int) -> np.ndarray:
        """For each of the image's pixels ``start..stop`` the mask's pixel that holds its centre."""
        centres = np.arange(start, stop) + 0.5
        pixels = np.floor((centres - self.begin) / self.ratio + _ROUNDING).astype(np.int64)
        return pixels.clip(0, self.length - 1)


def overlays(mask: Image, image: Image) -> tuple[Overlay, ...]:
    """How a mask lies on an image, along each of the image's spatial axes.

    A mask without Z lies on every plane: one pixel of it, as deep as the stack.

    Raises:
        ImageError: They do not show the same field of view.
    """
    depth = mask.of("z", mask.shape)[0] if "z" in mask.axes else 1
    if depth > 1 and "z" not in image.axes:
        raise ImageError(f"the mask {mask.url} is a stack, and {image.url} is not: give one plane")
    flat = depth == 1
    axes = [a for a in image.spatial_axes if not (a == "z" and flat)]
    place = _placed if mask.version and image.version else _fitted
    found = {a: place(mask, image, a) for a in axes}
    _check(found, mask, image)
    return tuple(found.get(a) or _every_plane(image) for a in image.spatial_axes)


def _every_plane(image: Image) -> Overlay:
    return Overlay(float(image.of("z", image.shape)[0]), 0.0, 0.0, 1)


def _placed(mask: Image, image: Image, axis: str) -> Overlay:
    """By the sizes and positions that both images' metadata give."""
    (size,), (first,), (unit,) = (
        image.of(axis, v) for v in (image.scale, image.translation, image.units)
    )
    (own, own_first, own_unit, length) = (
        mask.of(axis, v)[0] for v in (mask.scale, mask.translation, mask.units, mask.shape)
    )
    if unit and own_unit and unit != own_unit:
        raise ImageError(
            f"the mask {mask.url} is measured in {own_unit}s and {image.url} in {unit}s: write the "
            "mask in the image's unit"
        )
    ratio = own / size
    room = abs(ratio - 1) / 2
    shift = (own_first - first) / size
    begin = 0.0 if abs(shift) < _ROUNDING else shift + 0.5 - ratio / 2
    return Overlay(ratio, begin, room, length)


def _fitted(mask: Image, image: Image, axis: str) -> Overlay:
    """By their shapes alone: a plain array says nothing of its place, so both show the same."""
    n, m = (int(one.of(axis, one.shape)[0]) for one in (image, mask))
    factor = _factor(mask, image)
    if factor is not None:
        return Overlay(float(factor), 0.0, (factor - 1) / 2, m)
    return Overlay(n / m, 0.0, 0.0 if n == m else n / m, m)


def _factor(mask: Image, image: Image) -> int | None:
    """The whole number by which the mask is coarser along Y and X, rests dropped or kept."""
    sizes: list[tuple[int, int]]
    sizes = [(image.of(a, image.shape)[0], mask.of(a, mask.shape)[0]) for a in "yx"]
    largest = max(n / m for n, m in sizes)
    for factor in (math.floor(largest), math.ceil(largest)):
        if factor and all(m in (n // factor, -(-n // factor)) for n, m in sizes):
            return factor
    return None


def _check(found: dict[str, Overlay], mask: Image, image: Image) -> None:
    """Refuse a mask that begins or ends elsewhere, by more than a pixel and a half of its own."""
    for axis, lay in found.items():
        n = image.of(axis, image.shape)[0]
        end = lay.begin + lay.length * lay.ratio
        tolerance = max(1.0, 1.5 * lay.ratio)
        if abs(lay.begin) > tolerance or abs(end - n) > tolerance:
            raise ImageError(
                f"the mask {mask.url} shows another field of view than {image.url}: along "
                f"{axis.upper()} it covers the image's pixels {lay.begin:.6g} to {end:.6g}, and "
                f"there are {n}; give a mask of the same field, whose scale and translation say so"
            )
    ratios = [found[a].ratio for a in "yx"]
    if not (mask.version and image.version) and max(ratios) > 1.1 * min(ratios):
        raise ImageError(
            f"the mask {mask.url} of {mask.spatial_shape} pixels cannot show the field of view of "
            f"{image.url}, which has {image.spatial_shape}: their sides differ in proportion"
        )
