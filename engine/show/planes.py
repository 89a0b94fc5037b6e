"""One plane of a whole image, sampled to the size of a picture.

At most `SIDE` pixels wide and high, taken from the pyramid where there is one. Whatever the image's
size, no more than `BLOCK` x `BLOCK` of its pixels are read at a time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.boxes import Box
from cytopave.engine.errors import OutputError
from cytopave.engine.intensity import histogram

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cytopave.engine.omezarr.image import Image

SIDE = 2048
"""Pixels of the picture's longer side at most."""
BLOCK = 4096
"""Pixels of the image's plane that are read at a time, along each side."""
WINDOW = (1.0, 99.8)
"""Percentiles of the whole image that become black and white."""
_LINE = 0.35  # how much of a grid line is white


def save_png(picture: np.ndarray, path: Path) -> None:
    """Write a picture as a PNG file, and the folders above it where they are absent.

    Raises:
        OutputError: It cannot be written.
    """
    from PIL import Image as Pillow

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        Pillow.fromarray(picture).save(path)
    except OSError as error:
        raise OutputError(f"the picture {path} cannot be written: {error}") from error


def picture_shape(labels: Image, side: int) -> tuple[int, int]:
    """Y and X of the picture: the finest level that fits, else an even part of the coarsest."""
    planes = [labels.of("yx", level.shape) for level in labels.levels]
    height, width = next((p for p in planes if max(p) <= side), planes[-1])
    step = math.ceil(max(height, width) / side)
    return -(-height // step), -(-width // step)


def grey(image: Image, shape: tuple[int, int], channels: tuple[int, ...]) -> np.ndarray:
    """The brightest channel's pixels between black and white, ``shape`` uint8.

    Args:
        image: The image, at the level that was segmented.
        shape: Y and X of the picture.
        channels: Channels to show; empty for all.
    """
    picked = channels or tuple(range(image.n_channels))
    brightest = np.zeros(shape, np.float32)
    for channel, counts in zip(picked, histogram(image, channels=picked), strict=True):
        low, high = (counts.percentile(q) for q in WINDOW)
        values = np.nan_to_num(plane(image, shape, channel=channel).astype(np.float32))
        np.maximum(brightest, (values - low) / ((high - low) or 1.0), out=brightest)
    return np.asarray(brightest.clip(0, 1) * 255, np.uint8)


def plane(image: Image, shape: tuple[int, int], *, channel: int) -> np.ndarray:
    """The middle plane at the first time point, sampled to a shape."""
    source = coarsest(image, shape)
    *depth, height, width = source.spatial_shape
    middle = [n // 2 for n in depth]
    rows, cols = _centres(height, shape[0]), _centres(width, shape[1])
    sampled = np.empty(shape, source.dtype)
    for y in _spans(rows):
        for x in _spans(cols):
            start = (*middle, int(rows[y][0]), int(cols[x][0]))
            stop = (*(z + 1 for z in middle), int(rows[y][-1]) + 1, int(cols[x][-1]) + 1)
            block = source.read(Box(start, stop), channels=(channel,))
            block = block.reshape(block.shape[-2:])
            sampled[y, x] = block[np.ix_(rows[y] - start[-2], cols[x] - start[-1])]
    return sampled


def coarsest(image: Image, shape: tuple[int, int]) -> Image:
    """The coarsest level that is no coarser than the picture."""
    best = image.level
    for index in range(image.level, len(image.levels)):
        level = image.of("yx", image.levels[index].shape)
        if all(n >= m for n, m in zip(level, shape, strict=True)):
            best = index
    return image if best == image.level else image.at_level(best)


def _centres(length: int, parts: int) -> np.ndarray:
    """The pixel in the middle of each of ``parts`` equal parts of an axis."""
    return ((np.arange(parts) + 0.5) * length / parts).astype(np.int64)


def _spans(picks: np.ndarray) -> list[slice]:
    """Cut picked pixels into runs that reach over at most `BLOCK` pixels (or hold one pick)."""
    stride = (int(picks[-1]) - int(picks[0])) / max(1, len(picks) - 1)
    count = max(1, int(BLOCK / max(1.0, stride)))
    return [slice(a, min(a + count, len(picks))) for a in range(0, len(picks), count)]


def draw_lines(picture: np.ndarray, lines: Sequence[Sequence[int]], full: tuple[int, ...]) -> None:
    """Draw the tiles' edges faintly; ``full`` is Y and X of the image that they are given in."""
    for axis, edges in enumerate(lines):
        scale = picture.shape[axis] / full[axis]
        at = [int(e * scale) for e in edges if 0 < e < full[axis]]
        view = np.moveaxis(picture, axis, 0)
        view[at] = (view[at] * (1 - _LINE) + 255 * _LINE).astype(np.uint8)
