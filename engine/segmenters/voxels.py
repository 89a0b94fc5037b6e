"""What the size of an image's voxels says to methods that work in pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cytopave.engine.omezarr.image import Image


def anisotropy(image: Image) -> float:
    """Distance of planes in units of the width of a pixel, at the image's level.

    1 for an image without a Z axis, and for one whose metadata give no size of pixels.
    """
    if "z" not in image.axes:
        return 1.0
    z, y, x = image.of("zyx", image.scale)
    return float(z / (y * x) ** 0.5)
