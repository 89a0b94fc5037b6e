"""One global intensity that parts foreground from background."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.errors import SegmenterError

if TYPE_CHECKING:
    from cytopave.engine.omezarr.image import Image


def global_threshold(
    image: Image, channels: tuple[int, ...], given: float | None, *, method: str
) -> float:
    """The threshold that was given, or Otsu's of the whole image, taken once.

    Args:
        image: The image that will be segmented.
        channels: Indices of the selected channels.
        given: A threshold, or None.
        method: What the message calls the method, such as "a threshold".

    Raises:
        SegmenterError: More than one channel is selected.
        ImageError: The image has no finite pixel.
    """
    if len(channels) > 1:
        raise SegmenterError(
            f"{method} segments one channel and {len(channels)} are selected: name the one "
            "to segment (--channels)"
        )
    if given is not None:
        return given
    from cytopave.engine.intensity import histogram

    return histogram(image, channels=channels)[0].otsu()


def brighter(pixels: np.ndarray, threshold: float) -> np.ndarray:
    """Which pixels are brighter than a threshold, compared exactly; NaN is not."""
    if pixels.dtype == np.bool_:
        pixels = pixels.view(np.uint8)
    if np.issubdtype(pixels.dtype, np.integer):
        # the same pixels, without a floating point copy
        return np.asarray(pixels > math.floor(threshold))
    return np.asarray(pixels > np.float64(threshold))
