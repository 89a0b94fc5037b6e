"""The intensity range of each channel, taken from the whole image."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

if TYPE_CHECKING:
    from cytopave.engine.omezarr.image import Image

logger = logging.getLogger(__name__)

Finite = Annotated[float, Field(allow_inf_nan=False)]
type _Pair = tuple[float, float]


def _ascending(value: _Pair) -> _Pair:
    if value[0] >= value[1]:
        raise ValueError("percentiles must ascend, such as (1, 99)")
    return value


def _wide(value: tuple[_Pair, ...]) -> tuple[_Pair, ...]:
    if any(low >= high for low, high in value):
        raise ValueError("each intensity range must ascend, such as (100, 2000)")
    return value


Percentile = Annotated[float, Field(ge=0, le=100)]
Percentiles = Annotated[tuple[Percentile, Percentile], AfterValidator(_ascending)]
Ranges = Annotated[tuple[tuple[Finite, Finite], ...], AfterValidator(_wide)]
"""What becomes 0 and what becomes 1, per channel."""


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
