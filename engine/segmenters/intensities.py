"""The intensity range of each channel, taken from the whole image."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cytopave.engine.omezarr.image import Image

logger = logging.getLogger(__name__)


def intensity_ranges(
    image: Image, channels: tuple[int, ...], percentiles: tuple[float, float]
) -> tuple[tuple[float, float], ...]:
    """What becomes 0 and 1, per channel: two percentiles of all its pixels.

    Where both are one value (a few bright objects on a flat background) the range goes from the
    smallest to the largest value instead, with a warning; a channel of one value becomes all zero.

    Raises:
        ImageError: A channel has no finite pixel.
    """
    from cytopave.engine.intensity import histogram

    ranges = []
    for number, counts in enumerate(histogram(image, channels=channels)):
        low, high = (float(counts.percentile(q)) for q in percentiles)
        if high <= low:
            low, high = float(counts.percentile(0)), float(counts.percentile(100))
            logger.warning(
                "Percentiles %g and %g of selected channel %d coincide; its range is taken from "
                "minimum to maximum, %g to %g. Give intensity=((low, high),) to choose it.",
                *percentiles,
                number,
                low,
                high,
            )
        ranges.append((low, high if high > low else low + 1.0))
    return tuple(ranges)
