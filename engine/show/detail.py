"""The middle of a large image at full resolution, and pictures small enough to send along."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.boxes import Box
from cytopave.engine.intensity import histogram
from cytopave.engine.show.overlay import outlined
from cytopave.engine.show.planes import SIDE, WINDOW, coarsest, picture_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.omezarr.image import Image


def draw_detail(
    image: Image,
    labels: Image,
    *,
    channels: Sequence[int] = (),
    ranges: Sequence[tuple[float, float]] | None = None,
    side: int = 512,
) -> np.ndarray:
    """The middle of the image at full resolution, drawn as `draw_overlay` does.

    However large the image is, only the chunks of this part are read; and those of the histogram,
    where no ranges are given.

    Args:
        image: The image, at the level that was segmented.
        labels: The label image, at its finest level.
        channels: Channels to show; empty for all.
        ranges: Of each of them, what is drawn black and what is drawn white, if that is known.
        side: Pixels of the part along Y and X at most.

    Returns:
        ``(Y, X, 3)`` uint8, red, green, blue.
    """
    *depth, height, width = labels.spatial_shape
    middle = [n // 2 for n in depth]
    top, left = max(0, (height - side) // 2), max(0, (width - side) // 2)
    box = Box(
        (*middle, top, left),
        (*(z + 1 for z in middle), min(height, top + side), min(width, left + side)),
    )
    picked = tuple(channels) or tuple(range(image.n_channels))
    if ranges is None:
        counts = histogram(image, channels=picked)
        ranges = [(c.percentile(WINDOW[0]), c.percentile(WINDOW[1])) for c in counts]
    stretched = []
    for channel, (low, high) in zip(picked, ranges, strict=True):
        values = np.nan_to_num(_part(image, box, channel).astype(np.float32))
        stretched.append((values - low) / ((high - low) or 1.0))
    grey = (np.max(stretched, axis=0).clip(0, 1) * 255).astype(np.uint8)
    return outlined(np.repeat(grey[..., None], 3, axis=2), _part(labels, box, 0))


def pixels_to_read(image: Image, labels: Image, *, side: int = SIDE) -> int:
    """Pixels of the image that `draw_overlay` reads for a picture of this size, a channel."""
    source = coarsest(image, picture_shape(labels, side))
    return math.prod(source.spatial_shape[-2:])


def jpeg(picture: np.ndarray, *, quality: int = 80) -> bytes:
    """A picture as the content of a JPEG file: a tenth of a PNG of the same noisy image."""
    from PIL import Image as Pillow

    file = io.BytesIO()
    Pillow.fromarray(picture).save(file, "JPEG", quality=quality)
    return file.getvalue()


def _part(source: Image, box: Box, channel: int) -> np.ndarray:
    block = source.read(box, channels=(channel,))
    return block.reshape(block.shape[-2:])
